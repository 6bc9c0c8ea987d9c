"""What the report says in words: about attacks, protocols and classes of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.generative import PROMPTS_OF
from olmodetect_jax.attacks.supervised import (
    FSD_BASES,
    IN_DOMAIN,
    LODO,
    POOLED,
    SETTINGS,
    SUPERVISED,
    parts_of,
    row_ids,
)
from olmodetect_jax.evaluation.formatting import ABSENT

# What a supervised attack learns from in each setting.
_LEARNT_FROM = {
    IN_DOMAIN: "of the {in_domain_unit} that is scored",
    LODO: "of all domains but the one that is scored{POOL}{lodo_related}",
    POOLED: "of all domains together{POOL}, as if the domain were not known",
}


def _supervised(row: str) -> str:
    """What a supervised row's score is, and what it was trained on."""
    family, attack, setting = parts_of(row) or ("", "", "")
    own_pool = "{lodo_subsets}" if family == "sup_camia" else "{lodo_pool}"
    where = _LEARNT_FROM[setting].replace("{POOL}", own_pool)
    if family == "sup_camia":
        texts = "{lodo_train}" if setting == LODO else "development texts"
        return (
            "probability of a member by logistic regression on signals of how the loss unfolds along the text and "
            f"along copies of it, {{sup_camia_classifier}}. Trained on members and non-members, {texts} {where}."
        )
    if family == "mia_tuner":
        return f"{{mia_tuner_loss}} Tuned on members and non-members, development texts {where}."
    base = FSD_BASES[attack.removeprefix("fsd_")]
    return (
        f"{base} of the model itself minus {base} of the model after fine-tuning (LoRA) on non-members, development "
        f"texts {where}. Such tuning raises the score of non-members most, so members keep the larger difference."
    )


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
    "pac": "the gap between the most probable tokens (a share of {pac_far}) and the least probable ones (a share of "
    "{pac_near}): how much wider it is in five copies of the text with swapped words than in the text itself.",
    "recall": "mean log-probability of the text after a prefix of {recall_shots} development non-members, divided by "
    "the one without it: what non-members cost the text that stands after them.",
    "em_mia": "every text stands as a prefix before every other of its subset; one that tells likely members from the "
    "rest is itself no likely member. Ten rounds, starting from the base score {em_mia_base}.",
    "em_mia_best_of_four": "EMMIA starting, in each subset, from whichever of four base scores turns out best on the "
    "very labels it is judged by. Optimistic, and no part of Method-Avg.",
    "camia": "signals of how the loss unfolds along the text and falls while {camia_copies} copies of it are read in a "
    "row; each becomes a p-value against development non-members, and the {camia_composition} rule combines them.",
    "neighborhood": "mean log-probability of the text against that of copies of it in which other words fill gaps, as "
    "a {neighborhood_score}: whether the text itself stands out. Gaps filled by {neighbours}.",
    "guided": "the model writes the end of the text, at most {guided_new_tokens} tokens, once told where the text "
    "comes from and once not; the score is ROUGE-L against the true end, {guided_score}. {prompts}",
    "dcq": "a quiz: the probability of the letter before the text itself among three rewordings of it, in each of four "
    "places, {dcq_score}. Rewordings by {quiz}. {prompts}",
    "cdd": "the model goes on from the start of the text, a share of {cdd_ratio}, for at most {cdd_length} tokens, "
    "once with the most probable ones and fifty times with drawn ones; the score is the share of these whose edit "
    "distance to the first is at most {cdd_alpha} of the longest.",
    "self_critique": "the model answers the question of the text, then sees its answer and is asked for another way; "
    "the score is how alike its entropies along the two answers are, of at most {self_critique_new_tokens} tokens "
    "each. {prompts}",
    **{row: _supervised(row) for family in SUPERVISED for setting in SETTINGS for row in row_ids(family, setting)},
}

# The value of a hyperparameter or of a protocol's field in words.
VALUES = {
    "neighborhood_score": {"d": "difference", "z": "difference in standard deviations of the copies"},
    "guided_score": {"rouge_guided": "when it was told", "rouge_delta": "how much more of it when it was told"},
    "dcq_score": {
        "mean": "on average",
        "min": "where it is least",
        "kappa": "above the chance that the letter has without the text, on average",
        "kappa_np": "above the chance that the letter has without the text, on average over the letters that the model "
        "does not prefer anyway",
    },
    "in_domain_unit": {"leaf": "very subset", "domain": "whole domain"},
    "lodo_train": {"dev": "development texts", "dev_and_test": "development and test texts"},
    "lodo_subsets": {"all": "", "representative": ", of one subset each"},
    "lodo_pool": {"benchmark": "", "released": ", those of an ablation beside the benchmark too"},
    "lodo_related": {
        "keep": "",
        "questions": ", without the texts that ask one of its questions",
        "domain": ", without the domains that share questions with it",
    },
    "sup_camia_classifier": {
        "plain": "each by itself",
        "pca10": "by their ten principal components",
        "group_pca": "by one principal component of each kind of signal",
        "group_pca_unscaled": "by one principal component of each kind of signal, unscaled",
    },
    "mia_tuner_loss": {
        "aligned": "probability of Yes against No when the model is asked whether it has seen the text, with a tuned "
        "soft prompt before everything.",
        "unaligned": "mean log-probability of the text behind a tuned soft prompt that drives members and non-members "
        "apart.",
    },
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
    best_of_four = known.get("em_mia_choice") == "best_of_four"
    known.update(hyperparameters if isinstance(hyperparameters, dict) else {})
    if best_of_four:
        known["em_mia_base"] = "that turns out best, of four, on the very labels it is judged by (optimistic)"
    for name, words in VALUES.items():
        known[name] = words.get(str(known[name]), known[name])
    facts = manifest.get("generation")
    facts = facts if isinstance(facts, dict) else {}
    known["neighbours"], known["quiz"] = _maker(facts.get("neighbours")), _maker(facts.get("quiz"))
    described = []
    for attack in attacks:
        if attack in ATTACKS:
            known["prompts"] = _prompts(facts.get("prompts"), PROMPTS_OF.get(attack, ()))
            described.append((attack, ATTACKS[attack].format_map(known)))
    return described


def _maker(facts: Any) -> str:
    """What made a quiz or neighbours; a dash where the manifest does not say."""
    facts = facts if isinstance(facts, dict) else {}
    return str(facts.get("backend") or facts.get("generator") or ABSENT)


def _prompts(facts: Any, names: Iterable[str]) -> str:
    """Where the wording of an attack's prompts comes from, in one sentence."""
    known = facts if isinstance(facts, dict) else {}
    origins = dict.fromkeys(_origin(known[name]) for name in names if name != "sources" and name in known)
    return f"Prompts: {', '.join(origins)}." if origins else ""


def _origin(prompt: Any) -> str:
    prompt = prompt if isinstance(prompt, dict) else {}
    if prompt.get("known_as"):
        return str(prompt["known_as"])
    return f"the file {Path(str(prompt['path'])).name}" if prompt.get("path") else "this project's own wording"
