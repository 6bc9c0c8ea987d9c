"""The blind baseline: whether words alone tell the classes apart, without any model (construction spec, section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.construction.candidates import shuffled
from olmodetect_jax.construction.verification.data import Line, SubsetLines
from olmodetect_jax.errors import DataError
from olmodetect_jax.records import text_key

FOLDS, SEEDS, MIN_DOCUMENTS = 5, 5, 2


@dataclass(frozen=True)
class Blind:
    """How well the classes of a subset are told apart.

    Attributes:
        auc: mean over the seeds of the AUC of out-of-fold probabilities.
        std: over the seeds.
        length_auc: of the number of characters alone.
        n: texts of the smaller class.
    """

    auc: float
    std: float
    length_auc: float
    n: int

    @property
    def standard_error(self) -> float:
        """Of an AUC of one half with so many texts a class: what chance alone makes of it."""
        return float(np.sqrt((2 * self.n + 1) / (12 * self.n**2)))


def blind(subset: SubsetLines, *, seed: int) -> Blind:
    """Word counts under logistic regression; chosen and rejected texts apart, then averaged.

    Args:
        subset: dev and test together.
        seed: of the folds.

    Raises:
        DataError: a class has fewer texts than there are folds.
    """
    found = []
    for side in subset.sides:
        members, others = (
            [line for line in lines if line.side == side] for lines in (subset.members, subset.non_members)
        )
        found.append(_of_texts(subset.id, members, others, seed))
    return Blind(
        float(np.mean([f.auc for f in found])), float(np.mean([f.std for f in found])),
        float(np.mean([f.length_auc for f in found])), min(f.n for f in found),
    )  # fmt: skip


def _of_texts(name: str, members: Sequence[Line], others: Sequence[Line], seed: int) -> Blind:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.metrics import roc_auc_score

    n = min(len(members), len(others))
    if n < FOLDS:
        raise DataError(f"{name}: {n} texts of a class; the blind baseline needs at least {FOLDS}")
    lines = [*members, *others]
    # In the order of a hash, so that the order of the files changes nothing.
    order = shuffled([_fold_key(line) for line in lines], seed, "bag of words")
    labels = np.array([1] * len(members) + [0] * len(others))[order]
    texts = [lines[i].text for i in order]
    try:
        counts = CountVectorizer(lowercase=True, min_df=MIN_DOCUMENTS).fit_transform(texts)
    except ValueError:
        raise DataError(f"{name}: no word stands in {MIN_DOCUMENTS} texts, so words cannot be compared") from None
    aucs = [roc_auc_score(labels, _out_of_fold(counts, labels, seed + k)) for k in range(SEEDS)]
    lengths = roc_auc_score(labels, [len(text) for text in texts])
    return Blind(float(np.mean(aucs)), float(np.std(aucs)), float(lengths), n)


def _fold_key(line: Line) -> str:
    """What decides the order, and so the fold: the same for both sides of a pair, whose prompt they share."""
    prompt = line.value.get("prompt")
    return f"{text_key(prompt)}" if line.side and isinstance(prompt, str) else text_key(line.text)


def _out_of_fold(counts: object, labels: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    model = LogisticRegression(max_iter=5000)
    return cross_val_predict(model, counts, labels, cv=folds, method="predict_proba")[:, 1]
