"""hfx behind Triton against other libraries and servers: the same texts and lengths, c callers against batches of c.

Owns what makes the work equal. How a peer is installed and run is bench.peers'; whether the answers have the same
length in the end is equality.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers import PEERS, Batch, Peer, peer_run
from bench.peers.model import read
from hfx import names
from hfx.errors import UsageError
from hfx.perf.compare.side import Case, Measure, Session, Side
from hfx.perf.load import Closed, Limits, Plan, Request, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run

EXACT = frozenset({names.TEXT_INPUT, names.MAX_TOKENS, names.NUM_BEAMS, names.NO_REPEAT_NGRAM_SIZE})
GENERATION_ROWS, CLASSIFIER_ROWS = 4, 256  # of a run, unless the user says otherwise: times the callers, at least
DEFAULT_TOKENS = 50
TIMEOUT_SECONDS = 600.0
MEMORY_FACTOR = 3.0  # of the checkpoint: a library holds it, converts it, and has room for its work


@dataclass(frozen=True)
class Opponent:
    """A peer in one precision."""

    peer: Peer
    precision: str

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.peer.name} {self.precision}".strip()


def parse_peers(text: str) -> dict[str, str]:
    """The peers in "torch,ctranslate2:int8", each with the precision that it is given. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, precision = part.strip().partition(":")
        if name not in PEERS:
            raise UsageError(f"There is no peer {name!r}.", f"Choose of {', '.join(PEERS)}.")
        if name in found:
            raise UsageError(f"--peers names {name} twice.", "Leave one of them out.")
        found[name] = precision
    return found


def opponents(wanted: Mapping[str, str], checkpoint: Path, task: str, precision: str) -> list[Opponent]:
    """The peers, each in its own precision, else in PRECISION where it can, else as it is usually run.

    Raises PeerFailed where the checkpoint or task is none that peers are asked for.
    """
    _, reading = read(checkpoint, task)
    found = []
    for name, own in wanted.items():
        known = PEERS[name].precisions(reading.kind)
        found.append(Opponent(PEERS[name], own or (precision if precision in known else next(iter(known), ""))))
    return found


def peer_side(opponent: Opponent, checkpoint: Path, task: str, threads: int | None = None) -> Side:
    """A peer in a process, or on a server, of its own."""

    @contextmanager
    def opened(session: Session) -> Iterator[Measure]:
        session.say(f"Opening {opponent.label}")
        with opponent.peer.open(checkpoint, task, opponent.precision, threads) as ready:

            def measure(case: Case, number: int) -> Run:
                session.say(session.title(opponent.label, case, number))
                run = peer_run(ready, batches_of(case), label=opponent.label, round=number, case=case.name)
                return replace(run, load=case.plan.load(case.order.asks.words, case.order.limits.words, case.name))

            yield measure

    weights = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return Side(opponent.label, opened, round(MEMORY_FACTOR * weights))


def peer_cases(plans: Sequence[Plan], asks: RequestSet, task: str, requests: int | None = None) -> list[Case]:
    """A load of c callers for each of PLANS, of whole batches of c rows. Raises UsageError for what a peer can't do."""
    exact = exact_asks(asks, task)
    least = GENERATION_ROWS if task in names.GENERATION_TASKS else 1
    rows = 0 if task in names.GENERATION_TASKS else CLASSIFIER_ROWS
    cases = []
    for plan in plans:
        if not isinstance(plan, Closed):
            raise UsageError("Peers answer batches: they know no rate.", "Give --concurrency instead of --rate.")
        wanted = requests or max(rows, least * plan.callers)
        whole = -(-wanted // plan.callers) * plan.callers
        limits = Limits(requests=whole, warmup_requests=plan.callers, timeout=TIMEOUT_SECONDS)
        cases.append(Case(plan, MeasureSpec(exact, limits, stream=False)))
    return cases


def exact_asks(asks: RequestSet, task: str) -> RequestSet:
    """ASKS that every way can answer alike: a generator writes exactly as many tokens as it may at most."""
    shared = {name: value for name, value in asks.items[0].inputs.items() if name != names.TEXT_INPUT}
    for ask in asks.items:
        own = {name: value for name, value in ask.inputs.items() if name != names.TEXT_INPUT}
        if names.TEXT_INPUT not in ask.inputs or not set(ask.inputs) <= EXACT or own != shared:
            raise UsageError(
                "Peers can't be asked like this: they take texts, and the same settings for all of them.",
                f"Leave out what is not {', '.join(sorted(EXACT))}.",
            )
    if task not in names.GENERATION_TASKS:
        return asks
    tokens = shared.get(names.MAX_TOKENS, (DEFAULT_TOKENS,))
    more = {names.MAX_TOKENS: tokens, names.MIN_TOKENS: tokens}
    words = asks.words if names.MAX_TOKENS in shared else f"{asks.words}, {names.MAX_TOKENS}={DEFAULT_TOKENS}"
    return RequestSet(tuple(Request({**ask.inputs, **more}) for ask in asks.items), f"{words} exactly")


def batches_of(case: Case) -> list[Batch]:
    """What a peer gets for CASE: the texts that the callers send, in their order, a row for each caller."""
    assert isinstance(case.plan, Closed) and case.order.limits.requests
    rows, asks = case.plan.callers, case.order.asks
    first = asks.items[0].inputs
    texts = [str(asks.at(number).inputs[names.TEXT_INPUT][0]) for number in range(case.order.limits.requests)]
    return [
        Batch(
            tuple(texts[at : at + rows]),
            _number(first, names.MAX_TOKENS),
            _number(first, names.NUM_BEAMS) or 1,
            _number(first, names.NO_REPEAT_NGRAM_SIZE) or 0,
        )
        for at in range(0, len(texts), rows)
    ]


def _number(inputs: Mapping[str, Sequence[object]], name: str) -> int | None:
    return int(str(inputs[name][0])) if name in inputs else None
