"""The benchmark's tree (subset → domain → stage) as data, and where its files lie in the released layout."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import MissingFilesError, UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, read_records

SPLITS = ("dev", "test")
VARIANTS = ("matched", "shifted")
_SAFE = re.compile(r"[A-Za-z0-9_.{}-]+(/[A-Za-z0-9_.{}-]+)*")
SIZES = ("1b", "7b", "13b", "32b")


def model_size(name: str) -> str | None:
    """The size (`1b`, `7b`, `13b`, `32b`) that a model directory's name states for an OLMo 2 model, or None.

    Both the hub's names (`OLMo-2-0425-1B-Instruct`) and those of the released scores (`OLMo2-1B-Instruct`) count.
    """
    match = re.search(r"olmo-?2\b.*?-(1|7|13|32)b\b", name.lower())
    return f"{match[1]}b" if match else None


@dataclass(frozen=True)
class Subset:
    """One of the finest groups. `folder` and `files` may hold `{size}` and `{pair}` (construction spec, section 1).

    `representative` are those of `files` that stand for the domain where one leaf has to (supervised spec, 3.3).
    """

    id: str
    title: str
    domain: str
    stage: str
    folder: str
    files: tuple[str, ...]
    variants: bool
    representative: tuple[str, ...]

    @property
    def sized(self) -> bool:
        """Whether it has its own texts for each model size."""
        return "{" in self.folder + "".join(self.files)

    def stands_for_domain(self, side: str, size_pairs: Mapping[str, str]) -> bool:
        """Whether records of a side are of a representative file; of no side, where there is one file only, all are.

        Args:
            side: a record's.
            size_pairs: the tree's.
        """
        if not side or len(self.files) == 1:
            return True
        names = {f.format(size=size, pair=pair) for f in self.representative for size, pair in size_pairs.items()}
        return side in names


@dataclass(frozen=True)
class Tree:
    """The subsets of one benchmark in order, with the titles of their domains and stages.

    `training_order` are the same subsets in the order of their texts in a training set. `ablations` belong to a domain
    but are no part of the benchmark: only the released training pools hold their development texts.
    """

    name: str
    title: str
    subsets: tuple[Subset, ...]
    domain_titles: Mapping[str, str]
    stage_titles: Mapping[str, str]
    size_pairs: Mapping[str, str]
    training_order: tuple[Subset, ...]
    ablations: tuple[Subset, ...]

    def select(self, ids: Sequence[str] | None) -> tuple[Subset, ...]:
        """The named subsets in the tree's order; all for None.

        Raises:
            UsageError: an id that is not in the tree.
        """
        known = [s.id for s in self.subsets]
        for name in ids or ():
            if name not in known:
                raise one_of("subset", name, known)
        return tuple(s for s in self.subsets if ids is None or s.id in ids)

    def paths(
        self, root: Path, subset: Subset, *, split: str, variant: str, size: str | None
    ) -> list[tuple[Path, int, str]]:
        """(file, label, side) of every file of a subset, members first.

        Raises:
            UsageError: the subset depends on the model's size and none was given.
        """
        names = self._names(subset, size)
        return [
            (
                self.path(root, subset, file, label, split=split, variant=variant, size=size),
                label,
                file.format(**names) if len(subset.files) > 1 else "",
            )
            for label in (MEMBER, NON_MEMBER)
            for file in subset.files
        ]

    def path(
        self, root: Path, subset: Subset, file: str, label: int, *, split: str, variant: str, size: str | None
    ) -> Path:
        """Where one class of one file of a subset lies; non-members are the same for both variants.

        Raises:
            UsageError: the subset depends on the model's size and none was given.
        """
        names = self._names(subset, size)
        name = file.format(**names)
        folder = root / subset.folder.format(**names)
        if label == NON_MEMBER:
            return folder / "non-member" / split / f"non-member_{name}_{split}.jsonl"
        below, suffix = (Path(variant), f"_{variant}") if subset.variants else (Path(), "")
        return folder / "member" / below / split / f"member_{name}{suffix}_{split}.jsonl"

    def _names(self, subset: Subset, size: str | None) -> dict[str, str | None]:
        if subset.sized and size not in self.size_pairs:
            raise UsageError(
                f"subset {subset.id} has its own texts for each model size: give --size, one of "
                f"{', '.join(self.size_pairs)}"
            )
        return {"size": size, "pair": self.size_pairs.get(size or "")}


def load_tree(name: str) -> Tree:
    """Reads `configs/benchmark/<name>.yaml`.

    Raises:
        UsageError: no such tree, or a file that does not describe one.
    """
    known = sorted(p.stem for p in config_path("benchmark").glob("*.yaml"))
    if name not in known:
        raise one_of("benchmark tree", name, known)
    path = config_path("benchmark", f"{name}.yaml")
    return parse_tree(load_yaml(path), path)


def parse_tree(value: Any, where: Path) -> Tree:
    """The tree that a mapping describes.

    Args:
        value: as in a file of `configs/benchmark`.
        where: the file it comes from, for messages.

    Raises:
        UsageError: it describes none.
    """
    try:
        return _tree(value)
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{where}: not a benchmark tree: {error!r}") from None


def _tree(value: Any) -> Tree:
    subsets, ablations, domains, stages = [], [], {}, {}
    for stage in value["stages"]:
        stages[stage["id"]] = stage["title"]
        for domain in stage["domains"]:
            domains[domain["id"]] = domain["title"]
            subsets += [_subset(s, domain["id"], stage["id"]) for s in domain["subsets"]]
            ablations += [_subset(s, domain["id"], stage["id"]) for s in domain.get("ablations", ())]
    by_id = {s.id: s for s in subsets}
    order = tuple(by_id[name] for name in value.get("training_order", by_id))
    if len(order) != len(subsets) or set(order) != set(subsets):
        raise KeyError("training_order: does not name every subset once")
    return Tree(
        value["name"], value["title"], tuple(subsets), domains, stages, value["size_pairs"], order, tuple(ablations)
    )


def _subset(value: Any, domain: str, stage: str) -> Subset:
    for name in (value["id"], domain, stage, value["folder"], *value["files"]):  # they become parts of paths
        if not _SAFE.fullmatch(name) or ".." in name:
            raise KeyError(f"{name}: expected letters, digits, and _ - . only")
    files = tuple(value["files"])
    representative = tuple(value.get("representative", files))
    if not set(representative) <= set(files):
        raise KeyError(f"representative: {value['id']} has no such file")
    return Subset(value["id"], value["title"], domain, stage, value["folder"], files, value["variants"], representative)


def tree_from(value: Any, where: Path) -> Tree:
    """The tree that a value names (a string) or describes (a mapping).

    Raises:
        UsageError: no such tree, or no description of one.
    """
    return parse_tree(value, where) if isinstance(value, dict) else load_tree(value)


def tree_of(root: Path) -> Tree:
    """The tree of a benchmark folder; see `tree_entry`."""
    return tree_from(tree_entry(root), root / "benchmark.yaml")


def tree_entry(root: Path) -> str | dict[str, Any]:
    """The name or the description of a benchmark folder's tree, from its `benchmark.yaml`; else the paper's name.

    Raises:
        UsageError: the folder does not exist, or its `benchmark.yaml` holds neither.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such benchmark folder")
    marker = root / "benchmark.yaml"
    if not marker.exists():
        return "olmo2"
    value = load_yaml(marker)
    tree = value.get("tree") if isinstance(value, dict) else None
    if not isinstance(tree, (str, dict)):
        raise UsageError(f"{marker}: expected one field, tree: NAME, or a tree as `olmodetect build` writes it")
    return tree


def read_benchmark(
    root: Path, tree: Tree, subsets: Sequence[Subset], *, split: str, variant: str, size: str | None
) -> dict[str, list[Record]]:
    """Records of each subset, members first, in file order.

    Raises:
        UsageError: unknown split or variant, or a size is needed.
        MissingFilesError: files are missing; all are listed.
        DataError: a file cannot be read.
    """
    if split not in SPLITS:
        raise one_of("split", split, SPLITS)
    if variant not in VARIANTS:
        raise one_of("variant", variant, VARIANTS)
    single = [s.id for s in subsets if variant == "shifted" and not s.variants]
    if single:
        raise UsageError(f"variant shifted: {', '.join(single)} have no such variant; choose others with --subsets")
    files = {s.id: tree.paths(root, s, split=split, variant=variant, size=size) for s in subsets}
    missing = [str(p) for paths in files.values() for p, _, _ in paths if not p.is_file()]
    if missing:
        raise MissingFilesError(
            f"{root}: {len(missing)} benchmark files are missing (choose others with --subsets):\n  "
            + "\n  ".join(missing)
        )
    return {
        name: [r for path, label, side in paths for r in read_records(path, subset=name, label=label, side=side)]
        for name, paths in files.items()
    }
