"""Answers with a form: which tokens may come next, and what that does to scores.

A mask has a bit for each token of the vocabulary, the lowest first, in whole words of 32 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .matcher import Floats
from .processors import BANNED


@dataclass(frozen=True)
class Masking:
    """What is done with a mask: `best` is the place of the best score of a row [vocabulary] whose bit is set.

    The lowest of equals; a NaN, if there is one; -1 where all are minus infinity. `forbid` makes the scores of a row
    whose bits are not set minus infinity, in place.
    """

    best: Callable[[Floats, bytes], int]
    forbid: Callable[[Floats, bytes], None]


def native_masking(library: Path) -> Masking:
    """By a library of operators that this process has registered: a fifth of numpy's time, or less.

    By numpy with a library of earlier versions.
    """
    functions = ctypes.CDLL(str(library))
    if not hasattr(functions, "hfx_best_allowed"):
        return NUMPY
    best, forbid = functions.hfx_best_allowed, functions.hfx_forbid
    best.restype, forbid.restype = ctypes.c_int64, None
    best.argtypes = forbid.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
    return Masking(
        lambda scores, mask: best(_address(scores), mask, scores.size),
        lambda scores, mask: forbid(_address(scores), mask, scores.size),
    )


def _address(row: Floats) -> int:
    assert row.strides == (4,), "a row of scores lies in one piece"
    address: int = row.__array_interface__["data"][0]  # a third of the time that row.ctypes.data takes
    return address


def _best(scores: Floats, mask: bytes) -> int:
    allowed = np.flatnonzero(_bits(mask, scores.size))
    some = scores[allowed]
    if not some.size or some.max() == BANNED:
        return -1
    return int(allowed[some.argmax()])


def _forbid(scores: Floats, mask: bytes) -> None:
    np.copyto(scores, BANNED, where=~_bits(mask, scores.size))


def _bits(mask: bytes, size: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(mask, np.uint8), count=size, bitorder="little").view(np.bool_)


NUMPY = Masking(_best, _forbid)
