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
from olmodetect_jax.construction.matching import Class, match, member_class, non_member_class, shifted, texts_of
from olmodetect_jax.construction.pools import Encode, Pool, made_from, read_pool
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
        pools = {label_of(e, self.tree): self._pools(e) for e in entries}
        texts = {
            label: [texts_of(p.candidates, self.encode, dated=load_source(e.source).DATED) for p in pools[label]]
            for label, e in zip(pools, entries, strict=True)
        }
        wanted = targets(
            self.config.budget,
            {label: e.training_tokens for label, e in zip(pools, entries, strict=True)},
            {label: int(non_members.n_tokens.sum()) for label, (_, non_members) in texts.items()},
        )
        facts = {}
        for label, entry in zip(pools, entries, strict=True):
            chosen = self._choose(entry, label, *texts[label], wanted[label])
            self._write(entry, label, pools[label], texts[label], chosen, out)
            facts[label] = {
                "steps": {
                    name: p.steps.rows() for name, p in zip(("members", "non_members"), pools[label], strict=True)
                },
                "target_tokens": wanted[label],
                **chosen.facts(),
            }
        return facts

    def _pools(self, entry: SubsetConfig) -> tuple[Pool, Pool]:
        """Members, and the non-members that pass the filter."""
        label, choices, seed = label_of(entry, self.tree), self.config.chosen(), self.config.seed
        sizes = sizes_of(entry, self.tree, self.config.copies())
        base = [
            entry.model_dump(mode="json"), choices.model_dump(), seed, self.tokenizer_digest,
            made_from(entry.members.paths, self.sources), made_from(entry.non_members.paths, self.sources),
        ]  # fmt: skip
        found = []
        with self.progress(f"{label}: reading pools", 2, unit="pools") as advance:
            for member in (True, False):

                def read(member: bool = member) -> dict[str, Any]:
                    pool = read_pool(entry, member, self.sources, choices, seed=seed, encode=self.encode)
                    return pool.as_json()

                name = "members" if member else "non_members"
                found.append(Pool.from_json(self.stages.get(f"{label}/{name}", [name, *base], read)))
                advance(1)
        members, non_members = found

        def kept() -> dict[str, Any]:
            rest = drop_members(non_members, members)
            if self.filter is not None:
                with self.progress(f"{label}: 13-gram filter", len(rest.candidates), unit="texts") as advance:
                    rest, found = self.filter.keep(rest, sizes, short_text=entry.short_text, report=advance)
                write_records(self.stages.folder / label / OVERLAPS, found)
            return rest.as_json()

        described = None if self.filter is None else self.filter.description(sizes)
        return members, Pool.from_json(self.stages.get(f"{label}/kept", ["kept", *base, described], kept))

    def _choose(self, entry: SubsetConfig, label: str, members: Texts, pool: Texts, target: int) -> Chosen:
        config, seed = self.config, self.config.seed
        positions = fill(pool, target, min_records=entry.min_records, seed=seed, name=label)
        non_members = pool.take(positions)
        settings, choices = config.annealing, config.chosen()
        described = ["matched", settings.model_dump(), choices.model_dump(), seed, list(members.keys), non_members.keys]
        with self.progress(f"{label}: annealing", settings.steps, unit="steps") as advance:
            matched = self.stages.get(
                f"{label}/matched", [*described, self.tokenizer_digest],
                lambda: match(members, non_members, settings, choices, seed=seed, name=label, report=advance),
            )  # fmt: skip
        others = non_member_class(pool, positions, seed=seed, name=label)

        def of_members(chosen: np.ndarray) -> Class:
            return member_class(members, chosen, others, seed=seed, name=label)

        variants = {"matched": of_members(np.asarray(matched["chosen"]))}
        if config.shifted and subset_of(entry, self.tree).variants:
            variants["shifted"] = of_members(
                shifted(members, non_members, margin=settings.margin, seed=seed, name=label)
            )
        return Chosen(others, variants, {k: v for k, v in matched.items() if k != "chosen"})

    def _write(
        self, entry: SubsetConfig, label: str, pools: tuple[Pool, Pool], texts: list[Texts], chosen: Chosen, out: Path
    ) -> None:
        subset = subset_of(entry, self.tree)
        classes = [("matched", NON_MEMBER, chosen.non_members)]
        classes += [(variant, MEMBER, found) for variant, found in chosen.members.items()]
        for variant, label_id, found in classes:
            member = label_id == MEMBER
            pool, known = (pools[0], texts[0]) if member else (pools[1], texts[1])
            for split in SPLITS:
                positions = found.part(split)
                order = shuffled([known.keys[i] for i in positions], self.config.seed, f"lines/{label}")
                lines = [pool.candidates[positions[i]] for i in order]
                for part in lines[0].files:
                    path = self.tree.path(
                        out, subset, file_of(subset, part), label_id, split=split, variant=variant, size=entry.size
                    )
                    write_records(path, (c.files[part] for c in lines))


@dataclass(frozen=True)
class Chosen:
    """The texts of one subset.

    Attributes:
        non_members: the same for every variant.
        members: by variant.
        annealing: what the annealing found: losses, gap, accepted swaps.
    """

    non_members: Class
    members: Mapping[str, Class]
    annealing: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """Counts and losses for the recipe."""
        members = {f"members_{variant}": found.facts() for variant, found in self.members.items()}
        return {"non_members": self.non_members.facts(), **members, "annealing": dict(self.annealing)}
