"""Runs OpenVINO files as plainly as can be: tables of scattered blocks, a poisoned cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.openvino.linear import Activations
from hfx.exporter.quantize.generator import WeightFormat
from hfx.python_backends.engine.openvino.model import Port, _port, core, use_pages

Array = NDArray[Any]
BLOCK = 32
FORMS: tuple[tuple[WeightFormat, Activations], ...] = (
    ("fp32", "group"),
    ("int8", "group"),
    ("int8", "row"),
    ("int4", "group"),
)


class Compiled:
    """An OpenVINO file compiled as the engine compiles: a function of inputs by name, to outputs by name.

    `pages` are the heads and their size where its attention is over pages.
    """

    def __init__(self, path: Path, pages: tuple[int, int] | None = None, threads: int = 1, **properties: str) -> None:
        model = core().read_model(str(path))
        if pages:
            use_pages(model, *pages)
        chosen = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads), **properties}
        self._compiled = core().compile_model(model, "CPU", chosen)
        self.inputs = {port.get_any_name(): _port(port) for port in self._compiled.inputs}

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        assert set(feed) == set(self.inputs)
        # Shared, so that what a run appends to the pages is there after it.
        found = self._compiled(dict(feed), share_inputs=True)
        return {port.get_any_name(): np.array(found[port]) for port in self._compiled.outputs}


def poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    """NaN, or, where numbers are packed into bytes, any bytes."""
    if np.dtype(dtype) == np.uint8:
        return np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    return np.full(shape, np.nan, dtype)


class Pages:
    """Keys and values of one kind of attention; the blocks of a row lie apart and out of order."""

    def __init__(self, inputs: Mapping[str, Port], prefix: str, layers: int, rows: int, capacity: int) -> None:
        each = -(-capacity // BLOCK)
        blocks = rows * each + 3
        self.prefix = prefix
        self.tables = np.random.default_rng(5).permutation(blocks)[: rows * each].reshape(rows, each).astype(np.int32)
        names = [f"{prefix}{part}_cache.{layer}" for layer in range(layers) for part in ("key", "value")]
        self.arrays = {name: poisoned((blocks, *inputs[name].shape[1:]), inputs[name].dtype) for name in names}

    def feed(self, rows: Sequence[int], past: Sequence[int], counts: Sequence[int]) -> dict[str, Array]:
        """The inputs of a run that appends `counts[i]` tokens to row `rows[i]`, behind `past[i]`."""
        lengths = np.array(past) + np.array(counts)
        blocks = -(-lengths // BLOCK)
        vectors = {
            "past_lens": np.array(past),
            "subsequence_begins": np.cumsum([0, *counts]),
            "block_indices": np.concatenate([self.tables[row, :n] for row, n in zip(rows, blocks, strict=True)]),
            "block_indices_begins": np.cumsum([0, *blocks]),
            "max_context_len": np.array(lengths.max()),
        }
        return {self.prefix + name: value.astype(np.int32) for name, value in vectors.items()} | self.arrays
