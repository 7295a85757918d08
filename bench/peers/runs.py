"""What a peer answered as a Run of the result file: one batch, or several one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.peers.cases import Batch, PeerRun
from bench.peers.generated import now
from bench.peers.peer import Opened
from hfx.perf.results import Load, Requests, Run, ServerSide, Subject, Tokens, distribution
from hfx.perf.results.schema import Scalar


def peer_run(
    opened: Opened,
    batches: Batch | Sequence[Batch],
    *,
    label: str = "",
    round: int = 0,
    case: str = "",
    seconds: float = 0.0,
    settings: Mapping[str, Scalar] | None = None,
) -> Run:
    """Have BATCHES of equally many rows answered, each again until SECONDS have passed. Raises PeerFailed.

    Latency has one event a call. Tokens are those of each batch once; `tokens.each` are those of every row in order,
    which two ways must share before they are compared. A row with other tokens than asked for is noted.
    """
    given = [batches] if isinstance(batches, Batch) else list(batches)
    began = now()
    answered = [opened.run(batch, seconds) for batch in given]
    times = [one for each in answered for one in each.times]
    rows = sum(len(batch.texts) * len(each.times) for batch, each in zip(given, answered, strict=True))
    written = sum(sum(each.written) * len(each.times) for each in answered)
    who = opened.identity
    return Run(
        subject=Subject(
            label=label or f"{who.peer} {who.precision}",
            model=who.model,
            tool="peer",
            task=who.task,
            device="cpu",
            precision=who.precision,
            peer=who.peer,
            protocol=who.protocol,
            settings={"threads": who.threads, **(settings or {})},
        ),
        load=Load("batch", len(given[0].texts), data=_words(given[0]), limit=_limit(len(times)), case=case),
        began=began,
        seconds=sum(times),
        requests=Requests(rows, rows),
        throughput=rows / sum(times),
        latency=distribution(times),
        round=round,
        tokens_per_second=written / sum(times) if written else None,
        tokens=_tokens(answered),
        server=_server(answered),
        notes=tuple(note for batch, each in zip(given, answered, strict=True) for note in _notes(batch, each)),
    )


def _tokens(answered: Sequence[PeerRun]) -> Tokens | None:
    written = tuple(count for each in answered for count in each.written)
    return Tokens(sum(each.answered.read for each in answered), sum(written), written) if written else None


def _server(answered: Sequence[PeerRun]) -> ServerSide:
    """The peer's own process."""
    known = [each for each in answered if each.processor is not None]
    used = sum((each.processor or 0.0) * len(each.times) for each in known)
    memory = [each.memory for each in answered if each.memory]
    return ServerSide(
        cores=used / sum(sum(each.times) for each in known) if known else None, memory=max(memory, default=None)
    )


def _notes(batch: Batch, answer: PeerRun) -> list[str]:
    wrong = [count for count in answer.written if count != batch.new_tokens]
    return [f"{len(wrong)} rows have other tokens than asked for: {wrong[0]}, not {batch.new_tokens}"] if wrong else []


def _words(batch: Batch) -> str:
    words = f"{len(batch.texts)} text{'s' if len(batch.texts) > 1 else ''} at once"
    if batch.new_tokens is not None:
        words += f", {batch.new_tokens} new tokens each"
    return words + (f", {batch.beams} beams" if batch.beams > 1 else "")


def _limit(count: int) -> str:
    return f"{count} call{'s' if count > 1 else ''}"
