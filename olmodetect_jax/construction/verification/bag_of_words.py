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
# Each fold is judged by words learnt from the others, so under chance alone such an AUC spreads more than that of fixed
# scores: measured on pairs of samples of one source, 1.3 times with 20 texts a class, 1.2 times with 60 and 200.
_FOLDS_SPREAD = 1.25


@dataclass(frozen=True)
class Blind:
    """How well the classes of a subset or domain are told apart.

    Attributes:
        auc: mean over the seeds of the AUC of out-of-fold probabilities.
        std: over the seeds.
        standard_error: of an AUC of one half with so many texts: what chance alone makes of it.
        length_auc: of the number of characters alone.
        n: texts of the smaller class.
        aucs: of each seed.
    """

    auc: float
    std: float
    standard_error: float
    length_auc: float
    n: int
    aucs: tuple[float, ...]


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
    # Both sides of a pair answer one prompt: two of them are not twice as many texts.
    return _mean(found, max(f.standard_error for f in found), min(f.n for f in found))


def mean_blind(subsets: Sequence[Blind]) -> Blind:
    """That of a domain: the mean of its subsets, as in table 24."""
    error = float(np.sqrt(np.sum(np.square([s.standard_error for s in subsets]))) / len(subsets))
    return _mean(subsets, error, sum(s.n for s in subsets))


def _mean(found: Sequence[Blind], standard_error: float, n: int) -> Blind:
    aucs = np.mean([f.aucs for f in found], axis=0)
    lengths = float(np.mean([f.length_auc for f in found]))
    return Blind(float(np.mean(aucs)), float(np.std(aucs)), standard_error, lengths, n, tuple(aucs.tolist()))


def _of_texts(name: str, members: Sequence[Line], others: Sequence[Line], seed: int) -> Blind:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.metrics import roc_auc_score

    n = min(len(members), len(others))
    if n < FOLDS:
        raise DataError(f"{name}: {n} texts of a class; the blind baseline needs at least {FOLDS}")
    lines = in_order([*members, *others], seed)
    own = {id(line) for line in members}
    labels = np.array([id(line) in own for line in lines], np.int64)
    texts = [line.text for line in lines]
    try:
        counts = CountVectorizer(lowercase=True, min_df=MIN_DOCUMENTS, dtype=np.float64).fit_transform(texts)
    except ValueError:
        raise DataError(f"{name}: no word stands in {MIN_DOCUMENTS} texts, so words cannot be compared") from None
    aucs = [roc_auc_score(labels, _out_of_fold(counts, labels, seed + k)) for k in range(SEEDS)]
    lengths = roc_auc_score(labels, [len(text) for text in texts])
    pairs = len(members) * len(others)
    error = _FOLDS_SPREAD * float(np.sqrt((len(lines) + 1) / (12 * pairs)))
    return Blind(float(np.mean(aucs)), float(np.std(aucs)), error, float(lengths), n, tuple(map(float, aucs)))


def in_order(lines: Sequence[Line], seed: int) -> list[Line]:
    """Texts in the order from which folds are drawn, which the order of the files does not change.

    It is that of a hash: of the prompt, which the sides of a pair share, so that they come to be in the same fold; else
    of the text, which also decides where a prompt was asked twice.
    """
    known = sorted(lines, key=lambda line: line.text)
    return [known[i] for i in shuffled([_fold_key(line) for line in known], seed, "bag of words")]


def _fold_key(line: Line) -> str:
    prompt = line.value.get("prompt")
    return text_key(prompt) if line.side and isinstance(prompt, str) else text_key(line.text)


def _out_of_fold(counts: object, labels: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    model = LogisticRegression(solver="liblinear", max_iter=5000)
    # One thread: how many there are would change the last bits, and they wait for each other longer than they work.
    with threadpool_limits(1):
        return cross_val_predict(model, counts, labels, cv=folds, method="predict_proba")[:, 1]
