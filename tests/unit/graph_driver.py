"""Runs the graphs of an engine folder as plainly as can be: ragged prompts, single tokens, a cache poisoned with NaN.

Owns no scheduling and reuses nothing: each call binds its arrays anew. The engine proper is python_backends/engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Tokens = Sequence[int]
Array = NDArray[Any]


def open_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: Any, feed: Mapping[str, Array], results: Mapping[str, Array]) -> None:
    """One run with every input and output bound; `results` are written in place."""
    binding = session.io_binding()
    for name, array in feed.items():
        assert array.flags.c_contiguous, name
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in results.items():
        assert array.flags.c_contiguous, name
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)


def padded(rows: Sequence[Tokens]) -> Array:
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


class Folder:
    """engine.json and the sessions of a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.facts = json.loads((folder / "engine.json").read_text())
        self.vocabulary, self.layers = self.facts["vocab_size"], self.facts["layers"]

    def decoder(self, beams: int = 1) -> Any:
        return open_session(self.path / self.facts["files"]["decoder"][str(beams)])

    def cache(self, rows: int, capacity: int, dtype: str = "") -> Array:
        """[layers, 2, rows, heads, capacity, dim], poisoned."""
        shape = (self.layers, 2, rows, self.facts["heads"], capacity, self.facts["head_dim"])
        dtype = dtype or self.facts["kv_type"]
        return np.full(shape, 111 if dtype == "int8" else np.nan, dtype)

    def bound(self, cache: Array, name: str) -> dict[str, Array]:
        return {f"{name}_{part}_{i}": cache[i, j] for i in range(self.layers) for j, part in enumerate("kv")}


class Decoder:
    """Rows of a decoder-only model, all taken in with one ragged batch."""

    def __init__(self, folder: Path, rows: int, capacity: int) -> None:
        self.folder = Folder(folder)
        self.session = self.folder.decoder()
        self.kv = self.folder.cache(rows, capacity)
        self.lengths = np.zeros(rows, np.int64)

    def prefill(self, prompts: Sequence[Tokens]) -> Array:
        """Logits [rows, vocabulary] behind each prompt."""
        ids, self.lengths = padded(prompts), np.array([len(prompt) for prompt in prompts])
        positions = np.ascontiguousarray(np.broadcast_to(np.arange(ids.shape[1]), ids.shape))
        return self._run(ids, positions, np.array(ids.shape[1], np.int32), self.lengths[:, None] - 1)

    def step(self, tokens: Tokens) -> Array:
        """Logits behind one more token a row."""
        ids, positions = np.array(tokens, np.int64)[:, None], self.lengths[:, None].copy()
        self.lengths = self.lengths + 1
        return self._run(ids, positions, np.array(self.lengths.max(), np.int32), np.zeros_like(positions))

    def chunk(self, tokens: Tokens) -> Array:
        """Logits behind several more tokens of the only row."""
        positions = np.arange(self.lengths[0], self.lengths[0] + len(tokens))[None]
        self.lengths = self.lengths + len(tokens)
        total = np.array(self.lengths[0], np.int32)
        return self._run(np.array([tokens], np.int64), positions, total, np.array([[len(tokens) - 1]]))

    def _run(self, ids: Array, positions: Array, total: Array, last: Array) -> Array:
        rows = len(ids)
        logits, next_ids = np.full((rows, self.folder.vocabulary), np.nan, np.float32), np.zeros((rows, 1), np.int64)
        feed = {
            "input_ids": ids,
            "position_ids": positions,
            "seqlens_k": (self.lengths - 1).astype(np.int32),
            "total_length": total,
            "last_index": last,
        }
        present = self.folder.bound(self.kv, "present")
        run(
            self.session,
            feed | self.folder.bound(self.kv, "past"),
            {"logits": logits, "next_ids": next_ids, **present},
        )
        assert (next_ids[:, 0] == logits.argmax(-1)).all()
        return logits


