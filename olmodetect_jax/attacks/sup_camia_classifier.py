"""Sup-CAMIA's classifier: a logistic regression on min-max scaled features (CAMIA and PAC spec, 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Classifier = Literal["plain", "pca10", "group_pca", "group_pca_unscaled"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)

PENALTY_C, MOST_ITERATIONS = 1.0, 5000
COMPONENTS = 10  # of `pca10`; one of each group of features


@dataclass(frozen=True, eq=False)
class Scaling:
    """How missing features are filled and all of them scaled, learnt from the training texts.

    Attributes:
        used: [F] bool, whether both classes have the feature; one that is not used is 0 for every text.
        median: [F] float64, over the training texts that have the feature.
        low: [F] float64, the smallest value after filling.
        span: [F] float64, the largest minus the smallest value; 1 where all are equal.
    """

    used: np.ndarray
    median: np.ndarray
    low: np.ndarray
    span: np.ndarray

    @classmethod
    def of(cls, members: np.ndarray, non_members: np.ndarray) -> Scaling:
        """From the features [n, F] of both classes, NaN where missing.

        Whether a target has a feature is no question here, so that no score depends on what else is scored.
        """
        train = np.concatenate([members, non_members])
        used = ~np.isnan(members).all(axis=0) & ~np.isnan(non_members).all(axis=0)
        median = np.zeros(len(used))
        median[used] = np.nanmedian(train[:, used], axis=0)
        train = _filled(train, used, median)
        span = np.ptp(train, axis=0)
        return cls(used, median, train.min(axis=0), np.where(span > 0, span, 1.0))

    def filled(self, x: np.ndarray) -> np.ndarray:
        """Features [n, F] with medians for those that are missing."""
        return _filled(x, self.used, self.median)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Filled features [n, F], from 0 to 1 over the training texts; others may lie outside."""
        return (self.filled(x) - self.low) / self.span


def _filled(x: np.ndarray, used: np.ndarray, median: np.ndarray) -> np.ndarray:
    return np.where(used, np.where(np.isnan(x), median, x), 0.0)


def prepared(
    members: np.ndarray, non_members: np.ndarray, targets: np.ndarray, classifier: Classifier
) -> tuple[np.ndarray, np.ndarray]:
    """What the regression sees of the training texts, members first, and of the targets.

    Args:
        members: [n, 71] float64, features of the training members; NaN where missing.
        non_members: [m, 71].
        targets: [t, 71].
        classifier: all features scaled; their first ten principal components; the first component of each group of
            them; or that on values that are not scaled, as in CAMIA's own code.

    Returns:
        [n + m, P] and [t, P] float64. A row of the targets does not depend on the others.
    """
    scaling = Scaling.of(members, non_members)
    convert = scaling.filled if classifier == "group_pca_unscaled" else scaling.scaled
    train, targets = convert(np.concatenate([members, non_members])), convert(targets)
    if classifier == "plain":
        return train, targets
    if classifier == "pca10":
        directions = _principal(train, min(COMPONENTS, len(train) - 1))
    else:
        from olmodetect_jax.attacks.sup_camia_features import GROUPS  # numba is slow to import

        names = np.array(GROUPS)
        directions = np.zeros((len(set(GROUPS)), len(names)))
        for row, name in zip(directions, sorted(set(GROUPS)), strict=True):
            row[names == name] = _principal(train[:, names == name], 1)[0]
    centre = train.mean(axis=0)
    return _projected(train - centre, directions), _projected(targets - centre, directions)


def _principal(x: np.ndarray, count: int) -> np.ndarray:
    """[count, F]: the directions in which [n, F] rows differ most; fewer where there are fewer features."""
    return np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:count]


def _projected(x: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """[n, P]: rows along directions; summed row by row, so that a row's bytes do not depend on the others."""
    return np.stack([(x * direction).sum(axis=1) for direction in directions], axis=1)


def probabilities(
    members: np.ndarray, non_members: np.ndarray, targets: np.ndarray, classifier: Classifier
) -> np.ndarray:
    """Trains on the members and non-members, and gives each target's probability of being a member.

    Args:
        members: [n >= 1, 71] float64, features of the training members; NaN where missing.
        non_members: [m >= 1, 71].
        targets: [t, 71].
        classifier: as in `prepared`.

    Returns:
        [t] float64. The intercept is penalised like a weight, as liblinear does.
    """
    from scipy.special import expit
    from sklearn.linear_model import LogisticRegression  # slow to import

    train, targets = prepared(members, non_members, targets, classifier)
    labels = np.repeat([1, 0], [len(members), len(non_members)])
    regression = LogisticRegression(C=PENALTY_C, solver="liblinear", max_iter=MOST_ITERATIONS).fit(train, labels)
    return expit(_projected(targets, regression.coef_)[:, 0] + regression.intercept_[0])
