"""Names of the released layout: which file holds which attack, and whose a folder is (released layout, 1, 2 and 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.em_mia import BASES
from olmodetect_jax.attacks.supervised import LODO, row_id
from olmodetect_jax.benchmark import SIZES, VARIANTS, Tree
from olmodetect_jax.errors import DataError
from olmodetect_jax.records import MEMBER, NON_MEMBER

_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
RESULTS, RESULTS_LODO, EMMIA = "results", "results_lodo", "emmia"
PAIR = "pair"  # side of the DPO files that hold a score a prompt

# File stem to the rows it holds: row id to field of a sample.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "loss_zlib_lowercase": {"ppl": "loss_score", "zlib": "zlib_score", "lower": "lowercase_score"},
    "minkprob": {"min_k": "min_k_prob_mean_logprob", "min_k_plus_plus": "min_k_pp_score"},
    "dcpdd": {"dc_pdd": "dc_pdd_score"},
    "recall": {"recall": "recall_score"},
    "camia_faithful": {"camia": "camia_faithful_score"},
    "camia_lr": {"sup_camia": "camia_lr_score"},
    "pac": {"pac": "pac_score"},
    "neighborhood_attack": {"neighborhood": "score"},
    "guided_instruction": {"guided": "score"},
    "dcq": {"dcq": "score"},
    "cdd": {"cdd": "peak"},
    "selfcrit": {"self_critique": "self_critique_score"},
    "mia_tuner": {"mia_tuner": "mia_tuner_score"},
    "fsd": {
        "fsd_ppl": "fsd_loss_score", "fsd_zlib": "fsd_zlib_score", "fsd_lower": "fsd_lowercase_score",
        "fsd_min_k": "fsd_mink_score", "fsd_min_k_plus_plus": "fsd_minkpp_score",
    },
}  # fmt: skip
BASE_COLUMNS = {
    "fsd_ppl": "base_loss", "fsd_zlib": "base_zlib", "fsd_lower": "base_lowercase", "fsd_min_k": "base_mink",
    "fsd_min_k_plus_plus": "base_minkpp",
}  # fmt: skip
COPIES = {"camia_faithful": ("camia_score", "score"), "camia_lr": ("camia_score",)}  # further fields of the same value
WITHOUT_HASH = frozenset({"neighborhood_attack", "guided_instruction", "dcq", "cdd"})
WITH_LABEL = frozenset({"dcpdd", "neighborhood_attack", "guided_instruction", "dcq", "cdd"})  # always null
HASH_LAST = frozenset({"loss_zlib_lowercase"})
LODO_STEMS = ("fsd", "mia_tuner")
LODO_AUCS = "camia_lr"  # folder of `results_lodo` that holds AUCs alone
INITS = BASES  # names of EMMIA's base scores in its files


@dataclass(frozen=True)
class Side:
    """One class of one file of a subset.

    Attributes:
        subset: subset id.
        label: the class.
        side: which of a subset's several files, else empty; `PAIR` for a score a prompt.
        variant: matched or shifted; None for non-members and for subsets without variants.
        benchmark: its file, from the benchmark's root.
        size: the model size it is for; None for all, which only holds for subsets that are not sized.
    """

    subset: str
    label: int
    side: str
    variant: str | None
    benchmark: Path
    size: str | None


def sides(tree: Tree) -> Mapping[tuple[str, str | None], Side]:
    """(side folder, size or None) to what it is, of the test split."""
    found: dict[tuple[str, str | None], Side] = {}
    for subset in tree.subsets:
        for size in SIZES if subset.sized else (None,):
            files = [(file, file.format(size=size, pair=tree.size_pairs.get(size or ""))) for file in subset.files]
            if len(files) > 1:
                files.append((f"{_stem(subset.files[0])}_{PAIR}", PAIR))
            for file, name in files:
                for label in (MEMBER, NON_MEMBER):
                    for variant in VARIANTS if subset.variants and label == MEMBER else (None,):
                        path = tree.path(
                            Path(), subset, file, label, split="test", variant=variant or "matched", size=size
                        )
                        folder = path.stem.removesuffix("_test")
                        side = PAIR if name == PAIR else name if len(subset.files) > 1 else ""
                        found[folder, size] = Side(subset.id, label, side, variant, path, size)
    return found


def _stem(file: str) -> str:
    return file.rsplit("_", 1)[0]


def side_of(tree: Tree, folder: str, size: str | None) -> Side | None:
    """Whose a side folder's scores of a model of a size are; None for a folder of no subset, or of another size."""
    known = sides(tree)
    return known.get((folder, None)) or (known.get((folder, size)) if size else None)


def folder_name(model: str, where: str) -> str:
    """A model's name, which becomes a folder's.

    Args:
        model: the name.
        where: what holds it, for the message.

    Raises:
        DataError: it could lead out of its folder.
    """
    if not _NAME.fullmatch(model):
        raise DataError(f"{where}: model {model!a}: expected letters, digits and . _ + - only, the first no dot")
    return model


def rows_of(stem: str, *, lodo: bool) -> dict[str, str]:
    """Our row ids of a file's columns: those of `results_lodo` were trained with the domain left out."""
    return {row_id(row, LODO) if lodo else row: column for row, column in COLUMNS[stem].items()}


def emmia_tags(tree: Tree, size: str) -> dict[str, tuple[str, str, str]]:
    """EMMIA's test tags of a model size to (subset id, side, variant), the irregular ones among them."""
    tags: dict[str, tuple[str, str, str]] = {}
    for subset in tree.subsets:
        for file in subset.files:
            name = file.format(size=size, pair=tree.size_pairs[size])
            side = name if len(subset.files) > 1 else ""
            for variant in VARIANTS if subset.variants else ("matched",):
                tags[f"{name}_{variant}"] = (subset.id, side, variant)
    # A subsample whose texts were not released.
    tags["midtraining_stackexchange_stackoverflow_shifted_sub300"] = ("se_stackoverflow", "", "shifted")
    return tags
