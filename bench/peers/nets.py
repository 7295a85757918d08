"""A peer's model in the peer's process, and how it answers a Batch: the parts that every peer has in common.

A generator is opened by `open_net(model, folder, fetched, precision, threads)`, which gives a Net; a classifier by a
function of the same arguments that gives Labels. Knows no library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bench.peers.cases import Answered, Batch, Wanted
from bench.peers.loads import Find, Line, TextLoad, Texts, Times
from bench.peers.memory import peak_bytes
from bench.peers.model import Model, Reading
from bench.peers.resident import Prepare, Run
from bench.peers.words import Words

Ids = Sequence[int]


class Net(Protocol):
    """A generator that takes and gives token ids."""

    def generate(self, prompts: Sequence[Ids], wanted: Wanted) -> Sequence[Ids]:
        """The new ids of each row."""


class Attending(Protocol):
    """A generator that takes requests as they come."""

    def attend(self, line: Line, find: Find, batch: int, unlike: float) -> None:
        """Answer all of the line; where rows stay together, at most `batch`, `unlike` as TextLoad says."""


class Labels(Protocol):
    """A classifier."""

    def labels(self, texts: Sequence[str], longest: int) -> Sequence[str]:
        """The likeliest label of each text, of which `longest` tokens are read at most."""


OpenNet = Callable[[Model, str, str, str, int], Any]  # a Net or Labels, by a module's function


def open_texts(
    opener: OpenNet, model: Model, reading: Reading, folder: str, fetched: str, precision: str, threads: int
) -> Prepare:
    """Answers a Batch with (Answered, most bytes held); text in, text out.

    A TextLoad is for a net that can also attend to requests as they come: it is answered with their Times.
    """
    net = opener(model, folder, fetched, precision, threads)
    words = Words(model, reading)

    def prepare(case: Batch | TextLoad) -> Run:
        if isinstance(case, TextLoad):
            return lambda: _attended(net, case, words)

        def run() -> tuple[Answered, int]:
            wanted = case.wanted
            prompts = words.encode(case.texts, wanted.new)
            rows = net.generate(prompts, wanted)
            written = tuple(len(row) for row in rows)
            return Answered(sum(map(len, prompts)), written, words.decode(rows)), peak_bytes()

        return run

    return prepare


def _attended(net: Attending, load: TextLoad, words: Words) -> list[Times]:
    if load.warming:
        _attended(net, load.warming, words)
    line = Line(load.at, load.again, load.count, load.seconds)
    net.attend(line, Texts(load, words, line), load.batch, load.unlike)
    return line.times


def open_labels(
    opener: OpenNet, model: Model, reading: Reading, folder: str, fetched: str, precision: str, threads: int
) -> Prepare:
    """Answers a Batch with (Answered, most bytes held); text in, label out."""
    net: Labels = opener(model, folder, fetched, precision, threads)

    def prepare(case: Batch) -> Run:
        return lambda: (Answered(labels=tuple(net.labels(case.texts, reading.longest))), peak_bytes())

    return prepare
