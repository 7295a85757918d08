"""A model of arithmetic under the engine's own runners, caches and picker: only ONNX Runtime's sessions are replaced.

The keys of a row are its tokens, so that the next token depends on each of them. Memory that no row may read has the
token NOTHING, which is followed by NOTHING and by scores that are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hfx.python_backends.engine.kv_cache import KvCache, PrefixBlocks
from hfx.python_backends.engine.partition import DecoderPartition, StepSize
from hfx.python_backends.engine.placement import Host
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.prefill import ArraySources, Prefill
from hfx.python_backends.engine.reference import best, log_softmax
from hfx.python_backends.engine.scores import HostScores
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import DECODER, ENCODER_DECODER, ONNXRUNTIME, EngineSpec, Files

VOCABULARY = 32
NOTHING = VOCABULARY
MAX_LENGTH, MAX_SOURCE = 400, 96
BEAMS = (1, 2, 3, 4)
GROUP = 4  # tokens that follow each other in a circle, so that guessed tokens are often right
BYTES_OF_BLOCK = 128  # keys and values of 64 tokens


def _scores() -> NDArray[np.float32]:
    scores = np.random.default_rng(7).uniform(0, 1.5, (VOCABULARY + 1, VOCABULARY)).astype(np.float32)
    np.fill_diagonal(scores, 2.0)
    scores[NOTHING] = np.nan
    return scores


SCORES = _scores()


def next_token(fed: bytes, source: bytes = b"") -> int:
    """Return the token that the model ranks first after the tokens `fed`."""
    if NOTHING in fed or NOTHING in source:
        return NOTHING
    mixed, last = crc32(fed, crc32(source)), fed[-1]
    return mixed % VOCABULARY if mixed >> 8 & 1 else last - last % GROUP + (last + 1) % GROUP


def spec(has_encoder: bool) -> EngineSpec:
    """Return the description of the model."""
    decoder = {width: Path(str(width)) for width in BEAMS}
    return EngineSpec(
        kind=ENCODER_DECODER if has_encoder else DECODER,
        vocab_size=VOCABULARY,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        max_length=MAX_LENGTH,
        max_source=MAX_SOURCE if has_encoder else 0,
        beams=BEAMS if has_encoder else (),
        kv_type="uint8",
        cross_type="uint8" if has_encoder else "",
        minimum_onnxruntime="1.22",
        needs_vnni=False,
        files=Files(Path("encoder") if has_encoder else None, decoder, Path(), Path(), None),
        runtime=ONNXRUNTIME,
    )


class Net:
    """A decoder for `width` beams, or the encoder."""

    def __init__(self, placement: Arithmetic, width: int, run: type[DecoderRun | EncoderRun]) -> None:
        self.inputs = {"input_ids": [None, None], "last_index": [None, None]}
        self.placement, self.width, self._run = placement, width, run

    def bind(self, inputs: dict[str, Any], outputs: dict[str, Any], captured: bool = False) -> DecoderRun | EncoderRun:
        return self._run(self, inputs, outputs)


class DecoderRun:
    """A run of a decoder: what it reads and writes of a row's cache is at the positions that the engine names."""

    captured = False

    def __init__(self, net: Net, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self._net, self._inputs, self._outputs = net, inputs, outputs
        self._cache = inputs["past_k_0"][:, 0, :, 0]
        self._next: list[int] = []

    def run(self) -> None:
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Write the tokens to the cache, and compute what follows."""
        inputs, width = self._inputs, self._net.width
        tokens, starts = inputs["input_ids"], inputs["position_ids"][:, 0].tolist()
        last_index = inputs.get("last_index")
        picked = [[*range(tokens.shape[1])]] * len(tokens) if last_index is None else last_index.tolist()
        sources = self._sources()
        self._next = []
        for row, (start, end) in enumerate(zip(starts, inputs["seqlens_k"].tolist(), strict=True)):
            self._cache[row, start : start + tokens.shape[1]] = tokens[row]
            fed = self._cache[row, : end + 1].tobytes()
            source = sources[row // width] if sources else b""
            self._next += [next_token(fed[: start + at + 1], source) for at in picked[row]]

    def finish(self) -> None:
        """Let the time of the run pass, and write its outputs."""
        rows, tokens = self._inputs["input_ids"].shape
        self._net.placement.run(rows, tokens, int(self._inputs["seqlens_k"].max()))
        self._outputs["next_ids"][:, 0] = self._next
        if "logits" in self._outputs:
            self._outputs["logits"][:] = SCORES[self._next]

    def drop(self) -> None:
        """Do nothing."""

    def _sources(self) -> list[bytes]:
        if "cross_k_0" not in self._inputs:
            return []
        ends = self._inputs["source_seqlens_k"].tolist()
        return [self._inputs["cross_k_0"][group, 0, : end + 1, 0].tobytes() for group, end in enumerate(ends)]


class EncoderRun(DecoderRun):
    """A run of the encoder, whose keys of a source are its tokens."""

    def __init__(self, net: Net, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self._net, self._inputs, self._outputs = net, inputs, outputs

    def run(self) -> None:
        ids, ends = self._inputs["input_ids"], self._inputs["seqlens_k"]
        self._net.placement.run(*ids.shape, 0)
        is_padding = np.arange(ids.shape[1]) > ends[:, None]
        self._outputs["cross_0"][...] = np.where(is_padding, NOTHING, ids)[:, :, None]


class Scores(HostScores):
    """Scores whose log-softmax and best are numpy's."""

    def __init__(self, slots: int) -> None:
        self._vocabulary = VOCABULARY
        self._scores, self._logits = np.empty((2, slots, VOCABULARY), np.float32)

    def _gather(self, logits: NDArray[np.float32], picks: Any) -> None:
        at = 0
        for sequence, rows in picks.items():
            own = logits[list(rows)]
            self._scores[at : at + len(rows)] = log_softmax(own) if sequence.search.uses_log_probs else own
            at += len(rows)

    def _top(self, scores: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return best(scores, count)


class Prompts(Prefill):
    """Runs of prompts. Their prefix cache has `blocks_kept`; parts give the same bits if that is `known`."""

    blocks_kept, known = 0, True

    def keep_prefixes(self, size: int) -> int:
        return super().keep_prefixes(self.blocks_kept * BYTES_OF_BLOCK)

    @property
    def same_in_parts(self) -> bool:  # type: ignore[override]
        return self.known


class Arithmetic(Host):
    """The placement of the model. `run` is called with the rows, tokens a row and last position of each run."""

    def __init__(self, random: Random, run: Callable[[int, int, int], None], check: Callable[[], None]) -> None:
        super().__init__(SessionSettings(threads=1))
        self.run = run
        self.check = check  # type: ignore[method-assign]
        chunk = random.choice((16, 48, 100, 256))
        self.runs_ahead = random.random() < 0.15
        self.limits = Limits(
            chunk,
            alone=chunk * random.choice((1, 2)),
            prefill=random.choice((32, 256)),
            encode=random.choice((64, 512)),
        )
        self.blocks = random.choice((0, 1, 2, 3, 8, 20))
        self._size = StepSize(random.choice((1, 1, 2, 3)), random.choice((1, 1, 2)))
        self._verifies = random.random() < 0.6
        self._same_in_parts, self._needs_outputs = random.random() < 0.7, random.random() < 0.5

    def open(self, path: Path) -> Any:
        return Net(self, int(str(path)), DecoderRun)

    def prompts(
        self, spec: EngineSpec, partition: DecoderPartition, slots: int, blocks: PrefixBlocks | None
    ) -> Prompts:
        prompts = Prompts(spec, partition, slots, blocks)
        prompts.blocks_kept = self.blocks
        prompts.known = bool(self.blocks) or self._same_in_parts
        prompts.needs_outputs = self._needs_outputs
        return prompts

    def sources(self, spec: EngineSpec, encoder: Path) -> ArraySources:
        net: Any = Net(self, 1, EncoderRun)
        return ArraySources(spec, net)

    def scores(self, spec: EngineSpec, slots: int) -> Scores:
        return Scores(slots)

    def cache(self, shape: tuple[int, ...], dtype: Any) -> KvCache:
        cache = super().cache(shape, dtype)
        cache.array[...] = NOTHING
        return cache

    def probe(self, spec: EngineSpec, partition: DecoderPartition, groups: int) -> tuple[StepSize, bool]:
        if self.runs_ahead:
            return StepSize(), False
        return self._size, self._verifies and partition.width == 1

    def light_rows(self, beams: Any) -> int:
        return 0 if self.runs_ahead else super().light_rows(beams)


def clear_unused(partition: DecoderPartition, lengths: dict[int, int], rows: int, ahead: int) -> None:
    """Write NOTHING to the memory of the first `rows` where no row of `lengths` (row -> length) has a token.

    The first `ahead` positions after a row's length may have been written by a step that was begun before its plan.
    """
    assert isinstance(partition.cache, KvCache)
    for row in range(rows):
        partition.cache.array[0, row, 0, lengths.get(row, -ahead) + ahead :, 0] = NOTHING
    if partition.cross is not None:
        used = {row // partition.width for row in lengths}
        for group in range(rows // partition.width):
            end = int(partition.cross.last_positions[group]) + 1 if group in used else 0
            partition.cross._cache.array[0, group, 0, end:, 0] = NOTHING
