"""Runs the OpenVINO models of an engine folder as plainly as can be: tables of scattered blocks, a poisoned cache.

The same calls as graph_driver.py, so that one test can be asked of both runtimes. Owns no scheduling, shares no block
and reuses nothing but the compiled models; the engine proper is python_backends/engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.python_backends.engine.openvino_model import InferRequest, OpenVinoModel, Port, _port, core
from hfx.python_backends.engine.paged_attention import use_pages
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import EngineSpec, read_spec

Tokens = Sequence[int]
Array = NDArray[Any]
BLOCK = 32
ONE_THREAD = SessionSettings(threads=1)
HUGE = 1e20  # where what nobody reads has to be finite, and far from the 1e30 that masks it


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

    def put(self, name: str, row: int, values: Array) -> None:
        """Fill `row` of an array from `values` [heads, length, dim]."""
        for at, block in enumerate(self.tables[row, : -(-values.shape[1] // BLOCK)]):
            piece = values[:, at * BLOCK : (at + 1) * BLOCK]
            self.arrays[name][block, :, : piece.shape[1]] = piece


class Runnable:
    """A compiled model with one request; each run binds all inputs anew."""

    def __init__(self, path: Path, spec: EngineSpec) -> None:
        model = OpenVinoModel(path, spec, ONE_THREAD)
        self.inputs, self.vocabulary = model.inputs, spec.vocab_size
        self._request: InferRequest = model.request()

    def __call__(self, feed: Mapping[str, Array], *outputs: str) -> list[Array]:
        assert set(feed) == set(self.inputs)
        self._request.bind({name: np.asarray(array, order="C") for name, array in feed.items()})
        self._request.run()
        return [self._request.output(name).copy() for name in outputs]

    def logits(self, feed: Mapping[str, Array]) -> Array:
        """True logits [rows, vocabulary]; `next_ids` is held to them."""
        next_ids, padded = self(feed, "next_ids", "logits")
        assert np.isfinite(padded).all()
        assert (next_ids[:, 0] == padded.argmax(-1)).all()
        assert (next_ids < self.vocabulary).all()
        logits = padded[:, : self.vocabulary]
        return logits * self._request.output("logit_scale") if self._request.gives("logit_scale") else logits

    def output(self, name: str) -> Array:
        return self._request.output(name).copy()


@lru_cache(maxsize=8)
def compiled(path: Path) -> Runnable:
    """A model of an engine folder, compiled once for all that ask for it next."""
    return Runnable(path, read_spec(path.parent))


class Decoder:
    """Rows of a decoder-only model."""

    def __init__(self, folder: Path, rows: int, capacity: int) -> None:
        spec = read_spec(folder)
        assert spec.openvino is not None
        self.model = compiled(spec.openvino.decoder)
        self.pages = Pages(self.model.inputs, "", spec.layers, rows, capacity)
        self.lengths = [0] * rows

    def prefill(self, prompts: Sequence[Tokens]) -> Array:
        """Logits [rows, vocabulary] behind each prompt, all taken in with one ragged run."""
        return self.take(list(enumerate(prompts)))

    def step(self, tokens: Tokens) -> Array:
        """Logits behind one more token a row."""
        return self.take([(row, [token]) for row, token in enumerate(tokens)])

    def chunk(self, tokens: Tokens) -> Array:
        """Logits behind several more tokens of the first row."""
        return self.take([(0, tokens)])

    def take(self, parts: Sequence[tuple[int, Tokens]]) -> Array:
        """Logits behind more tokens of some rows, any number of each."""
        rows, past = [row for row, _ in parts], [self.lengths[row] for row, _ in parts]
        counts = [len(tokens) for _, tokens in parts]
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        positions = [np.arange(first, first + count) for first, count in zip(past, counts, strict=True)]
        feed = {
            "input_ids": np.concatenate([np.array(tokens, np.int64) for _, tokens in parts]),
            "position_ids": np.concatenate(positions),
            "last": np.cumsum(counts) - 1,
        }
        return self.model.logits(feed | self.pages.feed(rows, past, counts))


class EncoderDecoder:
    """Requests of an encoder-decoder with `beams` rows each."""

    def __init__(self, folder: Path, beams: int, capacity: int, source_capacity: int) -> None:
        self.spec, self.beams = read_spec(folder), beams
        self.capacity, self.source_capacity = capacity, source_capacity
        assert self.spec.openvino is not None and self.spec.openvino.encoder is not None
        self.encoder, self.model = compiled(self.spec.openvino.encoder), compiled(self.spec.openvino.decoder)
        self.has_bias = "past_k_0" in self.model.inputs

    def encode(self, sources: Sequence[Tokens]) -> list[Array]:
        """Encode sources one by one into cross K and V; returns each one's [layers, 2, heads, length, dim]."""
        spec, count = self.spec, len(sources)
        names = [f"cross_{layer}" for layer in range(spec.layers)]
        feeds = [{"input_ids": np.array([each], np.int64), "lengths": np.array([len(each)])} for each in sources]
        found = [np.stack(self.encoder(feed, *names)) for feed in feeds]
        each = [outputs[:, 0] for outputs in found]
        self.cross = Pages(self.model.inputs, "cross_", spec.layers, count, self.source_capacity)
        self.last = {}
        for layer in range(spec.layers):
            for part, name in enumerate(("key", "value")):
                for row, outputs in enumerate(each):
                    self.cross.put(f"cross_{name}_cache.{layer}", row, outputs[layer, part])
                last = [outputs[layer, part, :, -1].reshape(-1) for outputs in each]
                self.last[f"cross_{name[0]}_last.{layer}"] = np.stack(last).astype(np.float32)
        self.past, self.length = [len(source) - 1 for source in sources], 0
        rows = count * self.beams
        if self.has_bias:
            shape = (2 * spec.layers, rows, spec.heads, self.capacity, spec.head_dim)
            self.kv = np.full(shape, HUGE, np.float32)
        else:
            self.pages = Pages(self.model.inputs, "", spec.layers, rows, self.capacity)
        return each

    def step(self, tokens: Tokens) -> Array:
        """Logits [requests * beams, vocabulary] behind one more token a row."""
        rows = len(tokens)
        feed = {"input_ids": np.array(tokens, np.int64), "position_ids": np.full(rows, self.length)}
        cross = self.cross.feed(range(len(self.past)), self.past, [1] * len(self.past)) | self.last
        logits = self.model.logits(feed | cross | self._own(rows))
        if self.has_bias:
            self.kv[:, :, :, self.length] = self.model.output("new_kv")
        self.length += 1
        return logits

    def _own(self, rows: int) -> dict[str, Array]:
        """The inputs for self attention."""
        if not self.has_bias:
            return self.pages.feed(range(rows), [self.length] * rows, [1] * rows)
        return {
            f"past_{part}_{layer}": self.kv[2 * layer + at]
            for layer in range(self.spec.layers)
            for at, part in enumerate("kv")
        }
