"""The texts of a finished benchmark, as verification looks at them: raw lines, both splits, each variant for itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.benchmark import SPLITS, VARIANTS, Subset, Tree
from olmodetect_jax.errors import DataError, MissingFilesError
from olmodetect_jax.records import MEMBER, read_jsonl, scored_text


@dataclass(frozen=True)
class Line:
    """One record as it stands in its file.

    Attributes:
        name: its id, or its file and line.
        value: its fields.
        text: what is scored, stripped.
        split: dev or test.
        side: chosen or rejected file; empty where there is one.
        where: file and line.
    """

    name: str
    value: Mapping[str, Any]
    text: str
    split: str
    side: str
    where: str

    @property
    def own_text(self) -> str:
        """The text without what it shares with others by design: the exemplars of RLVR."""
        bare = self.value.get("text_no_cot")
        return bare if isinstance(bare, str) and bare.strip() else self.text


@dataclass(frozen=True)
class SubsetLines:
    """Both classes of one subset in one variant.

    Attributes:
        id: of the subset, with its size or pair of sizes where it has its own texts for each.
        subset: of the tree.
        variant: matched or shifted; matched for a subset that has no variants.
        members: dev and test.
        non_members: dev and test.
    """

    id: str
    subset: Subset
    variant: str
    members: tuple[Line, ...]
    non_members: tuple[Line, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        """The file pairs: chosen and rejected, or one without a name."""
        return tuple(dict.fromkeys(line.side for line in self.members))


def read_lines(root: Path, tree: Tree) -> list[SubsetLines]:
    """Reads every subset, size and variant that the folder holds, in the tree's order.

    Raises:
        MissingFilesError: a subset has some of its files and lacks others, or the folder holds none.
        DataError: a file cannot be read, a record has no text or is not valid Unicode, or a class has no record.
    """
    found, seen = [], set()
    for subset in tree.subsets:
        for size in tree.size_pairs if subset.sized else [None]:
            for variant in VARIANTS if subset.variants else VARIANTS[:1]:
                files = {
                    (path, label, side, split)
                    for split in SPLITS
                    for path, label, side in tree.paths(root, subset, split=split, variant=variant, size=size)
                }
                key = frozenset(path for path, *_ in files)
                members = [path for path, label, *_ in files if label == MEMBER]
                if key in seen or not any(path.is_file() for path in members):
                    continue
                seen.add(key)
                if missing := sorted(str(path) for path in key if not path.is_file()):
                    raise MissingFilesError(f"{root}: files of {subset.id} are missing:\n  " + "\n  ".join(missing))
                found.append(_subset_lines(subset, _id(subset, size, tree), variant, files))
    if not found:
        raise MissingFilesError(f"{root}: holds no file of any subset of {tree.title}")
    return found


def _id(subset: Subset, size: str | None, tree: Tree) -> str:
    if size is None:
        return subset.id
    paired = "{pair}" in subset.folder + "".join(subset.files)
    return f"{subset.id}_{tree.size_pairs[size] if paired else size}"


def _subset_lines(subset: Subset, name: str, variant: str, files: set[tuple[Path, int, str, str]]) -> SubsetLines:
    lines: dict[bool, list[Line]] = {True: [], False: []}
    for path, label, side, split in sorted(files, key=lambda f: (f[3], f[2], str(f[0]))):
        for number, value in read_jsonl(path):
            where = f"{path}, line {number}"
            _check_unicode(value, where)
            text = scored_text(value)
            if text is None:
                raise DataError(f"{where}: the record has no text")
            own_id = value.get("id")
            named = own_id if isinstance(own_id, str) and own_id.strip() else f"{path.name}:{number}"
            lines[label == MEMBER].append(Line(named, value, text, split, side, where))
    for member, found in lines.items():
        if not found:
            raise DataError(f"{name}: has no {'members' if member else 'non-members'}")
    return SubsetLines(name, subset, variant, tuple(lines[True]), tuple(lines[False]))


def _check_unicode(value: Mapping[str, Any], where: str) -> None:
    """JSON can spell half a character; no tokenizer, hash or file takes one."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the record holds a lone surrogate U+{ord(error.object[error.start]):04X}, which is not valid "
            "Unicode text; repair or remove the record"
        ) from None
