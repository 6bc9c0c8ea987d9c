"""The configuration of `olmodetect build`: one YAML file, checked field by field before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from olmodetect_jax.construction.choices import PRESETS, Choices, preset
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import load_yaml

M = TypeVar("M", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nearest(_Part):
    """How much of a pool the paper's boundary rule takes: nearest to the threshold first (section 3)."""

    records: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Side(_Part):
    """One class of a subset.

    Attributes:
        paths: files, folders, or `hub:REPO[@REVISION]/GLOB`; relative ones are taken from the configuration's folder.
        options: of the source, over those of the subset.
        limit: at most so many candidates, drawn by hash; the whole pool if left out.
        nearest: needed where the boundary is `closest`.
    """

    paths: tuple[str, ...] = Field(min_length=1)
    options: dict[str, Any] = {}
    limit: int | None = Field(None, ge=1)
    nearest: Nearest | None = None


class SubsetConfig(_Part):
    """One subset: where its candidates come from and how much of them is wanted.

    Attributes:
        id: of the subset in the tree, or a new one where the configuration names no tree.
        source: `olmodetect_jax/construction/sources` has them.
        size: the model size whose files these are, for subsets that have their own texts for each size.
        sizes: model sizes whose indices non-members must not be in; by default those that share the files.
        shifted: where shifted members come from; all rows of the members' paths if left out, without a boundary rule.
        title: of the subset; only without a tree.
        training_tokens: its share of the domain's budget is in proportion; needed where a domain has several subsets.
        min_records: fewer non-members are an error.
        short_text: what a text of fewer tokens than a window gets: out of the pool, or an overlap of zero.
        options: of the source, for both classes.
    """

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    source: str
    members: Side
    non_members: Side
    size: str | None = None
    sizes: tuple[str, ...] | None = None
    shifted: Side | None = None
    title: str | None = None
    training_tokens: int = Field(1, ge=1)
    min_records: int = Field(2, ge=2)
    short_text: Literal["reject", "zero"] = "reject"
    options: dict[str, Any] = {}


class Prepared(_Part):
    """An infini-gram index that others made, as its documentation has it."""

    path: str
    token_dtype: Literal["u16", "u32"]
    eos: int = Field(ge=0)
    vocabulary: int = Field(ge=1)


class Index(_Part):
    """One index of what the model was trained on; exactly one of corpus, path, scan, prepared and remote.

    Attributes:
        corpus: files or folders of documents to index.
        backend: of that index.
        path: an index made by `olmodetect index`.
        scan: folder of a finished corpus scan (`scripts/scan_corpus.py`).
        prepared: an infini-gram index that others made.
        remote: name of an index at the service that `INFINI_GRAM_URL` names.
        asked_with: ids or text, of a remote index.
        rate: queries a second to the service.
    """

    corpus: tuple[str, ...] = ()
    backend: Literal["builtin", "infini-gram"] = "builtin"
    path: str | None = None
    scan: str | None = None
    prepared: Prepared | None = None
    remote: str | None = None
    asked_with: Literal["ids", "text"] = "ids"
    rate: float = Field(5.0, gt=0)


class Overlap(_Part):
    """The 13-gram filter (section 4).

    Attributes:
        n: tokens of a window.
        threshold: a text is kept if strictly less than this share of its windows occurs.
    """

    n: int = Field(13, ge=2, le=64)
    threshold: float = Field(0.2, gt=0, le=1)


class Annealing(_Part):
    """Matching of members (section 7)."""

    steps: int = Field(10_000_000, ge=1)
    margin: int = Field(250, ge=0)
    start_temperature: float = Field(1e-3, gt=0)
    factor: float = Field(0.999995, gt=0, le=1)


class BuildConfig(_Part):
    """A whole benchmark.

    Attributes:
        tree: of `configs/benchmark`; without one, every subset is a domain of its own.
        title: of a benchmark without a tree.
        tokenizer: folder of the `tokenizer.json` that tokens are counted, matched and indexed with.
        preset: of the choices.
        choices: single ones, over the preset.
        seed: of every draw.
        memory_gb: bound for building and reading an index.
        indices: by name.
        sizes: by model size, how often each index was trained on; one size with all indices if left out.
        budget: tokens of each class in a domain.
        shifted: whether a second set of members is drawn at random, for subsets that have the variant.
    """

    tree: str | None = None
    title: str = "My benchmark"
    tokenizer: str
    preset: Literal["audited", "paper", "release"] = "audited"
    choices: dict[str, Any] = {}
    seed: int = Field(42, ge=0)
    memory_gb: float = Field(2.0, gt=0)
    indices: dict[str, Index]
    sizes: dict[str, dict[str, int]] | None = None
    overlap: Overlap = Overlap()
    budget: int = Field(ge=1)
    annealing: Annealing = Annealing()
    shifted: bool = False
    subsets: tuple[SubsetConfig, ...] = Field(min_length=1)

    def chosen(self) -> Choices:
        """The preset's choices with the configuration's own."""
        return Choices.model_validate(PRESETS[self.preset].model_dump() | self.choices)

    def copies(self) -> dict[str, dict[str, int]]:
        """By model size, the copies of each index."""
        return self.sizes if self.sizes is not None else {"all": dict.fromkeys(self.indices, 1)}


def load_build_config(path: Path) -> BuildConfig:
    """Reads and checks a configuration.

    Raises:
        UsageError: names every field that is wrong, and what was expected.
    """
    value = load_yaml(path)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected fields (tokenizer, indices, budget, subsets, ...), found {value!r}")
    config = validated(BuildConfig, value, str(path))
    validated(Choices, preset(config.preset).model_dump() | config.choices, f"{path}: choices")
    _check_indices(config, path)
    return config


def validated(model: type[M], value: dict[str, Any], where: str) -> M:
    """A model from plain values.

    Raises:
        UsageError: one line a wrong field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'all'}: {_message(e, model)}" for e in error.errors()]
        raise UsageError(f"{where}: {len(lines)} wrong fields:\n" + "\n".join(lines)) from None


def _message(error: Any, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        return f"no such field; there are {', '.join(model.model_fields)}"
    found = f" (found {error['input']!r})" if isinstance(error["input"], str | int | float | None) else ""
    return error["msg"] + found


def _check_indices(config: BuildConfig, path: Path) -> None:
    for name, index in config.indices.items():
        given = (index.corpus or None, index.path, index.scan, index.prepared, index.remote)
        if sum(value is not None for value in given) != 1:
            raise UsageError(f"{path}: indices.{name}: give exactly one of corpus, path, scan, prepared and remote")
    for size, copies in config.copies().items():
        unknown = sorted(set(copies) - set(config.indices))
        if unknown:
            raise UsageError(f"{path}: sizes.{size}: no such index: {', '.join(unknown)}")
    for subset in config.subsets:
        unknown = sorted(set(subset.sizes or ()) - set(config.copies()))
        if unknown:
            raise UsageError(f"{path}: subset {subset.id}: sizes: no such size: {', '.join(unknown)}")
