"""Which sources are encoded in one run: those whose lengths are rounded up to the same number.

OpenVINO keeps some MB for every shape that it has run, so that there must be few of them. A source's padding follows
from its own length alone, and so do its numbers. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Lengths up to the first number are rounded up to multiples of the second.
STEPS = ((64, 16), (256, 32), (1 << 62, 64))


def padded_length(length: int, most: int) -> int:
    """`length` rounded up, to at most `most`."""
    step = next(step for longest, step in STEPS if length <= longest)
    return min(-(-length // step) * step, most)


def batches(lengths: Sequence[int], most: int, together: int) -> Iterator[tuple[int, list[int]]]:
    """(padded length, places in `lengths`) of each run; 1, 2, 4, 8... sources go into one, `together` at most.

    `most` is the largest length.
    """
    alike: dict[int, list[int]] = {}
    for at, length in enumerate(lengths):
        alike.setdefault(padded_length(length, most), []).append(at)
    for width, places in alike.items():
        start = 0
        while start < len(places):
            count = 1 << (min(len(places) - start, together).bit_length() - 1)
            yield width, places[start : start + count]
            start += count
