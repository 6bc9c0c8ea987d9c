"""The records of a run as data for the page: their scores under every attack, and some of them token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from olmodetect_jax.evaluation.results import METHOD_AVG, RunMetrics
from olmodetect_jax.report.token_view import TokenViews

Key = tuple[str, int | None, str, str]  # (subset, label, record id, hash of the text)


def records_json(result: RunMetrics, views: TokenViews) -> Markup:
    """The JSON that the page's script reads; nothing in it can end the element that holds it.

    Args:
        result: of the run.
        views: token by token.
    """
    run = result.run
    titles = {row.id: row.title for row in result.rows if row.id != METHOD_AVG}
    rows: dict[Key, list[Any]] = {}
    for place, attack in enumerate(titles):
        for subset, lines in run.scores[attack].items():
            for s in lines:
                row = rows.setdefault((subset, s.label, s.record_id, s.text_sha1), [None] * (1 + len(titles)))
                row[0] = s.n_tokens if row[0] is None else row[0]
                row[1 + place] = None if s.value is None else float(f"{s.value:.6g}")
    subsets = list(run.subsets)
    places = {key: i for i, key in enumerate(rows)}
    shares = [_share(run.manifest, name) for name in ("min_k", "min_k_plus_plus")]
    return embedded(
        {
            "attacks": list(titles.values()),
            "subsets": [run.subset_title(s) for s in subsets],
            "records": [[key[2], subsets.index(key[0]), key[1], *row] for key, row in rows.items()],
            "shares": shares,
            "tokens": _tokens(views, places, shares),
            "noTokens": views.reason,
        }
    )


def _share(manifest: Mapping[str, Any], name: str) -> float | None:
    """A hyperparameter that is a share; None where the manifest has none that can be used."""
    known = manifest.get("hyperparameters")
    value = known.get(name) if isinstance(known, dict) else None
    return float(value) if type(value) in (int, float) and 0 < value <= 1 else None


def _tokens(views: TokenViews, places: Mapping[Key, int], shares: Sequence[float | None]) -> dict[str, Any]:
    found = {}
    for view in views.views:
        place = places.get((view.subset, view.label, view.record_id, view.text_sha1))
        if place is not None:
            found[str(place)] = view.as_json(shares)
    return found


def embedded(value: Any) -> Markup:
    """JSON for a script element: what could be read as markup is spelt with escapes."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
