"""The named choices on which the paper, its released code and careful practice differ.

Sources: likelihood spec, section 0; CAMIA and PAC spec, the places marked with a not-equal sign; generative spec, the
traps and differences of each section; supervised spec, sections 1 to 3, with section 2.4 of the CAMIA and PAC spec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml

PRESETS = ("audited", "paper", "release")
_EM_MIA = ("em_mia", "em_mia_best_of_four")
_GENERATIVE = ("neighborhood", "guided", "dcq", "cdd", "self_critique")
_LIKELIHOOD = ("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd", "pac", "recall", *_EM_MIA, "camia")
_FSD = ("fsd_ppl", "fsd_zlib", "fsd_lower", "fsd_min_k", "fsd_min_k_plus_plus")


def _rows(*attacks: str, settings: tuple[str, ...] = ("", "_lodo", "_pooled")) -> tuple[str, ...]:
    """The rows of supervised attacks, of which each setting makes one."""
    return tuple(attack + setting for setting in settings for attack in attacks)


def choice(*attacks: str, least: int = 2, others: tuple[int, ...] = ()) -> Any:
    """A field of `Protocol`.

    Args:
        attacks: ids of the attacks it bears on; none for all.
        least: smallest value of an integer.
        others: further values of an integer that a comparison of protocols tries beside the presets' own.
    """
    return dataclasses.field(metadata={"attacks": attacks, "least": least, "others": others})


@dataclass(frozen=True)
class Protocol:
    """One value for every choice; `configs/protocols/<preset>.yaml` holds the three presets.

    Attributes:
        preset: the preset the values came from.
        max_tokens: tokens of a text that are read, from its start; the model's own context caps it.
        window: tokens that a prefix and a text together, or the copies of a text, may fill (ReCaLL, EMMIA, CAMIA,
            Sup-CAMIA); the model's own context caps it.
        text_span: the text that Zlib's byte count, Lower's lower-casing and PAC's swaps see: the span that was scored,
            or the full text although only its first `max_tokens` tokens were scored.
        score_dtype: type in which token statistics and their sums and means are rounded; `bfloat16` reproduces
            the released scores' grid (of what is generated or quizzed, the logits only are rounded).
        special_ids: what happens when a special token's id is among a text's targets: the record is flagged
            in its score line, or the command ends with an error that names it. A final end-of-text id is
            always dropped from the targets of PPL, Zlib, Lower, MinK and MinK++ instead.
        tuning_non_finite: a development score that is no finite number is left out, with a count, or, for MinK and
            MinK++, NaN becomes 0 and an infinity a million.
        zlib_numerator: Zlib divides the sum or the mean of the log-probabilities by the compressed length.
        lower_form: Lower is the difference mean LL(text) - mean LL(lower), or the ratio mean LL(lower) / mean LL(text).
        min_k_choice: the k of MinK and MinK++ is a fixed 0.2, or the one that `olmodetect tune` chose.
        min_k_least: MinK and MinK++ average at least one token, or none where k times the length is below one (no
            score then).
        min_k_plus_plus_sigma: the standard deviation as the released code guards it, or plain (then not finite where
            the model is certain).
        dc_pdd_tuning_text: tuning scores the text that scoring scores, or its first 512 words joined by single spaces.
        pac_max_tokens: tokens of a text that PAC reads; never more than `max_tokens`.
        pac_seed: PAC's swaps are drawn anew for each text, seeded by its hash; or in one stream over a file's texts in
            order, seeded by 0 (`file`) or 42 (`file_42`); or in one stream over both files, seeded by 0 (`list`).
        recall_shot_order: ReCaLL's shots are the first development non-members by hash of their text, or in the
            file's order.
        recall_shot_tokens: most tokens of a shot, and of a text in the mean length for which the prefix leaves room.
        recall_prefix: each shot is cut to an equal share of the budget, or shots that do not fit are dropped whole.
        recall_budget: room left for a text is the mean length over both classes, or over each class's own file (the
            two classes then get different prefixes).
        recall_span: both likelihoods cover the same tokens, or each what fits (and the conditional one a token more).
        em_mia_tokens: tokens of a text that EMMIA reads, as prefix and as target.
        em_mia_tokens_rlvr: the same in the domain RLVR, whose texts share a long preamble.
        em_mia_choice: EMMIA starts from the base score that was best on development texts, or reports for each subset
            the one of the four that is best on the test labels (optimistic).
        em_mia_auc: AUC from exact counts, or from scikit-learn's trapezoids, whose rounding decides ties.
        em_mia_pool: texts that serve as targets, drawn by their true labels; 0 takes all (without labels).
        camia_max_tokens: tokens of a text that CAMIA reads.
        camia_copies: copies of the text in CAMIA's repeated pass; the text is cut so that all of them fit the window.
        camia_variant: token diversity and occurrences as the paper's code or as CAMIA's own code takes them (which
            needs six copies).
        camia_directions: which labelled texts say which way a signal points: development texts, or the very texts that
            are evaluated (a leak).
        camia_p_value: how ties count in a p-value: half, or as in CAMIA's own code.
        camia_score: Fisher and George give minus the combined p-value (it saturates), or the statistic.
        camia_tuning: each development non-member is held against the others, or the last ones against the first, with
            the released tuner's p-values (over the 75 signals that are scored, not over the 71 of that tuner).
        generation_context: tokens that a prompt and what follows it, a quiz, or a text and its neighbours may have
            in the generative attacks; the model's own context caps it.
        neighborhood_window: of a text of more than 300 words the first 300 are perturbed; the neighbours keep the white
            space of both parts, or have single spaces throughout (the difference then measures formatting too).
        neighborhood_seed: masks are drawn anew for each text, seeded by its hash, or in one stream over chunks of the
            file's texts in order.
        guided_cut: of a prompt that is too long the first piece is cut, or the prompt's right end, with the label that
            asks for the second piece.
        guided_new_tokens: most tokens of Guided's completions.
        dcq_chance: DCQ's chance term is the mean over both classes, or over each class's own file (a label leak).
        dcq_equal_options: a quiz with two equal options, or one that is the text itself, costs the text its DCQ score,
            or counts like any other, as in the released code, with a note at the score.
        cdd_top_k: CDD samples from the k most probable tokens; 0 from all. The paper does not mention the released
            code's 50, a default of its library.
        self_critique_problem: Self-Critique's problem is the text's first user turn, or the whole text, role tags and
            all (in DPO the user turn, as in the released pairs).
        self_critique_new_tokens: most tokens of each of Self-Critique's two answers.
        self_critique_cut: the first answer is always cut so that the critique fits the context, or only where the
            released rule leaves it any room (it then runs past the context).
        in_domain_unit: in-domain, a supervised attack learns from the development texts of each leaf (a subset, or a
            side of DPO) for itself, or from those of the whole domain at once.
        lodo_train: leaving one domain out, Sup-CAMIA learns from the other domains' development texts, or from their
            test texts too, as the published numbers did.
        lodo_subsets: Sup-CAMIA's pools over several domains hold all subsets of a domain, or the one that represents
            it and is then its value in the tables too (of DPO, both sides still make one AUC).
        lodo_pool: the pools of FSD and MIA-Tuner over several domains hold the benchmark's texts, or the released
            ones': the development texts of an ablation beside it (GSM8K without the chain of thought) too.
        lodo_related: training texts that ask a question which a scored text of the held-out domain asks too (GSM8K and
            RLVR share theirs) stay, with a count; or are left out; or their whole domain is left out.
        sup_camia_classifier: logistic regression on all features; on ten principal components; or on one component
            of each group of signals, of scaled or of unscaled features.
        sup_camia_slices: where the repeated copies of a text begin: where they do, or a token late for most texts as
            in the released code.
        training_tokens: tokens of a text that FSD and MIA-Tuner learn from.
        mia_tuner_loss: MIA-Tuner asks a chat model for yes or no, or (unaligned) contrasts the texts' own losses.
    """

    preset: str
    max_tokens: int = choice(*_LIKELIHOOD, *_rows("sup_camia", *_FSD), others=(128,))
    window: int = choice("recall", *_EM_MIA, "camia", *_rows("sup_camia"), others=(512,))
    text_span: Literal["scored", "full"] = choice("zlib", "lower", "pac", *_EM_MIA, *_rows("fsd_zlib", "fsd_lower"))
    score_dtype: Literal["float32", "bfloat16"] = choice(
        *_LIKELIHOOD, *_GENERATIVE, *_rows("sup_camia", "mia_tuner", *_FSD)
    )
    special_ids: Literal["flag", "error"] = choice("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", *_rows(*_FSD))
    tuning_non_finite: Literal["drop", "fill"] = choice("min_k", "min_k_plus_plus")
    zlib_numerator: Literal["sum", "mean"] = choice("zlib", *_rows("fsd_zlib"))
    lower_form: Literal["difference", "ratio"] = choice("lower", *_rows("fsd_lower"))
    min_k_choice: Literal["fixed", "tuned"] = choice("min_k", "min_k_plus_plus")
    min_k_least: Literal["one", "none"] = choice("min_k", "min_k_plus_plus", *_rows("fsd_min_k", "fsd_min_k_plus_plus"))
    min_k_plus_plus_sigma: Literal["guarded", "plain"] = choice("min_k_plus_plus", *_rows("fsd_min_k_plus_plus"))
    dc_pdd_tuning_text: Literal["scored", "first_512_words"] = choice("dc_pdd")
    pac_max_tokens: int = choice("pac", others=(128,))
    pac_seed: Literal["text", "file", "file_42", "list"] = choice("pac")
    recall_shot_order: Literal["hash", "file"] = choice("recall")
    recall_shot_tokens: int = choice("recall", others=(64,))
    recall_prefix: Literal["per_shot", "whole_shots"] = choice("recall")
    recall_budget: Literal["joint", "per_file"] = choice("recall")
    recall_span: Literal["same", "separate"] = choice("recall")
    em_mia_tokens: int = choice(*_EM_MIA, others=(128,))
    em_mia_tokens_rlvr: int = choice(*_EM_MIA, others=(512,))
    em_mia_choice: Literal["dev", "best_of_four"] = choice("em_mia")
    em_mia_auc: Literal["exact", "sklearn"] = choice(*_EM_MIA)
    em_mia_pool: int = choice(*_EM_MIA, least=0, others=(10,))
    camia_max_tokens: int = choice("camia", others=(128,))
    camia_copies: int = choice("camia", least=3, others=(6,))
    camia_variant: Literal["paper", "original"] = choice("camia")
    camia_directions: Literal["dev", "evaluated"] = choice("camia")
    camia_p_value: Literal["mid", "rank"] = choice("camia")
    camia_score: Literal["p_value", "statistic"] = choice("camia")
    camia_tuning: Literal["leave_one_out", "released"] = choice("camia")
    generation_context: int = choice(*_GENERATIVE, least=128, others=(512,))
    neighborhood_window: Literal["kept", "flattened"] = choice("neighborhood")
    neighborhood_seed: Literal["text", "file"] = choice("neighborhood")
    guided_cut: Literal["first_piece", "right"] = choice("guided")
    guided_new_tokens: int = choice("guided", least=1, others=(64,))
    dcq_chance: Literal["pooled", "per_file"] = choice("dcq")
    dcq_equal_options: Literal["leave_out", "keep"] = choice("dcq")
    cdd_top_k: int = choice("cdd", least=0, others=(0,))
    self_critique_problem: Literal["user_turn", "text"] = choice("self_critique")
    self_critique_new_tokens: int = choice("self_critique", least=1, others=(64,))
    self_critique_cut: Literal["always", "released"] = choice("self_critique")
    in_domain_unit: Literal["leaf", "domain"] = choice(*_rows("sup_camia", "mia_tuner", *_FSD, settings=("",)))
    lodo_train: Literal["dev", "dev_and_test"] = choice("sup_camia_lodo")
    lodo_subsets: Literal["all", "representative"] = choice("sup_camia_lodo", "sup_camia_pooled")
    lodo_pool: Literal["benchmark", "released"] = choice(*_rows("mia_tuner", *_FSD, settings=("_lodo", "_pooled")))
    lodo_related: Literal["keep", "questions", "domain"] = choice(
        *_rows("sup_camia", "mia_tuner", *_FSD, settings=("_lodo",))
    )
    sup_camia_classifier: Literal["plain", "pca10", "group_pca", "group_pca_unscaled"] = choice(*_rows("sup_camia"))
    sup_camia_slices: Literal["aligned", "released"] = choice(*_rows("sup_camia"))
    training_tokens: int = choice(*_rows("mia_tuner", *_FSD), others=(128,))
    mia_tuner_loss: Literal["aligned", "unaligned"] = choice(*_rows("mia_tuner"))

    def fields(self) -> dict[str, Any]:
        """Every choice by name, without `preset`."""
        values = dataclasses.asdict(self)
        del values["preset"]
        return values

    def changed(self) -> dict[str, Any]:
        """The choices that differ from the preset: what a results file must name."""
        preset = load_protocol(self.preset).fields()
        return {name: value for name, value in self.fields().items() if value != preset[name]}


def load_protocol(preset: str = "audited", overrides: Mapping[str, Any] | None = None) -> Protocol:
    """Reads a preset and replaces single fields.

    Args:
        preset: `audited`, `paper` or `release`.
        overrides: field name to value, as text from the command line or already typed.

    Raises:
        UsageError: an unknown preset, field or value; the message lists what is allowed.
    """
    if preset not in PRESETS:
        raise one_of("protocol", preset, PRESETS)
    path = config_path("protocols", f"{preset}.yaml")
    values = load_yaml(path)
    fields = _fields()
    if not isinstance(values, dict) or set(values) != set(fields):
        raise UsageError(f"{path}: expected exactly the fields {', '.join(fields)}")
    for name, value in (overrides or {}).items():
        if name not in fields:
            raise one_of("protocol field", name, fields)
        values[name] = value
    return Protocol(preset=preset, **{name: _checked(fields[name], value) for name, value in values.items()})


def attacks_of(field: str) -> tuple[str, ...]:
    """Ids of the attacks a field bears on; empty if it bears on all."""
    return _fields()[field].metadata["attacks"]


def alternatives(field: str) -> tuple[Any, ...]:
    """Every value of a field that a comparison tries: all its words, or the presets' and some other numbers."""
    hint = get_type_hints(Protocol)[field]
    if hint is not int:
        return get_args(hint)
    presets = [getattr(load_protocol(preset), field) for preset in PRESETS]
    return tuple(dict.fromkeys([*presets, *_fields()[field].metadata["others"]]))


def _fields() -> dict[str, dataclasses.Field]:
    return {f.name: f for f in dataclasses.fields(Protocol) if f.name != "preset"}


def _checked(field: dataclasses.Field, value: Any) -> Any:
    name, hint = field.name, get_type_hints(Protocol)[field.name]
    if hint is int:
        least = field.metadata["least"]
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = least - 1
        if isinstance(value, (bool, float)) or number < least:
            raise UsageError(f"protocol field {name}: expected an integer of at least {least}, got {value!r}")
        return number
    if value not in get_args(hint):
        raise one_of(f"protocol field {name}", value, get_args(hint))
    return value
