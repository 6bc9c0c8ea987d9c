"""A model's chat template: how one user turn is written before the model answers it (generative spec, 0)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import parse_json

FILE_NAME, CONFIG = "chat_template.jinja", "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")  # what templates call the special tokens


@dataclass(frozen=True)
class ChatTemplate:
    """A jinja template that came with a model: a program of somebody else's, run in transformers' sandbox only.

    Attributes:
        path: the file it was read from.
        template: its source.
        tokens: names of special tokens to what they are spelt like; one that the model lacks is not there.
    """

    path: Path
    template: str
    tokens: Mapping[str, str]

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """The template of a model directory; None if it has none, as a base model's.

        `chat_template.jinja` goes before the field `chat_template` of `tokenizer_config.json`, as in transformers.

        Raises:
            UsageError: a file cannot be read, or the field is no template.
        """
        config = _config(directory / CONFIG)
        tokens = {name: _spelling(config.get(name)) for name in _TOKENS}
        known = {name: spelling for name, spelling in tokens.items() if spelling is not None}
        path = directory / FILE_NAME
        if path.is_file():
            return cls(path, _read(path), known)
        template = _default(config.get("chat_template"), directory / CONFIG)
        return None if template is None else cls(directory / CONFIG, template, known)

    @property
    def digest(self) -> str:
        """SHA-256 of the template and the special tokens it is given, hex."""
        return hashlib.sha256(json.dumps([self.template, sorted(self.tokens.items())]).encode()).hexdigest()

    def prompt(self, content: str, answer: str | None = None) -> str:
        """One user turn, and the head of the answer to it or the whole answer with its end.

        Raises:
            UsageError: the template fails, tries what the sandbox forbids, or leaves out what the user says.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        turns = [{"role": "user", "content": content}]
        if answer is not None:
            turns.append({"role": "assistant", "content": answer})
        try:
            (rendered,), _ = render_jinja_template(
                [turns], chat_template=self.template, add_generation_prompt=answer is None, **self.tokens
            )
        except Exception as error:  # whatever a template's own expressions raise
            raise UsageError(f"{self.path}: the chat template fails: {type(error).__name__}: {error}") from None
        if content.strip() not in rendered or not rendered.strip():
            raise UsageError(f"{self.path}: the chat template does not write what the user says; it needs a user turn")
        return rendered


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = parse_json(_read(path))
    except ValueError as error:
        raise UsageError(f"{path}: not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object")
    return value


def _spelling(token: Any) -> str | None:
    """A special token's text, whether the file gives it as such or with its properties."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _default(field: Any, path: Path) -> str | None:
    """The template in the field, or the default among several named ones."""
    if field is None or isinstance(field, str):
        return field
    if not isinstance(field, list) or not all(isinstance(entry, dict) for entry in field):
        raise UsageError(f"{path}: chat_template: expected a text, or a list of templates with their names")
    named = {entry.get("name"): entry.get("template") for entry in field}
    if not isinstance(named.get("default"), str):
        raise UsageError(f"{path}: chat_template: there are several, and none is named default")
    return named["default"]
