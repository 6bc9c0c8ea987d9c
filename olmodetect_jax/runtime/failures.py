"""What the device says when it fails, in words a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from olmodetect_jax.errors import OlmoDetectError


@contextmanager
def device_errors_named(rows: int, tokens: int) -> Iterator[None]:
    """Names the batch that was running; earlier ones may still have been, so the shape is a hint.

    Raises:
        OlmoDetectError: the device failed, or the batch does not fit its memory.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise OlmoDetectError(f"the device failed: {error}") from error
        raise OlmoDetectError(
            f"a batch of {rows} rows of {tokens} tokens does not fit the device's memory; finished batches are kept: "
            "try a smaller --token-budget, --dtype bfloat16, or a --mesh that splits the weights (fsdp=N)"
        ) from error
