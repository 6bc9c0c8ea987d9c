"""Every table of the paper that runs and a verified benchmark can make, and what one of them lacks where it cannot."""

from __future__ import annotations

from olmodetect_jax.tables.study import Study

STATISTICS = (2, 3, *range(15, 26), *range(30, 37))
SUPERVISED = (5, 29, *range(64, 83))
NUMBERS = tuple(sorted({*STATISTICS, *SUPERVISED, 4, 6, 7, 8, 27, 28, *range(37, 64), 83, 84, 85}))


def lacking(number: int, study: Study) -> str:
    """What a table that was not made would need.

    Args:
        number: of the table.
        study: the runs that were given.
    """
    if number in STATISTICS:
        return "needs what `olmodetect verify` found on the benchmark: --verification FILE"
    if number in SUPERVISED:
        return "needs a supervised attack: olmodetect score --attacks supervised --setting in-domain,lodo"
    if number in (7, 85):
        return "needs runs of the same model on both variants: olmodetect score --variant shifted"
    if number == 83:
        return "needs the label budget of a run: olmodetect budget RUN"
    if number == 27:
        return "needs an attack that has a hyperparameter"
    if not study.is_papers:
        return f"is of the paper's benchmark; these runs are of {study.tree.title}"
    if number == 8:
        return "needs runs of OLMo 2 and of another model that learnt from the same subset"
    return "needs an attack that has every subset"
