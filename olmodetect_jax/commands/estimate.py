"""How long the quickstart will take on this machine, said before it begins."""

from __future__ import annotations

from collections.abc import Iterable

from olmodetect_jax import sample
from olmodetect_jax.attacks.supervised import parts_of

# What each part takes, in passes of the embedded model over 8 texts of 256 tokens, compiling included; all records but
# for the slowest attacks, as the quickstart has it. Measured with `seconds_of_pass` beside the quickstart itself.
PASSES = {"unsupervised": 3_700, "sup_camia": 400, "mia_tuner": 8_000, "fsd": 1_000}


def estimated_minutes(attacks: Iterable[str]) -> float:
    """Minutes that the quickstart takes for these attacks on this machine, roughly: others' work is not foreseen.

    Args:
        attacks: ids; of a part of which some are asked, the whole is counted.
    """
    from conversion import load_model_directory
    from olmodetect_jax.scoring.speed import seconds_of_pass

    parts = {(parts_of(name) or ("unsupervised",))[0] for name in attacks}
    model = load_model_directory(sample.model_directory(), "float32").module()
    return sum(PASSES[part] for part in parts) * seconds_of_pass(model) / 60
