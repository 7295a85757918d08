"""Attention in OpenVINO against numpy: over pages, with a bias by distance, to a source, and within one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Attention, CrossAttention, DistanceBias, Linear, constant
from hfx.exporter.openvino.attention import (
    EncoderAttention,
    PagedSelfAttention,
    RowSelfAttention,
    SourceAttention,
    source_bias,
)
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from tests.unit.openvino_driver import HUGE, Compiled, Pages

Array = NDArray[Any]
HEADS, DIM = 3, 16
WIDTH = HEADS * DIM
CAPACITY = 100
# Of the largest number: how far K and V in pages of each type are from float32.
ERRORS = {"f32": 1e-6, "f16": 1e-3, "u8": 0.03}
UNUSED = Linear("unused", constant("unused", np.zeros((1, 1), np.float32)))


def self_block(scale: float = 0.25) -> Attention:
    return Attention(UNUSED, UNUSED, HEADS, DIM, scale)


def normal(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(scores: Array) -> Array:
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def by_head(rows: Array) -> Array:
    """[length, width] to [heads, length, dim]."""
    return rows.reshape(len(rows), HEADS, DIM).transpose(1, 0, 2).astype(np.float64)


def attended(query: Array, key: Array, value: Array, scale: float, bias: Any = 0.0) -> Array:
    """[length, width] of rows [length, width]."""
    scores = by_head(query) @ by_head(key).transpose(0, 2, 1) * scale + bias
    return (softmax(scores) @ by_head(value)).transpose(1, 0, 2).reshape(len(query), WIDTH)


def causal(qkv: Array, scale: float) -> Array:
    later = np.triu(np.full((len(qkv), len(qkv)), -np.inf), 1)
    return attended(*np.split(qkv, 3, axis=1), scale, later)


def close(got: Array, want: Array, share: float) -> bool:
    return got.shape == want.shape and bool(np.abs(got - want).max() <= share * np.abs(want).max())


class SelfPages:
    """One layer of attention over pages: `take` appends parts of sequences, each [tokens, 3 * width]."""

    def __init__(self, folder: Path, kind: str = "f32", rows: int = 8, scale: float = 0.25, threads: int = 1) -> None:
        graph = OpenVinoGraph("self")
        qkv = graph.input("qkv", np.float32, [ANY, 3 * WIDTH])
        graph.output("y", PagedSelfAttention(graph)(qkv, 0, self_block(scale)))
        graph.save(folder / "self.xml")
        self.model = Compiled(folder / "self.xml", (HEADS, DIM), threads, KV_CACHE_PRECISION=kind)
        self.pages = Pages(self.model.inputs, "", 1, rows, CAPACITY)
        self.lengths = [0] * rows

    def take(self, parts: list[tuple[int, Array]]) -> list[Array]:
        rows, counts = [row for row, _ in parts], [len(part) for _, part in parts]
        past = [self.lengths[row] for row in rows]
        feed = {"qkv": np.concatenate([part for _, part in parts])}
        y = self.model(feed | self.pages.feed(rows, past, counts))["y"]
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        return np.split(y, np.cumsum(counts)[:-1])


def histories(*lengths: int) -> list[Array]:
    return [normal(length, 3 * WIDTH, seed=10 + at) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("kind", ERRORS)
def test_ragged_prompts_attend_to_their_own_past_alone(tmp_path: Path, kind: str) -> None:
    asked = histories(5, 33, 1, 64, 32, 97)
    got = SelfPages(tmp_path, kind).take(list(enumerate(asked)))
    for each, qkv in zip(got, asked, strict=True):
        assert close(each, causal(qkv, 0.25), ERRORS[kind])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ERRORS)
def test_prompts_chunks_and_steps_of_one_run_are_each_as_alone(tmp_path: Path, kind: str, threads: int) -> None:
    """Five sequences, at each run another part of each: whole, in chunks, token by token, and those that join late.

    To the bit on one thread; several share out the work by how much there is, and add up in that order.
    """
    asked = histories(60, 60, 60, 60, 60)
    sizes = ((60, 0, 0, 0), (20, 20, 20, 0), (57, 1, 1, 1), (0, 0, 59, 1), (31, 1, 1, 27))

    def parts(row: int) -> list[Array]:
        return np.split(asked[row], np.cumsum(sizes[row])[:-1])

    together = SelfPages(tmp_path, kind, threads=threads)
    got: list[list[Array]] = [[] for _ in asked]
    for run in range(4):
        now = [(row, parts(row)[run]) for row in range(5) if sizes[row][run]]
        for (row, _), y in zip(now, together.take(now), strict=True):
            got[row].append(y)
    for row, each in enumerate(got):
        alone = SelfPages(tmp_path, kind, threads=threads)
        own = [alone.take([(row, part)])[0] for part in parts(row) if len(part)]
        assert close(np.concatenate(each), causal(asked[row], 0.25), ERRORS[kind])
        assert close(np.concatenate(own), np.concatenate(each), 0 if threads == 1 else 1e-6), row


class Sources:
    """Attention of `beams` rows a request to the requests' sources, which stand in blocks once."""

    def __init__(self, folder: Path, kind: str, sources: list[Array], threads: int = 1) -> None:
        graph = OpenVinoGraph("cross")
        query = graph.input("query", np.float32, [ANY, WIDTH])
        block = CrossAttention(UNUSED, UNUSED, UNUSED, HEADS, DIM, 0.25)
        graph.output("y", SourceAttention(graph)(query, 0, block))
        graph.save(folder / "cross.xml")
        self.model = Compiled(folder / "cross.xml", (HEADS, DIM), threads, KV_CACHE_PRECISION=kind)
        self.pages = Pages(self.model.inputs, "cross_", 1, len(sources), CAPACITY)
        self.sources = sources
        last = []
        for row, source in enumerate(sources):
            for part, name in zip(np.split(source, 2, axis=1), ("key", "value"), strict=True):
                cached = part.astype(self.model.inputs["cross_key_cache.0"].dtype)
                self.pages.put(f"cross_{name}_cache.0", row, by_head(cached))
                last.append(cached[-1].astype(np.float32))
        self.last = {"cross_k_last.0": np.stack(last[0::2]), "cross_v_last.0": np.stack(last[1::2])}

    def attend(self, query: Array) -> Array:
        past = [len(source) - 1 for source in self.sources]
        feed = self.pages.feed(range(len(past)), past, [1] * len(past))
        return self.model({"query": query} | feed | self.last)["y"]


