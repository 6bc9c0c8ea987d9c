"""Every test process has 8 CPU devices, strict dtype promotion and no silent rank promotion."""

import os
import shutil
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jax
import pytest

# Workers and the processes that tests start compile the same programs: each is compiled once a session.
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_OWN_CACHE = None if _CACHE in os.environ else tempfile.mkdtemp(prefix="olmodetect-compiled-")
if _OWN_CACHE:
    os.environ |= {_CACHE: _OWN_CACHE, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    jax.config.update("jax_compilation_cache_dir", _OWN_CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# How long an example takes says more of the machine's load than of the code.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


def pytest_sessionfinish():
    """Removes what the session compiled; a worker's cache is its controller's."""
    if _OWN_CACHE:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def golden():
    """Folder of the right answers."""
    from pathlib import Path

    return Path(__file__).parent / "golden"
