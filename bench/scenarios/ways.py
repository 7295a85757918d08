"""The ways of a scenario, opened: hfx behind a real Triton, and the peers beside it, each answering case by case.

Owns what each is asked, and that nobody gets a figure who wrote another number of tokens. It must not know goals.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.peers import PEERS, Batch, Opened, peer_run
from bench.peers.ours import open_published
from bench.scenarios.scenario import HFX, Case, PeerWay, Scenario
from hfx.errors import HfxError, LoadFailed
from hfx.names import NO_REPEAT_NGRAM_SIZE, NUM_BEAMS, TEXT_INPUT, default_name
from hfx.perf.load import Closed, Limits, RequestSet, Slo
from hfx.perf.measuring import MeasureSpec, Target, measure, run_of
from hfx.perf.results import Run, Subject

Measure = Callable[[Case, RequestSet, int], Run]
LONGEST = 300.0  # seconds that a request may take
WARM_CALLERS = 32
CLASSIFIER_SECONDS = 0.7  # a peer's turn; a batch takes milliseconds


@dataclass(frozen=True)
class OpenedWay:
    """A way that answers. `peer` is None for hfx itself."""

    label: str
    measure: Measure
    peer: PeerWay | None = None

    def takes(self, case: Case) -> bool:
        """Whether it takes part in CASE."""
        return self.peer is None or self.peer.takes(case)

    def lasts(self, rounds: int) -> int:
        """How many of ROUNDS rounds it takes part in."""
        return rounds if self.peer is None else min(rounds, self.peer.rounds or rounds)


def served(
    target: Target, label: str, limited: Callable[[Run, RequestSet], Run], stop: threading.Event | None = None
) -> OpenedWay:
    """hfx behind the server at TARGET; LIMITED adds what the machine could do at most."""

    def once(case: Case, asks: RequestSet, round_: int) -> Run:
        order = MeasureSpec(asks, _limits(case), Slo.parse(case.slo) if case.slo else None, stream=case.stream)
        run = measure(target, case.plan, order, label=label, round=round_, case=case.name, stop=stop)
        return limited(checked(_sized(run, case), case), asks)

    return OpenedWay(label, once)


def _limits(case: Case) -> Limits:
    warm = case.plan.callers if isinstance(case.plan, Closed) else 0
    return Limits(requests=case.requests, seconds=case.seconds, warmup_requests=warm, timeout=LONGEST)


def _sized(run: Run, case: Case) -> Run:
    """All at once have no rate: their number tells their load from others."""
    if run.load.kind == "open" and run.load.rate is None:
        return replace(run, load=replace(run.load, concurrency=case.rows))
    return run


def checked(run: Run, case: Case) -> Run:
    """RUN, if every answer has as many tokens as were asked for and none failed. Raises LoadFailed."""
    if run.requests.failed and not run.interrupted:
        words = next(iter(run.requests.words.values()), "")
        raise LoadFailed(f"{run.requests.failed} of {run.requests.sent} requests failed: {words}".rstrip(": "))
    wanted, written = case.new_tokens, run.tokens.each if run.tokens else ()
    if wanted is None or run.interrupted or (written and all(each == wanted for each in written)):
        return run
    other = next((f"An answer has {each} tokens" for each in written if each != wanted), "Nobody says how many tokens")
    raise LoadFailed(f"{other} where {wanted} were asked for, so times would not be comparable.")


@contextlib.contextmanager
def peers(
    scenario: Scenario, checkpoint: Path, repository: Path, notes: list[str], say: Callable[[str], None]
) -> Iterator[list[OpenedWay]]:
    """The scenario's peers on CHECKPOINT (hfx in process: on REPOSITORY); why one is missing goes to NOTES."""
    with ExitStack() as stack:
        found = []
        for way in scenario.peers:
            say(f"opening {way.label}")
            try:
                found.append(_peer(way, stack.enter_context(_opened(way, scenario, checkpoint, repository))))
            except HfxError as error:
                notes.append(f"{way.label} was not measured: {error.message}")
        yield found


def _opened(way: PeerWay, scenario: Scenario, checkpoint: Path, repository: Path) -> Any:
    if way.name == HFX:
        return open_published(repository, default_name(checkpoint.name))
    return PEERS[way.name].open(checkpoint, scenario.model.task, way.precision)


def _peer(way: PeerWay, opened: Opened) -> OpenedWay:
    def once(case: Case, asks: RequestSet, round_: int) -> Run:
        if way.served:
            return checked(_load_run(way, opened, case, asks, round_), case)
        seconds = CLASSIFIER_SECONDS if case.new_tokens is None else 0.0
        rows = batch(case, asks)
        return checked(peer_run(opened, rows, label=way.label, round=round_, case=case.name, seconds=seconds), case)

    return OpenedWay(way.label, once, way)


def batch(case: Case, asks: RequestSet) -> Batch:
    """The first texts of the load, as many as a peer gets at once."""
    texts = tuple(str(asks.at(number).inputs[TEXT_INPUT][0]) for number in range(case.rows))
    settings: Mapping[str, Any] = case.settings
    beams, ngram = int(settings.get(NUM_BEAMS, 1)), int(settings.get(NO_REPEAT_NGRAM_SIZE, 0))
    return Batch(texts, case.new_tokens, beams, ngram)


def _load_run(way: PeerWay, opened: Opened, case: Case, asks: RequestSet, round_: int) -> Run:
    """A peer that is a server takes the very load."""
    limits = _limits(case)
    log = opened.load(case.plan, asks, limits)
    subject = Subject(way.label, case.name, "peer", precision=way.precision, peer=way.name, protocol="http")
    load = case.plan.load(asks.words, limits.words, case.name)
    return run_of(log, subject, load, case.plan, round=round_)


def warm(ours: OpenedWay, case: Case, asks: RequestSet) -> None:
    """hfx has answered something like CASE: connections are open, memory has grown. Peers do so before they count."""
    callers = case.plan.callers if isinstance(case.plan, Closed) else min(case.rows, WARM_CALLERS)
    with contextlib.suppress(HfxError):  # its turns will say so too
        ours.measure(replace(case, plan=Closed(callers), requests=2 * callers, seconds=None, slo=""), asks, 0)