def encoded(*lengths: int) -> list[Array]:
    return [normal(length, 2 * WIDTH, seed=20 + at) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("beams", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_any_number_of_beams_attends_to_ragged_sources(tmp_path: Path, kind: str, beams: int) -> None:
    sources = encoded(5, 1, 32, 33, 97)
    query = normal(len(sources) * beams, WIDTH, seed=1)
    opened = Sources(tmp_path, kind, sources)
    got = opened.attend(query)
    for row in range(len(query)):
        want = attended(query[row : row + 1], *np.split(sources[row // beams], 2, axis=1), 0.25)
        assert close(got[row : row + 1], want, ERRORS[kind])
    assert np.array_equal(opened.attend(query), got), "a step changes nothing of a source"


class Rows:
    """Attention with a bias by distance to rows of one capacity: T5's decoder."""

    def __init__(self, folder: Path, table: Array, rows: int, capacity: int, scale: float = 1.0) -> None:
        graph = OpenVinoGraph("rows")
        qkv = graph.input("qkv", np.float32, [ANY, 3 * WIDTH])
        positions = graph.input("positions", np.int64, [ANY])
        attend = RowSelfAttention(graph, positions, DistanceBias(constant("bias", table), len(table) - 1), [])
        graph.output("y", attend(qkv, 0, self_block(scale)))
        graph.output("new_kv", attend.new_kv(HEADS, DIM))
        graph.save(folder / "rows.xml")
        self.model = Compiled(folder / "rows.xml")
        self.kv = np.full((2, rows, HEADS, capacity, DIM), HUGE, np.float32)

    def step(self, qkv: Array, positions: list[int]) -> Array:
        feed = {"qkv": qkv, "positions": np.array(positions), "past_k_0": self.kv[0], "past_v_0": self.kv[1]}
        found = self.model(feed)
        assert found["new_kv"].shape == (2, len(qkv), HEADS, DIM)
        self.kv[:, np.arange(len(qkv)), :, positions] = found["new_kv"].transpose(1, 0, 2, 3)
        return found["y"]


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rows_with_a_bias_by_distance_are_t5s_attention(tmp_path: Path, scale: float) -> None:
    """Distances beyond the table take its last row; rows are at positions of their own, in any capacity."""
    table, starts, steps = normal(9, HEADS, seed=2) * 2, (0, 3, 11), 24
    whole = [normal(start + steps, 3 * WIDTH, seed=30 + at) for at, start in enumerate(starts)]
    rows = Rows(tmp_path, table, 3, 40, scale)
    for row, (start, qkv) in enumerate(zip(starts, whole, strict=True)):
        for at, part in enumerate(np.split(qkv[:start], 3, axis=1)[1:]):
            rows.kv[at, row, :, :start] = by_head(part)
    got = np.stack(
        [
            rows.step(
                np.stack([qkv[start + step] for start, qkv in zip(starts, whole, strict=True)]),
                [start + step for start in starts],
            )
            for step in range(steps)
        ],
        axis=1,
    )
    for row, (start, qkv) in enumerate(zip(starts, whole, strict=True)):
        assert close(got[row], t5_attention(qkv, table, scale)[start:], 2e-6)


def t5_attention(qkv: Array, table: Array, scale: float) -> Array:
    """transformers' T5Attention of a decoder, with its unscaled scores times `scale`."""
    places = np.arange(len(qkv))
    distance = places[:, None] - places
    bias = table[np.clip(distance, 0, len(table) - 1)].transpose(2, 0, 1)
    return attended(*np.split(qkv, 3, axis=1), scale, np.where(distance < 0, -np.inf, bias))


def buckets(distances: Array, count: int, longest: int) -> Array:
    """transformers' T5Attention._relative_position_bucket for both directions."""
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    found = T5Attention._relative_position_bucket(torch.from_numpy(distances), True, count, longest)
    return np.asarray(found.numpy())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length", [1, 2, 31, 64, 90])
def test_tokens_of_a_source_attend_to_all_of_it_with_the_bias_of_transformers(
    tmp_path: Path, length: int, biased: bool
) -> None:
    weights, reach, count = normal(8, HEADS, seed=6) * 3, 20, 8
    table = weights[buckets(np.arange(-reach, reach + 1), count, reach)]
    encoder_graph(DistanceBias(constant("bias", table), reach) if biased else None).save(tmp_path / "encoder.xml")
    qkv = normal(2 * length, 3 * WIDTH, seed=5)
    got = Compiled(tmp_path / "encoder.xml")({"qkv": qkv, "lead": np.array([2, length])})["y"]
    places = np.arange(length)
    bias = weights[buckets(places[None] - places[:, None], count, reach)].transpose(2, 0, 1) if biased else 0.0
    want = [attended(*np.split(part, 3, axis=1), 0.25, bias) for part in np.split(qkv, 2)]
    assert close(got, np.concatenate(want), 2e-6)


def encoder_graph(bias: DistanceBias | None) -> OpenVinoGraph:
    from openvino import opset16 as ops

    graph = OpenVinoGraph("encoder")
    qkv, lead = graph.input("qkv", np.float32, [ANY, 3 * WIDTH]), graph.input("lead", np.int64, [2])
    length = ops.gather(lead, graph.const(1, np.int64), graph.const(0, np.int64))
    made = None if bias is None else source_bias(graph, length, bias)
    graph.output("y", EncoderAttention(graph, lead, made)(qkv, 0, self_block(1 / math.sqrt(DIM))))
    return graph
