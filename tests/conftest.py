"""Every test process has 8 CPU devices, strict dtype promotion and no silent rank promotion."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# How long an example takes says more of the machine's load than of the code.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def golden():
    """Folder of the right answers."""
    from pathlib import Path

    return Path(__file__).parent / "golden"