class EncoderDecoder:
    """Requests of an encoder-decoder with `beams` rows each."""

    def __init__(self, folder: Path, beams: int, capacity: int, source_capacity: int) -> None:
        self.folder, self.beams = Folder(folder), beams
        self.capacity, self.source_capacity = capacity, source_capacity
        self.encoder = open_session(folder / self.folder.facts["files"]["encoder"])
        self.session = self.folder.decoder(beams)

    def encode(self, sources: Sequence[Tokens]) -> list[Array]:
        """Encode ragged sources into cross K and V; returns the encoder's outputs, each source's own part."""
        ids, lengths = padded(sources), np.array([len(source) for source in sources])
        n, width = ids.shape
        heads, dim = self.folder.facts["heads"], self.folder.facts["head_dim"]
        layers, in_steps = range(self.folder.layers), self.folder.facts["cross_type"] == "int8"
        shape = (n, width, 2 * heads * dim)
        outputs = {f"cross_{i}": np.zeros(shape, np.int8 if in_steps else np.float32) for i in layers}
        scales = {f"cross_scale_{i}": np.zeros((n, 2 * heads * dim), np.float32) for i in layers if in_steps}
        feed = {
            "input_ids": ids,
            "seqlens_k": (lengths - 1).astype(np.int32),
            "total_length": np.array(width, np.int32),
        }
        run(self.encoder, feed, outputs | scales)
        self.cross = self.folder.cache(n, self.source_capacity, self.folder.facts["cross_type"])
        self.scales = {
            f"cross_{part}_scale_{i}": np.ascontiguousarray(scale.reshape(n, 2, -1)[:, j])
            for i, scale in enumerate(scales.values())
            for j, part in enumerate("kv")
        }
        self.last = np.zeros((self.folder.layers, 2, n, 1, heads * dim), np.float32)
        for i, output in enumerate(outputs.values()):
            for row, length in enumerate(lengths):
                kv = output[row, :length].reshape(length, 2, heads, dim)
                self.cross[i, :, row, :, :length] = kv.transpose(1, 2, 0, 3)
                self.last[i, :, row, 0] = kv[-1].reshape(2, -1)
        self.source_lengths, self.length = lengths, 0
        self.kv = self.folder.cache(n * self.beams, self.capacity)
        ones = np.ones(shape[0:1] + shape[2:], np.float32)
        wide = [output * scales.get(f"cross_scale_{i}", ones)[:, None] for i, output in enumerate(outputs.values())]
        return [np.stack([output[row, :length] for output in wide]) for row, length in enumerate(lengths)]

    def step(self, tokens: Tokens) -> Array:
        """Logits [requests * beams, vocabulary] behind one more token a row."""
        rows = len(tokens)
        positions = np.full((rows, 1), self.length, np.int64)
        self.length += 1
        logits, next_ids = np.full((rows, self.folder.vocabulary), np.nan, np.float32), np.zeros((rows, 1), np.int64)
        feed = {
            "input_ids": np.array(tokens, np.int64)[:, None],
            "position_ids": positions,
            "seqlens_k": np.full(rows, self.length - 1, np.int32),
            "total_length": np.array(self.length, np.int32),
            "source_seqlens_k": (self.source_lengths - 1).astype(np.int32),
            "source_total_length": np.array(self.source_lengths.max(), np.int32),
        }
        folder, cross = self.folder, self.folder.bound(self.cross, "cross")
        results = {"logits": logits, "next_ids": next_ids, **folder.bound(self.kv, "present")}
        run(
            self.session,
            feed | folder.bound(self.kv, "past") | cross | self._last() | self.scales,
            results | folder.bound(self.cross, "cross_present"),
        )
        assert (next_ids[:, 0] == logits.argmax(-1)).all()
        return logits

    def _last(self) -> dict[str, Array]:
        return {
            f"cross_{part}_last_{i}": self.last[i, j] for i in range(self.folder.layers) for j, part in enumerate("kv")
        }
