"""What the engine asks of a runtime: the seam at which another one than ONNX Runtime can be put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Union, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .checks import Ids
from .plan import Limits, Span

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class SessionSettings:
    """How a model's sessions run: `threads` of each operator, 0 for one a core.

    `runtime` serves on CPU; None: the one that engine.json names, if it is there. `operators`: a library of operators
    for ONNX Runtime, without which the graphs' own definitions of them run.
    """

    threads: int = 0
    provider: str = "CPU"
    runtime: str | None = None
    operators: Path | None = None


@dataclass(frozen=True)
class Outputs:
    """What a run left on the host, valid until the next: `next_ids` [rows, 1] int64 and `logits` [rows, vocabulary]."""

    next_ids: NDArray[np.int64]
    logits: NDArray[np.float32] | None = None

    def first(self, rows: int) -> Outputs:
        """Those of the first rows."""
        return Outputs(self.next_ids[:rows], None if self.logits is None else self.logits[:rows])

    @staticmethod
    def joined(runs: Iterable[Outputs]) -> Outputs:
        """The rows of several runs, each of which is done when the one before has been read."""
        ids, logits = [], []
        for outputs in runs:
            ids.append(outputs.next_ids.copy())
            if outputs.logits is not None:
                logits.append(outputs.logits.copy())
        return Outputs(np.concatenate(ids), np.concatenate(logits) if logits else None)


class RunnerPartition(Protocol):
    """The rows of a model for `width` beams, row = group * width + beam, with their keys and values.

    Each row has a length, the positions of its cache that are filled: prompts set it, steps add one.
    """

    width: int

    @property
    def verifier(self) -> Verifier | None:
        """Itself; None where a token has other bits in a run of several, and where rows are beams."""

    def put_past(self, row: int, past: NDArray[Any]) -> None:
        """Fill the first positions of a row: [2 * layers, positions, heads, head_dim], each layer's K before its V."""

    def move(self, source: int, target: int) -> None:
        """Make group `target` hold what group `source` does: caches, lengths, next inputs."""

    def reorder_cache(self, pairs: Pairs) -> None:
        """Rows of one length, as (source, target): each target gets the cache of its source. No source is a target."""

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Set the next input of rows, as (row, token)."""

    def step(self, groups: int, logits: bool) -> Outputs:
        """Run one token in all rows of the first `groups` groups. The argmax of each row becomes its next input."""


class Verifier(RunnerPartition, Protocol):
    """A partition of one-row groups whose row 0 can take several tokens in a run, with the bits of as many steps."""

    def verify(self, draft: Ids, logits: bool) -> Outputs:
        """Run row 0's next token and `draft` behind it, with outputs for each; its next input must be set then."""

    def drop(self, positions: int) -> None:
        """Forget the last positions of row 0."""


class _Runner(Protocol):
    """A model and its caches. All calls but `open_partition` come from one thread, and only in the order of plans.

    `runtime` is its name in engine.json; `limits` is what it takes in a run.
    """

    runtime: str
    limits: Limits

    @property
    def partitions(self) -> Mapping[int, RunnerPartition]:
        """Those that are open, by width."""

    def open_partition(self, width: int) -> None:
        """Open what the partition of `width` needs, once; takes as long as loading a model. From any thread."""

    def second(self) -> Runner:
        """Another runner of the same model on the CPU, with rows of its own; the two never run at a time."""

    def release_memory(self) -> None:
        """Free memory that no row in use needs; called when there is none."""

    def close(self) -> None:
        """Release the model."""


@runtime_checkable
class DecoderRunner(_Runner, Protocol):
    """Of a model without an encoder, whose decoder runs prompts too; its rows are in the partition of width 1."""

    def run(self, spans: Sequence[Span], logits: bool, groups: int = 0) -> Outputs:
        """As in a `Run`, behind a step of `groups` groups where runs are mixed. A span's rows hold its prompt then.

        Spans that load from the prefix cache come alone. If it fails, the step and the spans can be run again.
        """

    def keep_prefixes(self, size: int) -> int:
        """Reserve `size` bytes for a prefix cache, before any run; how many blocks these are.

        0 where there can't be one, as a prompt that is run in parts has other bits than one that is run whole.
        """


@runtime_checkable
class EncoderDecoderRunner(_Runner, Protocol):
    """Of a model with an encoder, which prompts go to."""

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Give the cross K/V of source i to each (width, group) of `places[i]`, whose rows become empty."""

    def trim(self, groups: Pairs) -> None:
        """The first groups of partitions, as (width, number), are all that is in use; memory of others may be freed."""


Runner = Union[DecoderRunner, EncoderDecoderRunner]
