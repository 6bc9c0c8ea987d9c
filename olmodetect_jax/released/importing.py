"""Released scores as run folders, so that they flow through the same evaluation as our own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax import __version__
from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.em_mia import FROM
from olmodetect_jax.benchmark import VARIANTS, Tree
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.aggregate import attack_domains
from olmodetect_jax.evaluation.metrics import ClassScores, auc
from olmodetect_jax.evaluation.runs import MANIFEST_FORMAT
from olmodetect_jax.files import write_json, write_text
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.released.layout import INITS
from olmodetect_jax.released.scored import Scored
from olmodetect_jax.released.tree import Released

Leaf = Mapping[tuple[int, str], Sequence[Scored]]  # by (label, side)


def write_runs(
    released: Mapping[str, Released],
    tree: Tree,
    out: Path,
    *,
    source: Path,
    benchmark: Path | None,
    reading: str,
    dev_picks: Mapping[str, int] | None = None,
) -> list[Path]:
    """Writes a run folder a model and variant that has a subset with both classes.

    Args:
        released: as `read_released` gives it.
        tree: the benchmark's.
        out: folder to make them in, named model-variant.
        source: the tree they are from, for the manifest.
        benchmark: the benchmark they were joined to.
        reading: as of `read_released`.
        dev_picks: by model size, the base score that EMMIA starts from; None for the best of four on the test labels,
            as published.

    Returns:
        The folders.

    Raises:
        DataError: a folder is there already, no leaf has both classes, or a size has no pick.
    """
    written = []
    for of in released.values():
        for variant in VARIANTS:
            leaves = _leaves(of, tree, variant)
            if leaves:
                folder = out / f"{of.model}-{variant}"
                if folder.exists():
                    raise DataError(f"{folder}: is there already; choose another --out, or remove it")
                if dev_picks is not None and of.size not in dev_picks and any(row == "em_mia" for row, _ in leaves):
                    raise DataError(f"{source}: nothing was chosen on development texts for {of.model}")
                _write(folder, leaves, None if dev_picks is None else dev_picks.get(of.size or ""))
                choice = {} if dev_picks is None else {"em_mia_choice": "dev"}
                manifest = _manifest(of, tree, variant, leaves, source, benchmark, reading, choice)
                write_json(folder / "manifest.json", manifest)  # last: an unfinished folder is no run
                written.append(folder)
    if not written:
        raise DataError(f"{source}: no subset has scores of members and of non-members")
    return written


def _leaves(of: Released, tree: Tree, variant: str) -> dict[tuple[str, str], Leaf]:
    """(row id, subset id) to its scores, of leaves with both classes; shifted ones of subsets that have variants."""
    found = {}
    order = list(TITLES)
    for (own, row, subset), leaf in sorted(of.rows.items(), key=lambda item: order.index(item[0][1])):
        has_variant = variant == "matched" or next(s for s in tree.subsets if s.id == subset).variants
        if own == variant and has_variant and {label for label, _ in leaf} == {MEMBER, NON_MEMBER}:
            found[row, subset] = leaf
    return found


def _write(folder: Path, leaves: Mapping[tuple[str, str], Leaf], pick: int | None) -> None:
    for (row, subset), leaf in leaves.items():
        base = (best_base(leaf) if pick is None else pick) if row == "em_mia" else None
        lines = [
            _line(scored, label, side, base, chosen_on_dev=pick is not None)
            for (label, side), column in sorted(leaf.items(), key=lambda item: (-item[0][0], item[0][1]))
            for scored in column
        ]
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        write_text(folder / "scores" / row / f"{subset}.jsonl", text)


def best_base(leaf: Leaf) -> int:
    """Which of EMMIA's base scores has the best AUC on the labels of a subset, the first of equals."""
    aucs = []
    for base in range(len(INITS)):
        sides: list[list[float]] = [[], []]
        for (label, _), column in leaf.items():
            sides[label == NON_MEMBER] += [s.choices[base] for s in column]
        aucs.append(auc(ClassScores(*map(np.asarray, sides), "EMMIA")))
    return int(np.argmax(aucs))


def _line(scored: Scored, label: int, side: str, base: int | None, *, chosen_on_dev: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "record_id": scored.record_id,
        "text_sha1": scored.key,
        "label": label,
        "score": scored.value if base is None else scored.choices[base],
        "truncated": False,
    }
    if side:
        line["side"] = side
    if scored.missing:
        line["missing"] = scored.missing
    if scored.fill:
        line["note"] = f"filled in later ({scored.fill})"
    if base is not None and chosen_on_dev:
        line["note"] = f"from the base score {INITS[base]}, chosen on development texts"
    elif base is not None:
        line["note"] = f"from the base score {INITS[base]}, the best of four on these very labels"
        line |= dict(zip(FROM, scored.choices, strict=True))
    if scored.base is not None:
        line["base_score"] = scored.base
    return line


def _manifest(
    of: Released,
    tree: Tree,
    variant: str,
    leaves: Mapping[tuple[str, str], Leaf],
    source: Path,
    benchmark: Path | None,
    reading: str,
    changes: Mapping[str, str],
) -> dict[str, Any]:
    protocol = load_protocol("release", changes)
    attacks = list(dict.fromkeys(row for row, _ in leaves))
    subsets = [s.id for s in tree.subsets if any(s.id == name for _, name in leaves)]
    domains = {s.id: s.domain for s in tree.subsets}
    absent = {
        a: [s for s in subsets if (a, s) not in leaves and domains[s] in attack_domains(a, tree)] for a in attacks
    }
    return {
        "format": MANIFEST_FORMAT,
        "command": "import-released",
        "version": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {"name": of.model, "size": of.size},
        "benchmark": {"path": benchmark and str(benchmark.absolute()), "tree": tree.name},
        "split": "test",
        "variant": variant,
        "protocol": {"preset": protocol.preset, "fields": protocol.fields(), "changed": protocol.changed()},
        "hyperparameters": {},
        "attacks": attacks,
        "subsets": subsets,
        "absent": {attack: names for attack, names in absent.items() if names},
        "record_counts": dict.fromkeys(subsets),
        "released": {
            "path": str(source.absolute()),
            "reading": reading,
            "files": dict(sorted(of.files.items())),
            "aucs_without_scores": of.aucs,
        },
        "notes": of.notes,
    }
