"""All of the sample's data, made from the source documents: tokenizer, training texts, reference texts, pools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.sample.candidates import Candidate, make_candidates
from olmodetect_jax.sample.pools import (
    MAX_TOKENS,
    MIN_POOL,
    MIN_TOKENS,
    NGRAM,
    SHARES,
    Pools,
    drop_overlapping,
    limit_lengths,
    split_parts,
)
from olmodetect_jax.sample.seeding import SEED
from olmodetect_jax.sample.sources import SUBSETS, read_documents, source_path
from olmodetect_jax.sample.tokenizer import VOCABULARY, count_tokens, train_tokenizer

TREE = "sample"


@dataclass(frozen=True)
class SampleData:
    """What the embedded model is trained on and what it is asked about.

    Attributes:
        tokenizer: content of `tokenizer.json`.
        pools: each subset's texts by the part they play.
        counts: by subset, what was seen, kept, dropped and moved.
        source_digests: SHA-256 of each subset's source documents.
    """

    tokenizer: str
    pools: Mapping[str, Pools]
    counts: Mapping[str, Mapping[str, int]]
    source_digests: Mapping[str, str]

    @property
    def stages(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(stage id, training texts) in the order of training; texts by subset, then by id."""
        tree = load_tree(TREE)
        return tuple(
            (stage, tuple(c.text for s in tree.subsets if s.stage == stage for c in self.pools[s.id].members))
            for stage in tree.stage_titles
        )

    @property
    def reference_texts(self) -> tuple[str, ...]:
        """Texts of the same sources that are in neither class and never trained on; by subset, then by id."""
        return tuple(c.text for subset in SUBSETS for c in self.pools[subset].reference)

    def digests(self) -> dict[str, str]:
        """SHA-256, hex, of every part: sources, tokenizer, training texts of each stage, reference and records."""
        parts = {f"sources/{subset}": digest for subset, digest in self.source_digests.items()}
        parts["tokenizer"] = hashlib.sha256(self.tokenizer.encode("utf-8")).hexdigest()
        parts |= {f"training/{stage}": _digest(texts) for stage, texts in self.stages}
        parts["reference"] = _digest(self.reference_texts)
        for subset, pools in self.pools.items():
            for name, part in (("members", pools.members), ("non_members", pools.non_members)):
                parts[f"pools/{subset}/{name}"] = _digest(pool_record(c) for c in part)
        return parts

    def recipe(self) -> dict[str, Any]:
        """Settings, counts and digests, as they are kept beside the sample."""
        settings = {
            "seed": SEED,
            "vocabulary": VOCABULARY,
            "min_tokens": MIN_TOKENS,
            "max_tokens": MAX_TOKENS,
            "overlap_words": NGRAM,
            "min_pool": MIN_POOL,
            "shares": SHARES,
        }
        return {"settings": settings, "counts": self.counts, "digests": self.digests()}


def build_data(sources: Path) -> SampleData:
    """Makes the data from the source documents; the same documents, in any order, give the same data.

    Args:
        sources: folder with one `<subset>.jsonl.zst` a subset.

    Raises:
        DataError: a source file is missing or unreadable, or too few texts are left in a class.
    """
    documents = {subset: read_documents(source_path(sources, subset)) for subset in SUBSETS}
    candidates = {subset: make_candidates(subset, documents[subset]) for subset in SUBSETS}
    kept, overlapping = drop_overlapping(c for subset in SUBSETS for c in candidates[subset])
    parts = {s: split_parts(s, [c for c in kept if c.subset == s]) for s in SUBSETS}
    tokenizer = train_tokenizer(c.text for p in parts.values() for c in (*p.members, *p.reference))

    pools, counts = {}, {}
    for subset in SUBSETS:
        texts = parts[subset].texts
        n_tokens = dict(zip((c.id for c in texts), count_tokens(tokenizer, [c.text for c in texts]), strict=True))
        pools[subset] = limit_lengths(parts[subset], n_tokens)
        counts[subset] = {
            "documents": len(documents[subset]),
            "candidates": len(candidates[subset]),
            "dropped_overlap": overlapping[subset],
            **_length_counts(parts[subset], pools[subset]),
            "training_tokens": sum(n_tokens[c.id] for c in pools[subset].members),
            "reference_tokens": sum(n_tokens[c.id] for c in pools[subset].reference),
        }
    digests = {s: _digest([[d.id, d.source, d.fields] for d in documents[s]]) for s in SUBSETS}
    return SampleData(tokenizer, pools, counts, digests)


def _length_counts(before: Pools, after: Pools) -> dict[str, int]:
    return {
        "dropped_length": len(before.non_members) - len(after.non_members),
        "moved_to_reference_length": len(after.reference) - len(before.reference),
        **{name: len(getattr(after, name)) for name in ("members", "non_members", "reference")},
    }


def pool_record(candidate: Candidate) -> dict[str, Any]:
    """A candidate as a line of its pool's file."""
    return {"text": candidate.text, "id": candidate.id, **candidate.metadata}


def _digest(values: Any) -> str:
    """SHA-256 of values as JSON lines."""
    lines = "".join(json.dumps(v, ensure_ascii=False, sort_keys=True) + "\n" for v in values)
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()
