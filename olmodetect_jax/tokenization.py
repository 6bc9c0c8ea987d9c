"""The one place that decides which token ids a text has (likelihood spec, 1.2).

Plain text is encoded with the tokenizer's own default special tokens (none for OLMo 2: no BOS is put before it,
no EOS after it) and cut on the right. Special tokens spelt out inside a text keep their special id, as in the
tokenizer itself; `TokenizedText.special` counts them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from olmodetect_jax.chat import ChatTemplate
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import parse_json

if TYPE_CHECKING:
    from tokenizers import Encoding


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text's ids after truncation.

    Attributes:
        ids: [T] int32, T at most the limit.
        n_tokens: tokens of the whole text.
        span: the part of the text that `ids` cover (the whole text if nothing was cut).
    """

    ids: np.ndarray
    n_tokens: int
    span: str

    @property
    def truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.n_tokens > len(self.ids)


class Tokenizer:
    """A model directory's `tokenizer.json`.

    Attributes:
        directory: the model directory.
        path: the file.
        digest: SHA-256 of the file, hex: two tokenizers with the same digest make the same ids.
        vocabulary: number of its tokens, special ones included.
        largest_id: the largest id it can produce; a model needs more embedding rows than that.
        eos_id: id of the end-of-text token, or None.
        pad_id: id of the padding token, or None; no text is ever padded with it, but generating it ends a text.
        special_ids: ids of tokens flagged special.
    """

    def __init__(self, directory: Path):
        """Loads `tokenizer.json` and, for the end-of-text token, `tokenizer_config.json` or `config.json`.

        Raises:
            UsageError: the file is missing or is not a tokenizer.
        """
        from tokenizers import Tokenizer as FastTokenizer

        self.directory = directory
        self.path = directory / "tokenizer.json"
        try:
            content = self.path.read_bytes()
            self._fast = FastTokenizer.from_str(content.decode("utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{self.path}: not found; a model directory needs its tokenizer.json") from None
        except Exception as error:  # tokenizers raises bare Exception for a file it cannot parse
            raise UsageError(f"{self.path}: not a tokenizer file: {error}") from None
        self._fast.no_truncation()
        self._fast.no_padding()
        self.digest = hashlib.sha256(content).hexdigest()
        self.vocabulary = self._fast.get_vocab_size(with_added_tokens=True)
        self.largest_id = max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_ids = frozenset(i for i, t in self._fast.get_added_tokens_decoder().items() if t.special)
        self.eos_id = self._find_token(directory, "eos_token")
        self.pad_id = self._find_token(directory, "pad_token")

    def _find_token(self, directory: Path, token: str) -> int | None:
        for name, field in (("tokenizer_config.json", token), ("config.json", f"{token}_id")):
            path = directory / name
            if not path.is_file():
                continue
            try:
                value = parse_json(path.read_text(encoding="utf-8")).get(field)
            except (OSError, ValueError, AttributeError) as error:
                raise UsageError(f"{path}: not a JSON object: {error}") from None
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, list):  # some configs list several ends; the first is the text's own
                value = value[0] if value else None
            if value is None:
                continue
            found = self._fast.token_to_id(value) if isinstance(value, str) else value
            if type(found) is not int:
                raise UsageError(f"{path}: {field} is {value!r}, which is no token of {self.path.name}")
            return found
        return None

    @property
    def adds_tokens(self) -> bool:
        """Whether it puts tokens of its own before or after every text (OLMo 2's does not)."""
        return len(self._fast.encode("").ids) > 0

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end what is generated: end of text and padding (generative spec, section 0)."""
        return tuple(sorted({i for i in (self.eos_id, self.pad_id) if i is not None}))

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template; one without is a base model."""
        return self._chat is not None

    @property
    def chat_digest(self) -> str | None:
        """What names the chat template; None without one."""
        return None if self._chat is None else self._chat.digest

    def chat_ids(self, content: str, answer: str | None = None) -> np.ndarray:
        """Ids of one user turn in the model's chat template, up to where its answer begins or ends: [P] int32.

        The template writes its own first token, so the tokenizer adds none.

        Raises:
            UsageError: the model has no chat template, or it fails.
        """
        if self._chat is None:
            raise UsageError(
                f"{self.directory}: no chat template, so this is a base model, which answers no questions; leave "
                "self_critique and mia_tuner out of --attacks, or add a chat_template.jinja"
            )
        (encoding,) = self._encode([self._chat.prompt(content, answer)], add_special_tokens=False)
        return np.asarray(encoding.ids, np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """What ids spell, special tokens left out."""
        return self._fast.decode(ids.tolist(), skip_special_tokens=True)

    def pieces(self, text: str, max_tokens: int) -> list[str]:
        """The parts of a text that its tokens stand for, as far as `encode` reads it; empty for one that is added.

        A token that is only some bytes of a character has the character; the next one of it is empty.
        """
        (encoding,) = self._encode([text], add_special_tokens=True)
        offsets = encoding.offsets[:max_tokens]
        before = [(-1, -1), *offsets]
        return ["" if own == last else text[own[0] : own[1]] for own, last in zip(offsets, before, strict=False)]

    def single_token(self, text: str) -> int | None:
        """Id of a text that is one token; None if it takes several or none."""
        (encoding,) = self._encode([text], add_special_tokens=False)
        return encoding.ids[0] if len(encoding.ids) == 1 else None

    def token_counts(self, text: str, ends: Sequence[int]) -> list[int]:
        """How many of a text's tokens end at or before each of these characters (tokens cut by none of them)."""
        (encoding,) = self._encode([text], add_special_tokens=True)
        offsets = np.asarray([end for _, end in encoding.offsets])
        return [int(np.searchsorted(offsets, end, side="right")) for end in ends]

    def encode(self, text: str, max_tokens: int) -> TokenizedText:
        """Ids of one text, cut on the right to `max_tokens`."""
        return self.encode_all([text], max_tokens)[0]

    def cut(self, text: str, max_tokens: int) -> str:
        """The text if it is not longer than that, else what its first tokens spell (CAMIA and PAC spec, 1.1).

        Tokens that the tokenizer adds of its own are not counted and do not get into the text; special tokens that are
        spelt out in it do.
        """
        (encoding,) = self._encode([text], add_special_tokens=False)
        if len(encoding.ids) <= max_tokens:
            return text
        return self._fast.decode(encoding.ids[:max_tokens], skip_special_tokens=False)

    def encode_all(self, texts: Sequence[str], max_tokens: int) -> list[TokenizedText]:
        """Ids of many texts, each cut on the right to `max_tokens`; remembered, for attacks ask for the same."""
        new = list(dict.fromkeys(t for t in texts if (t, max_tokens) not in self._known))
        for text, tokens in zip(new, self.encode_once(new, max_tokens), strict=True):
            self._known[text, max_tokens] = tokens
        return [self._known[t, max_tokens] for t in texts]

    def encode_once(self, texts: Sequence[str], max_tokens: int) -> list[TokenizedText]:
        """The same without remembering, for a corpus that is read once."""
        encoded = []
        for text, encoding in zip(texts, self._encode(texts, add_special_tokens=True), strict=True):
            ids = np.asarray(encoding.ids[:max_tokens], np.int32)
            cut = len(encoding.ids) > max_tokens
            encoded.append(
                TokenizedText(ids, len(encoding.ids), text[: encoding.offsets[max_tokens - 1][1]] if cut else text)
            )
        return encoded

    def bare_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """All ids of each text, without any that the tokenizer adds of its own (construction spec, fact 1).

        Returns:
            [T] uint32 each; not remembered.
        """
        return [np.asarray(e.ids, np.uint32) for e in self._encode(texts, add_special_tokens=False)]

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]:
        try:
            return self._fast.encode_batch(texts, add_special_tokens=add_special_tokens)
        except Exception as error:  # tokenizers raises bare Exception, for a text it has no token for
            raise DataError(f"{self.path}: cannot encode a text: {error}") from None

    @cached_property
    def _chat(self) -> ChatTemplate | None:
        return ChatTemplate.load(self.directory)

    @cached_property
    def _known(self) -> dict[tuple[str, int], TokenizedText]:
        return {}
