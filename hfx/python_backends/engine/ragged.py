"""Rows of unlike length as one array, padded so that no row's result depends on the others.

Owns the width of the padding; knows nothing of what the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# ONNX Runtime's attention takes queries in blocks of a multiple of 16, and a last block of one query goes to another
# kernel, which rounds differently: a row's last token would have other bits alone than beside a longer row.
BLOCK = 16


def pad(rows: Sequence[Sequence[int]], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(ids [rows, width], lengths [rows]): zeros at the right, at most `limit` wide, which no row exceeds."""
    lengths = np.array([len(row) for row in rows], np.int32)
    width = int(lengths.max())
    if width % BLOCK == 1 and width < limit:
        width += 1
    ids = np.zeros((len(rows), width), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return ids, lengths
