"""The prompts that attacks fill with texts, and what they call a text's source (generative spec, section 0)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml

SLOTS = {
    "guided": ("source", "first_piece"),
    "general": ("first_piece",),
    "critique": ("response",),
    "dcq_options": ("original_instance",),
    "dcq_quiz": ("split_name", "dataset_name", "option_a", "option_b", "option_c", "option_d"),
    "mia_tuner_question": ("text",),
    "mia_tuner_start": (),  # the words whose embeddings the soft prompt starts from
}
SOURCES = "sources"
NAMES = (*SLOTS, SOURCES)

# Wordings of others that this project does not ship but knows when it is given one: SHA-256 of the file to what it is.
KNOWN = {
    "a8088732c48b950700192e9e987adf864b6920e88fb188c6cc064ee46e645a8e": "DCQ's original option request",
    "0c7eb7bdb83bf4b7f6ad6bdbdc1fc860185a1a8d7a3b8863d93e4bb1a7ffe27d": "DCQ's original quiz",
    "38503b3a07b7ec024f365a3ea6690bdfd7b9d93881f9d3b7b46cac67839a7f5a": "the released Guided prompt",
    "88f4848d063738cf2159e1cf2c588aeb8f5ea11b59e9e630bfee9d73eba19e4d": "the released General prompt",
    "5492901ef556854794501cf3ab922e0110dc47143ad6a3e8bd9559fffdccdc1b": "Self-Critique's original instruction",
}

_OTHER = "other"  # the key of the source's name for domains that have none of their own
_SLOT = re.compile(r"\{(\w+)\}")  # braces around anything but one word are text


@dataclass(frozen=True)
class PromptFile:
    """A template, or the table of sources, as it was read.

    Attributes:
        path: the user's file; None for this project's own.
        content: its text, line ends and all.
    """

    path: Path | None
    content: str

    def facts(self) -> dict[str, str | None]:
        """For the manifest: where it lies, its digest, and whose wording it is, if that is known."""
        digest = hashlib.sha256(self.content.encode("utf-8")).hexdigest()
        path = None if self.path is None else str(self.path.absolute())
        return {"path": path, "sha256": digest, "known_as": KNOWN.get(digest)}


@dataclass(frozen=True)
class Prompts:
    """One file for each of `NAMES`.

    Example:
        prompts = Prompts.load({"general": Path("mine.txt")})
        prompts.fill("general", first_piece="Call me")

    Attributes:
        files: by name, all of them checked.
        sources: domain id to the name that a prompt gives it, with one for all others.
    """

    files: Mapping[str, PromptFile]
    sources: Mapping[str, str]

    @classmethod
    def load(cls, overrides: Mapping[str, Path] | None = None) -> Prompts:
        """This project's own prompts, single ones replaced by a user's files.

        Raises:
            UsageError: an unknown name; or a file that cannot be read, is not UTF-8, lacks a slot or has one that is
                not known; or a table of sources that is none.
        """
        overrides = overrides or {}
        for name in overrides:
            if name not in NAMES:
                raise one_of("prompt", name, NAMES)
        own = {name: config_path("prompts", f"{name}.txt") for name in SLOTS}
        own[SOURCES] = config_path("prompts", "sources.yaml")
        files = {n: PromptFile(overrides.get(n), _read(overrides.get(n, own[n]))) for n in NAMES}
        for name, slots in SLOTS.items():
            _check_slots(overrides.get(name, own[name]), files[name].content, slots)
        return cls(files, _load_sources(overrides.get(SOURCES, own[SOURCES])))

    def fill(self, name: str, **slots: str) -> str:
        """A template with a text in each of its slots; a text that itself looks like a slot stays as it is."""
        if set(slots) != set(SLOTS[name]):
            raise ValueError(f"{name}: expected the slots {', '.join(SLOTS[name])}, got {', '.join(slots)}")
        return _SLOT.sub(lambda match: slots[match[1]], self.files[name].content)

    def source(self, domain: str | None) -> str:
        """What a prompt calls the source of a domain's texts; None for texts of no domain."""
        return self.sources.get(domain or _OTHER, self.sources[_OTHER])

    def facts(self) -> dict[str, dict[str, str | None]]:
        """For the manifest: `PromptFile.facts` by name."""
        return {name: file.facts() for name, file in self.files.items()}


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")  # not as text, which would change line ends and so the digest
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; a prompt is a text file in that encoding") from None


def _check_slots(path: Path, content: str, slots: tuple[str, ...]) -> None:
    found = _SLOT.findall(content)
    unknown = [f"{{{s}}}" for s in dict.fromkeys(found) if s not in slots]
    missing = [f"{{{s}}}" for s in slots if s not in found]
    if unknown or missing:
        problem = f"unknown slot {', '.join(unknown)}" if unknown else f"no slot {', '.join(missing)}"
        raise UsageError(f"{path}: {problem}; this prompt has the slots {', '.join(f'{{{s}}}' for s in slots)}")


def _load_sources(path: Path) -> dict[str, str]:
    value: Any = load_yaml(path)
    pairs = list(value.items()) if isinstance(value, dict) else []
    if _OTHER not in dict(pairs) or not all(isinstance(x, str) and x.strip() for pair in pairs for x in pair):
        raise UsageError(f"{path}: expected domain ids with the name of each, and one for `{_OTHER}`")
    return dict(pairs)
