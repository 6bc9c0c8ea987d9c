"""Zlib: log-probability against compressed length (likelihood spec, section 3)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

from olmodetect_jax.attacks.base import OnePass, Score, ScoredText
from olmodetect_jax.attacks.reductions import mean, total
from olmodetect_jax.protocol import Protocol


def compressed_length(text: str) -> int:
    """Bytes of the text's UTF-8 form under zlib's default level; at least 8. It depends on the zlib build."""
    return len(zlib.compress(text.encode("utf-8")))


@dataclass(frozen=True)
class Zlib(OnePass):
    """Members are more probable than their compressibility explains."""

    id: ClassVar[str] = "zlib"

    def value(self, scored: ScoredText, protocol: Protocol) -> Score:
        """Sum (or mean) of the log-probabilities over the compressed bytes of the scored span (or the full text)."""
        body = scored.body()
        numerator = (total if protocol.zlib_numerator == "sum" else mean)(body.log_prob, protocol)
        text = scored.span if protocol.text_span == "scored" else scored.text
        return body.result(numerator / compressed_length(text))
