"""Compiled loops: numba with its code kept on disk, where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """A decorator that compiles a function on its first call.

    Args:
        options: of `numba.njit`.
    """

    def compile_it(function: Callable) -> Callable:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no folder that the machine code could be kept in
            return numba.njit(**options)(function)

    return compile_it
