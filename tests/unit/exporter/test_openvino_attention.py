"""Attention over pages in OpenVINO against numpy, in each type of K and V; whole models are in test_families_parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Attention, Linear, constant
from hfx.exporter.openvino.attention import attend_own_pages
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from tests.rigs.openvino_driver import Compiled, Pages

Array = NDArray[Any]
HEADS, DIM, SCALE = 3, 16, 0.25
WIDTH = HEADS * DIM
CAPACITY = 100
# Of the largest number: how far K and V in pages of each type are from float32.
ERRORS = {"f32": 1e-6, "f16": 1e-3, "u8": 0.03}
UNUSED = Linear("unused", constant("unused", np.zeros((1, 1), np.float32)))


def by_head(rows: Array) -> Array:
    """[length, width] to [heads, length, dim]."""
    return rows.reshape(len(rows), HEADS, DIM).transpose(1, 0, 2).astype(np.float64)


def causal(qkv: Array) -> Array:
    """[length, width] of [length, 3 * width]."""
    query, key, value = map(by_head, np.split(qkv, 3, axis=1))
    scores = query @ key.transpose(0, 2, 1) * SCALE + np.triu(np.full((len(qkv), len(qkv)), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    attended: Array = shares / shares.sum(-1, keepdims=True) @ value
    return attended.transpose(1, 0, 2).reshape(len(qkv), WIDTH)


def close(got: Array, want: Array, share: float) -> bool:
    return got.shape == want.shape and bool(np.abs(got - want).max() <= share * np.abs(want).max())


class SelfPages:
    """One layer of attention over pages: `take` appends parts of sequences, each [tokens, 3 * width]."""

    def __init__(self, folder: Path, kind: str = "f32", rows: int = 8, threads: int = 1) -> None:
        graph = OpenVinoGraph("self")
        qkv = graph.input("qkv", np.float32, [ANY, 3 * WIDTH])
        graph.output("y", attend_own_pages(graph, qkv, 0, Attention(UNUSED, UNUSED, HEADS, HEADS, DIM, SCALE)))
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ERRORS)
def test_prompts_chunks_and_steps_of_one_run_are_each_as_alone(tmp_path: Path, kind: str, threads: int) -> None:
    """Five sequences, at each run another part of each: whole, in chunks, token by token, and those that join late.

    To the bit on one thread; several share out the work by how much there is, and add up in that order.
    """
    sizes = ((60, 0, 0, 0), (20, 20, 20, 0), (57, 1, 1, 1), (0, 0, 59, 1), (31, 1, 1, 27))
    asked = np.random.default_rng(0).standard_normal((5, 60, 3 * WIDTH)).astype(np.float32)

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
        assert close(np.concatenate(each), causal(asked[row]), ERRORS[kind])
        assert close(np.concatenate(own), np.concatenate(each), 0 if threads == 1 else 1e-6), row
