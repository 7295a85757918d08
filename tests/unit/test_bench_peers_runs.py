"""What a peer says becomes a Run, wrong counts included."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import Answered, Batch, Identity, Opened, PeerRun, peer_run
from bench.peers.model import Reading
from hfx.perf.results import Machine, Result, read_result, write_result


class Scripted(Opened):
    """A peer that takes 0.1 s a call and writes the counts that it is given."""

    identity = Identity("scripted", "A scripted peer", "toy", "text-generation", "fp32", 2)
    reading = Reading("text-generation", "decoder", "", 100)

    def __init__(self, *written: int) -> None:
        self._written = written

    def run(self, batch: Batch, seconds: float = 0.0) -> PeerRun:
        count = max(1, round(seconds / 0.1))
        return PeerRun((0.1,) * count, Answered(10, self._written, ("a",) * len(self._written)), 0.15, 1 << 20)

    def close(self) -> None:
        pass


def test_other_counts_are_kept_and_noted() -> None:
    run = peer_run(Scripted(5, 4, 5), Batch(("a", "b", "c"), 5))
    assert run.tokens is not None and run.tokens.each == (5, 4, 5)
    assert run.notes == ("1 rows have other tokens than asked for: 4, not 5",)


def test_calls_again_and_again() -> None:
    run = peer_run(Scripted(5, 5), Batch(("a", "b"), 5), seconds=0.5, label="mine", settings={"beams": 1})
    assert run.latency is not None and run.latency.count == 5
    assert run.latency.p50 == pytest.approx(100, rel=0.01)
    assert run.seconds == pytest.approx(0.5)
    assert run.throughput == pytest.approx(20)
    assert run.tokens_per_second == pytest.approx(100)
    assert run.tokens is not None and run.tokens.written == 10
    assert run.server is not None and run.server.cores == pytest.approx(1.5)
    assert run.subject.label == "mine"
    assert run.subject.settings == {"threads": 2, "beams": 1}


def test_a_result_file_of_it(tmp_path: Path) -> None:
    run = peer_run(Scripted(5), Batch(("a",), 5))
    machine = Machine("a processor", 2, 1, "a system", 0.0)
    result = Result("compare", "title", "command", run.began, machine, (run,))
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result
