"""Other models that learnt from the same texts (paper Table 8; evaluation spec, section 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.metrics import ClassScores
from olmodetect_jax.evaluation.runs import Run
from olmodetect_jax.records import MEMBER, NON_MEMBER

ATTACKS = ("ppl", "zlib", "min_k", "dc_pdd", "pac")


@dataclass(frozen=True)
class Pairing:
    """A subset, and two models that were trained on its domain.

    Attributes:
        subset: subset id.
        olmo2: size of the OLMo 2 model.
        other: directory names of the other model.
        titles: of both, in the paper.
        left_out: places of non-members, from 0 in the file, that the other model may have seen: left out for both.
    """

    subset: str
    olmo2: str
    other: tuple[str, ...]
    titles: tuple[str, str]
    left_out: tuple[int, ...] = ()


_SMOLLM2_MAY_HAVE_SEEN = (10, 11, 18, 25, 66, 106, 112, 118)

PAIRINGS = (
    Pairing("gsm8k", "7b", ("Olmo-3-7B-Instruct",), ("OLMo 2-7B", "OLMo 3-7B")),
    Pairing("gsm8k", "32b", ("Olmo-3.1-32B-Instruct",), ("OLMo 2-32B", "OLMo 3-32B")),
    Pairing("dclm", "1b", ("DCLM-1B",), ("OLMo 2-1B", "DCB-1B")),
    Pairing("dclm", "1b", ("SmolLM2-1.7B",), ("OLMo 2-1B", "SmolLM2-1.7B"), _SMOLLM2_MAY_HAVE_SEEN),
    Pairing("openwebmath", "1b", ("DCLM-1B",), ("OLMo 2-1B", "DCB-1B")),
    Pairing("openwebmath", "7b", ("DCLM-Baseline-7B", "DCLM-7B"), ("OLMo 2-7B", "DCB-7B")),
)


def auc_without(run: Run, attack: str, subset: str, left_out: Sequence[int] = ()) -> float | None:
    """AUC of a subset without some of its non-members; None where there are no scores of it.

    Args:
        run: whose scores, non-members in the order of the benchmark's file.
        attack: attack id.
        subset: subset id.
        left_out: places of non-members, from 0.

    Raises:
        DataError: a place beyond the last non-member, or a class without a score.
    """
    lines = run.scores.get(attack, {}).get(subset)
    if lines is None:
        return None
    others = [s for s in lines if s.label == NON_MEMBER]
    if left_out and max(left_out) >= len(others):
        raise DataError(
            f"{run.path}: {attack} on {subset}: record {max(left_out)} of the non-members is to be left out, "
            f"but there are {len(others)}; this list is for the whole test split"
        )
    kept = [s for i, s in enumerate(others) if i not in left_out]
    sides = ([s.value for s in side if s.value is not None] for side in ((s for s in lines if s.label == MEMBER), kept))
    return m.auc(ClassScores(*sides, f"{attack} on {subset}"))  # type: ignore[arg-type]
