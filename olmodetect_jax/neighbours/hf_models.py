"""A mask-filling model of transformers makes the neighbours: a T5, or a masked language model (generative spec, 1).

Beside the checks against transformers this is the one place that runs torch: neighbours are made once, apart from any
scoring. Fills are drawn from a generator that is seeded by the text's hash, so making them again on the same machine
gives the same ones; the released fills were drawn unseeded, in float16.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmodetect_jax.errors import UsageError
from olmodetect_jax.neighbours.fills import fill_gaps
from olmodetect_jax.neighbours.masking import (
    COPIES,
    Chunk,
    Masked,
    SeedRule,
    WindowRule,
    chunks,
    mask,
    spans_of,
    split_window,
)
from olmodetect_jax.records import text_seed

if TYPE_CHECKING:
    import numpy as np

READ_TOKENS = 512  # of a masked text
WRITTEN_TOKENS = 150  # by T5
RETRIES = 10  # of rows whose gaps T5 did not all fill
TOP_K = 50


class Filler(ABC):
    """A mask-filling model that makes the neighbours of texts."""

    def __init__(self, directory: Path, model_class: str):
        """Loads a local directory; nothing is downloaded, no code of its own is run, no pickle is read."""
        import torch
        import transformers
        from safetensors import SafetensorError

        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self._directory = directory
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **local)
            model, found = getattr(transformers, model_class).from_pretrained(
                directory, **local, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(f"--filler {directory}: cannot be loaded: {error}") from None
        if found["missing_keys"]:  # transformers would go on with random numbers in their place
            raise UsageError(f"--filler {directory}: weights are missing: {', '.join(sorted(found['missing_keys']))}")
        self._model = model.eval().to(self._device)

    def provenance(self) -> dict[str, str]:
        """What decides the fills, beside the texts: model and libraries."""
        weights = hashlib.sha256()
        for path in sorted(self._directory.glob("*.safetensors")):
            with path.open("rb") as file:
                weights.update(hashlib.file_digest(file, "sha256").digest())
        names = {"filler": self._directory.resolve().name, "kind": self._model.config.model_type}
        versions = {name: version(name) for name in ("torch", "transformers")}
        return {**names, "weights_sha256": weights.hexdigest(), **versions}

    def fill(self, texts: Sequence[str], *, window: WindowRule = "kept", seed: SeedRule = "text") -> list[list[str]]:
        """The neighbours of every text, in order.

        Args:
            texts: of one file.
            window: as in `split_window`.
            seed: as in `chunks`.
        """
        filled = [text for chunk in chunks(texts, seed) for text in self.fill_chunk(chunk, window)]
        return [filled[i : i + COPIES] for i in range(0, len(filled), COPIES)]

    def fill_chunk(self, chunk: Chunk, window: WindowRule) -> list[str]:
        """One neighbour for each row of a chunk; the rows are filled together, so the first text seeds the draws."""
        import torch

        windows = [split_window(text, window) for text in chunk.rows]
        with _seeded(chunk.rows[0]), torch.inference_mode():
            heads = self._fill_heads([head for head, _ in windows], chunk.random)
        return [head + tail for head, (_, tail) in zip(heads, windows, strict=True)]

    @abstractmethod
    def _fill_heads(self, heads: Sequence[str], random: np.random.RandomState) -> list[str]:
        """Each head with its gaps drawn and filled."""


class T5Filler(Filler):
    """A T5 (v1.0: one that was trained with sentinels and has not been tuned away from them)."""

    def __init__(self, directory: Path):
        super().__init__(directory, "AutoModelForSeq2SeqLM")
        self._ignored = [t for t in (self._tokenizer.pad_token, self._tokenizer.eos_token) if t]
        self._sentinel(0)

    def _sentinel(self, number: int) -> int:
        name = f"<extra_id_{number}>"
        token = self._tokenizer.get_vocab().get(name)
        if token is None:
            raise UsageError(f"--filler {self._tokenizer.name_or_path}: its tokenizer has no sentinel {name}")
        return token

    def _fill_heads(self, heads: Sequence[str], random: np.random.RandomState) -> list[str]:
        filled = list(heads)  # also what a row stays if it fails to the end
        left = [i for i, head in enumerate(heads) if spans_of(len(head.split(" ")))[1]]
        for _ in range(1 + RETRIES):
            if not left:
                break
            masked = [mask(heads[i], random) for i in left]
            written = [fill_gaps(m, text, self._ignored) for m, text in zip(masked, self._write(masked), strict=True)]
            for i, text in zip(left, written, strict=True):
                filled[i] = heads[i] if text is None else text
            left = [i for i, text in zip(left, written, strict=True) if text is None]
        return filled

    def _write(self, masked: Sequence[Masked]) -> list[str]:
        """What the model writes for each, special tokens and all; the sentinel after the most gaps ends it."""
        from transformers import GenerationConfig

        read = self._tokenizer(
            [m.with_sentinels for m in masked], truncation=True, max_length=READ_TOKENS, padding=True,
            return_tensors="pt",
        ).to(self._device)  # fmt: skip
        pad = self._tokenizer.pad_token_id
        start = self._model.config.decoder_start_token_id
        how = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=TOP_K, top_p=1.0, num_beams=1, max_length=WRITTEN_TOKENS,
            eos_token_id=self._sentinel(max(len(m.words) for m in masked)), pad_token_id=pad,
            decoder_start_token_id=pad if start is None else start,
        )  # fmt: skip
        written = self._model.generate(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"], generation_config=how
        )
        return self._tokenizer.batch_decode(written, skip_special_tokens=False)


class MaskedFiller(Filler):
    """A masked language model: one mask a word, all of them drawn in one pass, each without seeing the others.

    A gap beyond the tokens that the model reads keeps its own words, and so does one without words.
    """

    def __init__(self, directory: Path):
        super().__init__(directory, "AutoModelForMaskedLM")
        if self._tokenizer.mask_token_id is None or not self._tokenizer.is_fast:
            raise UsageError(f"--filler {directory}: needs a fast tokenizer with a mask token")
        self._length = min(READ_TOKENS, self._tokenizer.model_max_length, self._model.config.max_position_embeddings)

    def _fill_heads(self, heads: Sequence[str], random: np.random.RandomState) -> list[str]:
        return [self._filled(mask(head, random)) for head in heads]

    def _filled(self, masked: Masked) -> str:
        import torch

        gaps = [" ".join([self._tokenizer.mask_token] * len(words.split())) for words in masked.words]
        read = self._tokenizer(
            masked.filled(gaps), truncation=True, max_length=self._length, return_offsets_mapping=True,
            return_tensors="pt",
        )  # fmt: skip
        ends, is_mask = read.pop("offset_mapping")[0, :, 1], read["input_ids"][0] == self._tokenizer.mask_token_id
        # A mask token that the text itself spells out lies in no gap; a token's own start may include a space.
        inside = [(is_mask & (ends > a) & (ends <= b)).nonzero()[:, 0].tolist() for a, b in masked.ranges(gaps)]
        usable = [
            places if len(places) == len(words.split()) else []
            for places, words in zip(inside, masked.words, strict=True)
        ]
        places = list(itertools.chain.from_iterable(usable))
        if not places:
            return masked.filled(masked.words)
        logits = self._model(**read.to(self._device)).logits[0, places].clone()
        logits[:, self._tokenizer.all_special_ids] = -torch.inf
        best, ids = logits.topk(min(TOP_K, logits.shape[-1]))
        drawn = ids.gather(1, torch.multinomial(best.softmax(-1), 1))[:, 0].tolist()
        words = iter([self._tokenizer.decode([token]).strip().removeprefix("##") for token in drawn])
        fills = [
            " ".join(itertools.islice(words, len(places))) if places else own
            for places, own in zip(usable, masked.words, strict=True)
        ]
        return masked.filled(fills)


@contextmanager
def _seeded(text: str) -> Iterator[None]:
    """Torch's generators of all devices, seeded by a text's hash and put back afterwards."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(text_seed(text))
        yield


def load_filler(directory: Path) -> Filler:
    """The filler in a directory of Hugging Face's layout.

    Raises:
        UsageError: torch is not installed, or the directory holds no such model; says what is.
    """
    try:
        import torch  # noqa: F401
        from transformers import AutoConfig
    except ImportError as error:
        raise UsageError(
            f"--filler: needs {error.name}; install it with: pip install 'olmodetect-jax[parity]'"
        ) from None
    if not directory.is_dir():
        raise UsageError(f"--filler {directory}: no such directory; give one with a model's config, weights, tokenizer")
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--filler {directory}: cannot be loaded: {error}") from None
    return (T5Filler if config.is_encoder_decoder else MaskedFiller)(directory)
