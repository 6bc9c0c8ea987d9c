"""The report's templates: they escape every text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from olmodetect_jax.evaluation.formatting import printable


def template(name: str) -> Template:
    """A template of this folder, ready to be rendered."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _visible(value: Any) -> Any:
    """What a template prints: text of a run with its invisible characters as escapes, our own markup as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
