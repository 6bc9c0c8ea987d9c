"""From a configuration to a benchmark: pools, filter, budget, annealing, splits, files (construction spec)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.benchmark import SPLITS, Tree
from olmodetect_jax.construction.budget import fill, targets
from olmodetect_jax.construction.candidates import Texts, shuffled
from olmodetect_jax.construction.config import BuildConfig, SubsetConfig
from olmodetect_jax.construction.filtering import Filter, drop_members
from olmodetect_jax.construction.layout import file_of, label_of, sizes_of, subset_of, write_records
from olmodetect_jax.construction.matching import Class, match, member_class, non_member_class, texts_of
from olmodetect_jax.construction.pools import (
    Encode,
    Pool,
    SideName,
    files_of_options,
    made_from,
    read_pool,
    side_of,
)
from olmodetect_jax.construction.shifted import draw_shifted
from olmodetect_jax.construction.sources.registry import load_source
from olmodetect_jax.construction.stages import Stages
from olmodetect_jax.records import MEMBER, NON_MEMBER

OVERLAPS = "overlaps.jsonl"  # beside a subset's finished steps: which passages of its non-members were trained on

Progress = Callable[..., AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Builder:
    """What every step of a build needs.

    Attributes:
        config: the configuration.
        tree: of the benchmark.
        sources: folder that relative paths of the configuration start from.
        encode: texts to ids.
        tokenizer_digest: of the tokenizer behind `encode`.
        filter: the 13-gram filter; None if the configuration has no index.
        stages: what is finished.
        progress: shows how far a step is.
    """

    config: BuildConfig
    tree: Tree
    sources: Path
    encode: Encode
    tokenizer_digest: str
    filter: Filter | None
    stages: Stages
    progress: Progress

    def run(self, out: Path) -> dict[str, Any]:
        """Writes every subset's files below `out`.

        Returns:
            The recipe's facts of each subset: steps, counts, tokens, losses.

        Raises:
            OlmoDetectError: a source, a pool or a margin that cannot be met; names the subset.
        """
        facts = {}
        for _, group in itertools.groupby(sorted(self.config.subsets, key=self._domain), key=self._domain):
            facts |= self._domain_files(list(group), out)
        return facts

    def _domain(self, entry: SubsetConfig) -> tuple[str, str]:
        """Subsets that share a budget: of one domain, and of one size if they have texts for each."""
        return subset_of(entry, self.tree).domain, entry.size or ""

    def _domain_files(self, entries: list[SubsetConfig], out: Path) -> dict[str, Any]:
        labels = [label_of(entry, self.tree) for entry in entries]
        pools = [self._pools(entry, label) for entry, label in zip(entries, labels, strict=True)]
        wanted = targets(
            self.config.budget,
            {label: entry.training_tokens for label, entry in zip(labels, entries, strict=True)},
            {label: int(own["non-members"].texts.n_tokens.sum()) for label, own in zip(labels, pools, strict=True)},
        )
        facts = {}
        for label, entry, own in zip(labels, entries, pools, strict=True):
            classes, annealing = self._choose(entry, label, own, wanted[label])
            for chosen in classes:
                self._write(entry, label, chosen, out)
            facts[label] = {
                "steps": {name.replace("-", "_"): known.pool.steps.rows() for name, known in own.items()},
                "target_tokens": wanted[label],
                "undated": {
                    name.replace("-", "_"): int(np.isnan(known.texts.days).sum()) for name, known in own.items()
                },
                **{chosen.name: chosen.texts.facts() for chosen in classes},
                "annealing": annealing,
            }
        return facts

    def _pools(self, entry: SubsetConfig, label: str) -> dict[SideName, Known]:
        """Members, non-members that pass the filter, and what shifted members are drawn from if they are wanted."""
        names: list[SideName] = ["members", "non-members"]
        if self.config.shifted and subset_of(entry, self.tree).variants:
            names.append("shifted members")
        with self.progress(f"{label}: reading pools", len(names), unit="pools") as advance:
            read = {}
            for name in names:
                read[name] = self._pool(entry, label, name)
                advance(1)
        pools = {name: pool for name, (pool, _) in read.items()}
        pools["non-members"] = self._kept(entry, label, pools, [described for _, described in read.values()])
        dated = load_source(entry.source).DATED
        return {n: Known(pool, texts_of(pool.candidates, self.encode, dated=dated)) for n, pool in pools.items()}

    def _pool(self, entry: SubsetConfig, label: str, name: SideName) -> tuple[Pool, list[Any]]:
        """One class as its source gives it, and what it was made from."""
        choices, seed, own = self.config.chosen(), self.config.seed, side_of(entry, name)
        described = [
            name, entry.source, entry.options, own.model_dump(mode="json"), choices.model_dump(), seed,
            self.tokenizer_digest, made_from(own.paths, self.sources), files_of_options(entry, name, self.sources),
        ]  # fmt: skip
        kept = self.stages.get(
            f"{label}/{name.replace(' ', '_')}", described,
            lambda: read_pool(entry, name, self.sources, choices, seed=seed, encode=self.encode).as_json(),
        )  # fmt: skip
        return Pool.from_json(kept), described

    def _kept(self, entry: SubsetConfig, label: str, pools: Mapping[SideName, Pool], described: list[Any]) -> Pool:
        """The non-members that no pool of members holds and that the filter lets pass."""
        sizes = sizes_of(entry, self.tree, self.config.copies())

        def kept() -> dict[str, Any]:
            rest = drop_members(pools["non-members"], [p for name, p in pools.items() if name != "non-members"])
            if self.filter is not None:
                with self.progress(f"{label}: 13-gram filter", len(rest.candidates), unit="texts") as advance:
                    rest, found = self.filter.keep(rest, sizes, short_text=entry.short_text, report=advance)
                write_records(self.stages.folder / label / OVERLAPS, found)
            return rest.as_json()

        filtered = None if self.filter is None else self.filter.description(sizes)
        return Pool.from_json(self.stages.get(f"{label}/kept", [described, entry.short_text, filtered], kept))

    def _choose(
        self, entry: SubsetConfig, label: str, pools: Mapping[SideName, Known], target: int
    ) -> tuple[list[Chosen], dict[str, Any]]:
        """The classes of a subset, and what the annealing found."""
        config, seed, members, others = self.config, self.config.seed, pools["members"], pools["non-members"]
        positions = fill(others.texts, target, min_records=entry.min_records, seed=seed, name=label)
        non_members = others.texts.take(positions)
        settings, choices = config.annealing, config.chosen()
        described = [
            settings.model_dump(), choices.model_dump(), seed, self.tokenizer_digest,
            *([texts.keys, texts.days.tolist()] for texts in (members.texts, non_members)),
        ]  # fmt: skip
        with self.progress(f"{label}: annealing", settings.steps, unit="steps") as advance:
            matched = self.stages.get(
                f"{label}/matched", described,
                lambda: match(members.texts, non_members, settings, choices, seed=seed, name=label, report=advance),
            )  # fmt: skip
        found = non_member_class(others.texts, positions, seed=seed, name=label)
        classes = [Chosen("non_members", "matched", NON_MEMBER, others, found)]
        drawn = {"matched": (members, np.asarray(matched["chosen"]))}
        if shifted := pools.get("shifted members"):
            tokens = int(non_members.n_tokens.sum())
            drawn["shifted"] = (
                shifted,
                draw_shifted(shifted.texts, len(positions), tokens, margin=settings.margin, seed=seed, name=label),
            )
        for variant, (known, chosen) in drawn.items():
            own = member_class(known.texts, chosen, found, seed=seed, name=label)
            classes.append(Chosen(f"members_{variant}", variant, MEMBER, known, own))
        return classes, {name: value for name, value in matched.items() if name != "chosen"}

    def _write(self, entry: SubsetConfig, label: str, chosen: Chosen, out: Path) -> None:
        subset, keys = subset_of(entry, self.tree), chosen.known.texts.keys
        for split in SPLITS:
            positions = chosen.texts.part(split)
            order = shuffled([keys[i] for i in positions], self.config.seed, f"lines/{label}")
            lines = [chosen.known.pool.candidates[positions[i]] for i in order]
            for part in lines[0].files:
                path = self.tree.path(
                    out,
                    subset,
                    file_of(subset, part),
                    chosen.label,
                    split=split,
                    variant=chosen.variant,
                    size=entry.size,
                )
                write_records(path, (candidate.files[part] for candidate in lines))


@dataclass(frozen=True, eq=False)
class Known:
    """A pool, and what annealing, budget and splits know of it, in the same order."""

    pool: Pool
    texts: Texts


@dataclass(frozen=True, eq=False)
class Chosen:
    """One class of a subset as it is written.

    Attributes:
        name: in the recipe.
        variant: matched or shifted; non-members are the same for both.
        label: member or non-member.
        known: what it was chosen from.
        texts: which ones.
    """

    name: str
    variant: str
    label: int
    known: Known
    texts: Class
