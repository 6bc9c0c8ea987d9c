"""What the report says in words: about attacks, protocols and classes of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from olmodetect_jax.evaluation.formatting import ABSENT

# What a score is; a name in braces is a protocol field or a hyperparameter of the run.
ATTACKS = {
    "ppl": "mean log-probability of the tokens.",
    "zlib": "{zlib_numerator} of the tokens' log-probabilities per byte of the zlib-compressed text.",
    "lower": "mean log-probability of the text against that of the same text in lower case, as a {lower_form}: "
    "the loss when the capitals go.",
    "min_k": "mean log-probability of the least probable tokens only, a share of {min_k} of them.",
    "min_k_plus_plus": "like MinK with a share of {min_k_plus_plus}, but each log-probability is first standardised by "
    "the model's own distribution at its position.",
    "dc_pdd": "mean probability of the distinct tokens, calibrated by how rare each token is in general text and "
    "clipped at {dc_pdd_alpha}.",
}

PRESETS = {
    "audited": "Protocol audited: careful practice, this project's default.",
    "paper": "Protocol paper: the paper's text.",
    "release": "Protocol release: what the published numbers came from.",
}

# Classes of texts in a histogram: style to words.
CLASSES = {
    "member": "members",
    "non-member": "non-members",
    "unlabelled": "texts without a label",
    "reference": "reference, non-members",
}


class _Known(dict[str, Any]):
    """Values of a run; one that its manifest lacks reads as a dash."""

    def __missing__(self, name: str) -> str:
        return ABSENT


def describe(attacks: Iterable[str], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(attack id, one sentence) for every attack that has one.

    Args:
        attacks: attack ids.
        manifest: of the run, for its protocol and hyperparameters.
    """
    hyperparameters = manifest.get("hyperparameters")
    known = _Known(manifest["protocol"]["fields"])
    known.update(hyperparameters if isinstance(hyperparameters, dict) else {})
    return [(attack, ATTACKS[attack].format_map(known)) for attack in attacks if attack in ATTACKS]
