"""Rows of an engine folder, run by the engine's runner without its scheduler, on memory filled with NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.python_backends.engine.partition import Outputs
from hfx.python_backends.engine.plan import Span
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import ONNXRUNTIME, read_spec
from tests.rigs.checkpoints.tiny_generators import VOCABULARY
from tests.rigs.engine.watched_engine import Watch

Tokens = Sequence[int]
Array = NDArray[Any]


class Rows:
    """`groups` requests of `beams` rows each; every call gives logits [rows, vocabulary]."""

    def __init__(
        self, folder: Path, groups: int, beams: int = 1, runtime: str = ONNXRUNTIME, provider: str = "CPU"
    ) -> None:
        settings = SessionSettings(threads=1, provider=provider, runtime=runtime)
        self._runner: Any = open_runner(read_spec(folder), groups * beams, settings)
        assert self._runner.runtime == runtime
        self._runner.open_partition(beams)
        if provider == "CPU":
            Watch(self._runner).poison({})
        self._groups, self._beams, self._length = groups, beams, 0

    def prefill(self, prompts: Sequence[Tokens]) -> Array:
        """Return the logits behind each prompt of a ragged batch."""
        return _checked(
            self._runner.run([Span(tuple(prompt), rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
        )

    def chunk(self, tokens: Tokens) -> Array:
        """Return the logits behind the next part of one long prompt."""
        start, self._length = self._length, self._length + len(tokens)
        return _checked(self._runner.run([Span(tuple(tokens), start)], logits=True))

    def encode(self, sources: Sequence[Tokens]) -> None:
        """Encode a ragged batch of sources, one a group."""
        self._runner.encode(sources, [[(self._beams, group)] for group in range(len(sources))])

    def step(self, tokens: Tokens) -> Array:
        """Return the logits behind one more token a row."""
        partition = self._runner.partitions[self._beams]
        partition.set_next_tokens(list(enumerate(tokens)))
        return _checked(partition.step(self._groups, logits=True))


def _checked(outputs: Outputs) -> Array:
    assert outputs.logits is not None
    assert np.isfinite(outputs.logits).all()
    assert (outputs.next_ids[:, 0] == outputs.logits.argmax(-1)).all()
    return outputs.logits.copy()


def decoded(
    folder: Path,
    inputs: Sequence[Tokens],
    answers: Sequence[Tokens],
    beams: int = 1,
    runtime: str = ONNXRUNTIME,
    provider: str = "CPU",
) -> Array:
    """Return the logits [rows, steps, vocabulary] of `inputs` in one batch.

    With an encoder they are the logits behind each token of `answers`; otherwise those behind the prompt and behind all
    tokens but the last.
    """
    rows, columns = Rows(folder, len(inputs), beams, runtime, provider), list(zip(*answers, strict=True))
    if read_spec(folder).has_encoder:
        rows.encode(inputs)
        return np.stack([rows.step(column) for column in columns], axis=1)
    first = rows.prefill(inputs)
    return np.stack([first, *(rows.step(column) for column in columns[:-1])], axis=1)


def random_rows(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Return random tokens of tiny_generators without special tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCABULARY, length).tolist() for length in lengths]
