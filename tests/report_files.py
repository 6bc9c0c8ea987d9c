"""`tuning.json` and `protocols.json` as the commands leave them in a run folder, with invented numbers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARES = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def tuned(space: dict[str, Sequence[Any]], aucs: Sequence[float | None], *, used: bool = True) -> dict[str, Any]:
    """One attack of `tuning.json`: every combination of the space with its AUC; the first best one is chosen."""
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    grid = [{"values": v, "auc": auc, "non_finite": 0} for v, auc in zip(combinations, aucs, strict=True)]
    best = max((g for g in grid if g["auc"] is not None), key=lambda g: g["auc"], default=None)
    return {"chosen": best and best["values"], "used": used and best is not None, "grid": grid}


def tuning() -> dict[str, Any]:
    """A whole `tuning.json`: one name and two, numbers and words, used, not used and not chosen."""
    attacks = {
        "min_k": tuned({"min_k": SHARES}, [0.55 + 0.01 * i - 0.002 * i * i for i in range(11)], used=False),
        "dc_pdd": tuned({"dc_pdd_alpha": [0.001, 0.01, 0.1]}, [0.52, None, 0.48]),
        "pac": tuned(
            {"pac_far": [0.05, 0.1, 0.2], "pac_near": [0.1, 0.2, 0.3, 0.4]},
            [0.51, 0.53, 0.52, 0.5, 0.54, 0.57, 0.56, 0.53, 0.49, 0.5, 0.51, 0.48],
        ),
        "recall": tuned({"recall_shots": range(1, 13)}, [0.6 + 0.01 * (i % 5) for i in range(12)]),
        "em_mia": tuned({"em_mia_base": ["loss", "zlib", "mink", "minkpp"]}, [0.47, 0.52, 0.51, 0.45]),
        "camia": tuned({"camia_composition": ["edgington", "fisher", "george"]}, [None, None, None]),
    }
    attacks["dc_pdd"]["grid"][1]["non_finite"] = 100
    return {
        "format": 1,
        "protocol": {"preset": "audited", "changed": {}},
        "n_member": 50,
        "n_non_member": 50,
        "attacks": attacks,
    }


def protocols() -> dict[str, Any]:
    """A whole `protocols.json`: gains, losses, no difference, a missing AUC; fields of one attack and of several."""
    return {
        "format": 1,
        "preset": "audited",
        "fields": {"zlib_numerator": "sum", "text_span": "scored", "special_ids": "flag", "em_mia_pool": 0},
        "attacks": ["ppl", "zlib", "lower"],
        "auc": {"ppl": 0.72, "zlib": 0.67, "lower": 0.6},
        "rows": [
            {"field": "zlib_numerator", "value": "mean", "presets": ["release"], "auc": {"zlib": 0.7}},
            {"field": "text_span", "value": "full", "presets": ["paper", "release"],
             "auc": {"zlib": 0.67, "lower": 0.57}},
            {"field": "special_ids", "value": "error", "presets": [], "auc": {"ppl": None, "zlib": 0.67, "lower": 0.6}},
        ],
    }  # fmt: skip


def write(run: Path, name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file into a run folder."""
    run.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(json.dumps(content), encoding="utf-8")


def adapter(attack: str, setting: str, trained_for: str, losses: Sequence[float | None], **more: Any) -> dict[str, Any]:
    """One adapter of `training.json`."""
    name = f"{attack}-{setting}-{trained_for}"
    return {"name": name, "attack": attack, "setting": setting, "trained_for": trained_for, "n_texts": 8,
            "steps": len(losses), "losses": list(losses), "batch": 8, **more}  # fmt: skip


def training() -> dict[str, Any]:
    """A whole `training.json`: three panels, names that recur, a hole, one step alone and more steps than points."""
    adapters = [
        adapter("fsd", "in-domain", "novel", [3.0, 2.5, 2.0]),
        adapter("fsd", "in-domain", "code", [2.0, None, 1.0, 1.5, None]),
        adapter("mia_tuner", "lodo", "code", [5.0 - 0.005 * i for i in range(450)], n_texts=72),
        adapter("fsd", "lodo", "code", [4.0]),
    ]
    return {"format": 1, "adapters": adapters}


def budget() -> dict[str, Any]:
    """A whole `budget.json` of the sample: one subset without an AUC, so its domain and All have none."""
    subset = {"n_member": 20, "n_non_member": 20, "auc": [[0.5, 0.7], [0.6, 0.8]], "std": [0.1, 0.1]}
    curves = {name: {"mean": [0.6, 0.7], "std": [0.1, 0.1]} for name in ("speeches", "novel")}
    none = {"mean": [None, None], "std": [None, None]}
    return {
        "format": 2, "attack": "sup_camia", "classifier": "plain", "fractions": [0.1, 0.5], "splits": 2,
        "subsets": {"speeches": subset, "novel": subset,
                    "code": {"n_member": 1, "n_non_member": 20, "auc": None, "std": None, "reason": "1 members"}},
        "domains": {**curves, "code": none}, "all": none,
    }  # fmt: skip
