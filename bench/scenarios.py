"""`python -m bench.scenarios`: canned loads of full-size models through a real Triton, beside their peers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import command, roofline
from bench.cases import (
    SEED_BURST,
    SEED_RATE,
    SEED_SECONDS,
    SEED_TOKENS,
    SENTENCE,
    Case,
    Served,
    Texts,
    callers,
    token_counter,
)
from bench.child import Child
from bench.client import posts, quantile, summary
from bench.command import Settings, Work
from bench.exports import NAME
from bench.figures import Figures, Goal, noted, rotated, rounds, say
from bench.peers import Model, Way, mlserver
from hfx.errors import LoadFailed
from hfx.names import NET_SUFFIX, TEXT_INPUT
from hfx.perf.load import Closed, Open, RequestSet, Slo
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.perf.results import Run
from hfx.perf.server.engine import engine_step
from hfx.triton import EmbeddedServer

HFX, PRECISION = "hfx int8 served", "int8"
PACE = "requests/s to the last answer"
CLASSIFIER_SECONDS = 0.7  # of a peer's turn; a batch takes milliseconds
QUICK_ROWS, QUICK_TOKENS, QUICK_SECONDS, QUICK_RATE = 4, 4, 0.4, 10.0
COLUMNS = (
    "requests/s", PACE, "tokens/s", "p50 ms", "p99 ms", "first token p50 ms", "first token p99 ms", "a token p50 ms",
    "goodput", "rows a step", "of the limit",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A served model under `cases`, beside `peers`; `slow` ones take part in the first round alone."""

    model: Served
    cases: tuple[Case, ...]
    peers: tuple[Way, ...] = ()
    slow: tuple[Way, ...] = ()
    server: bool = False  # beside MLServer
    rounds: int = 3

    def measure(self, settings: Settings, figures: Figures) -> None:
        """All cases; in each, every way has its turn in every round."""
        cases = list({case.name: case for case in map(_quick, self.cases)}.values()) if settings.quick else self.cases
        checkpoint = self.model.checkpoint(settings.quick)
        repository, count = self.model.repository(PRECISION, settings.quick), token_counter(checkpoint)
        limit = None if settings.quick else roofline.rates()
        with ExitStack() as stack:
            server = stack.enter_context(EmbeddedServer(repository, models=[NAME]))
            peers = {way: child for way in settings.chosen((*self.peers, *self.slow))
                     if (child := _opened(way, checkpoint, figures, stack))}  # fmt: skip
            for case in cases:
                requests = case.request_set(count)
                turns: dict[str, Callable[[], dict[str, float | None]]] = {}
                turns[HFX] = partial(_served, server_target(server, NAME), repository, case, requests, limit, count)
                turns |= {way.label: partial(_batch, child, case, requests) for way, child in peers.items()}
                if self.server and not settings.ways:
                    turns[mlserver.LABEL] = partial(_mlserver, checkpoint, case, requests)
                slow = {way.label for way in self.slow}
                for turn in rounds(case.name, settings.turns(self.rounds)):
                    for label in rotated(list(turns), turn):
                        title = f"{label}, {case.name}"
                        if title in figures.notes or (turn and label in slow):
                            continue
                        with noted(figures, title):
                            figures.add(label, case.name, turn, **turns[label]())


def _opened(way: Way, checkpoint: Path, figures: Figures, stack: ExitStack) -> Child | None:
    say(f"opening {way.label}")
    with noted(figures, way.label):
        return stack.enter_context(way.open(Model.of(checkpoint)))
    return None


def _served(
    target: Target,
    repository: Path,
    case: Case,
    requests: RequestSet,
    rates: roofline.Rates | None,
    count: Callable[[str], int],
) -> dict[str, float | None]:
    slo = Slo.parse(case.slo) if case.slo else None
    run = measure(target, case.plan, MeasureSpec(requests, case.limits, slo, stream=bool(case.slo)), case=case.name)
    check_written(run, case)
    pace = run.requests.succeeded / run.seconds
    texts = [count(str(each.inputs[TEXT_INPUT][0])) for each in requests.items]
    written = run.tokens.written / run.requests.succeeded if run.tokens else 0.0
    rows = rows_a_step(run)
    known = rates and rows and case.beams == 1
    share = roofline.share_of_limit(
        repository, target.model, rates, rows, run.throughput, sum(texts) / len(texts), written
    ) if known and rates and rows else None  # fmt: skip
    return {
        "requests/s": run.throughput,
        PACE: pace if run.load.kind == "open" else run.throughput,
        "tokens/s": run.tokens_per_second,
        "p50 ms": run.latency.p50 if run.latency else None,
        "p99 ms": run.latency.p99 if run.latency else None,
        "first token p50 ms": run.ttft.p50 if run.ttft else None,
        "first token p99 ms": run.ttft.p99 if run.ttft else None,
        "a token p50 ms": run.tpot.p50 if run.tpot else None,
        "goodput": run.goodput,
        "rows a step": rows,
        "of the limit": share,
    }


def check_written(run: Run, case: Case) -> None:
    """Raise LoadFailed for a failed request, or one with another number of tokens than the case wants."""
    if run.requests.failed:
        words = next(iter(run.requests.words.values()), "")
        raise LoadFailed(f"{run.requests.failed} of {run.requests.sent} requests failed: {words}")
    if case.new and (run.tokens is None or set(run.tokens.each) != {case.new}):
        raise LoadFailed(f"An answer has not {case.new} tokens, so times would not be comparable.")


def rows_a_step(run: Run) -> float | None:
    """Rows of an average step of the engine, or batch of the net; None where the server did not say."""
    if run.server is None:
        return None
    if engine := engine_step(run.server.counters, run.subject.model):
        return engine.batch
    return next((step.batch for step in run.server.steps if step.model.endswith(NET_SUFFIX)), None)


def _batch(child: Child, case: Case, requests: RequestSet) -> dict[str, float | None]:
    batch = case.batch(requests)
    sample = child.run(batch, 0.0 if case.new else CLASSIFIER_SECONDS, warm=case.rows < SEED_BURST)
    if case.new and set(sample.value.written) != {case.new}:
        raise LoadFailed(f"An answer has not {case.new} tokens, so times would not be comparable.")
    times = [1e3 * each for each in sample.seconds]
    rate = len(times) * case.rows / sum(sample.seconds)
    return {
        "requests/s": rate,
        PACE: rate,
        "tokens/s": rate * case.new or None,
        "p50 ms": quantile(times, 0.5),
        "p99 ms": quantile(times, 0.99),
    }


def _mlserver(checkpoint: Path, case: Case, requests: RequestSet) -> dict[str, float | None]:
    texts = [str(each.inputs[TEXT_INPUT][0]) for each in requests.items]
    count = case.requests or round(SEED_RATE * SEED_SECONDS)
    with mlserver_client(checkpoint, texts, case.new) as client:
        return summary(client.run((case.plan, count), warm=False).value)


@contextmanager
def mlserver_client(checkpoint: Path, texts: list[str], new: int) -> Iterator[Child]:
    """A process that puts (plan, requests) to MLServer and gives Records, warmed by one request."""
    with mlserver.served(checkpoint, new) as url, Child(open_posts, url=url, texts=texts, new=new) as client:
        client.run((Closed(1), 1), warm=False)
        yield client


def open_posts(url: str, texts: list[str], new: int) -> Callable[[tuple[Closed | Open, int]], Callable[[], object]]:
    """In the client's process. An answer does not say how many tokens it has: they are those that were set."""
    load = posts(url, [mlserver.body(text) for text in texts], lambda answer: new)
    return lambda case: load(*case)


def _quick(case: Case) -> Case:
    """The same in a moment."""
    plan = Closed(min(case.plan.callers, QUICK_ROWS)) if isinstance(case.plan, Closed) else case.plan
    if isinstance(plan, Open) and plan.rate:
        plan = replace(plan, rate=min(plan.rate, QUICK_RATE))
    return replace(
        case,
        plan=plan,
        rows=min(case.rows, QUICK_ROWS),
        requests=case.requests and min(case.requests, QUICK_ROWS),
        seconds=case.seconds and min(case.seconds, QUICK_SECONDS),
        new=min(case.new, QUICK_TOKENS),
        texts=replace(case.texts, answers="fixed:4" if case.texts.answers else "",
                      lengths=case.texts.lengths.replace("768", "24")),
    )  # fmt: skip


def _faster(case: Case, **least: float) -> tuple[Goal, ...]:
    """By how many times hfx is to be faster than peers (torch=3.0)."""
    labels = {way.peer: way.label for way in (TORCH, CT2, GENAI, INTEL)} | {"mlserver": mlserver.LABEL}
    return tuple(Goal(case.name, PACE, (HFX,), least=times, against=(labels[peer],)) for peer, times in least.items())


TORCH, CT2, GENAI, INTEL = (
    Way("torch", "fp32"),
    Way("ctranslate2", "int8"),
    Way("genai", "int8"),
    Way("openvino", "int8"),
)
OPTIMUM, INSIDE = Way("optimum", "int8"), Way("hfx", "int8")
GPT2 = Served("distilgpt2", slots=128)
BURST = Case(f"{SEED_BURST} at once", Open(arrivals="burst"), Texts(SENTENCE), SEED_BURST, SEED_BURST, new=SEED_TOKENS)
RATE = Case("50/s for 3 s", Open(rate=SEED_RATE), Texts(SENTENCE), 150, seconds=SEED_SECONDS, new=SEED_TOKENS)
BILLS = tuple(
    Case(f"documents, {callers(size)}", Closed(size), Texts(lengths="fixed:768"), size, 2 * size, None, 64, 4, 3)
    for size in (1, 4)
)
QUESTIONS = tuple(
    Case(f"questions, {callers(size)}", Closed(size), Texts("questions"), size, 4 * size, new=48) for size in (1, 8)
)
LABELS = tuple(  # many callers answer in few batches: they take longer until a rate is one
    Case(f"{width} tokens, {callers(size)}", Closed(size), Texts(lengths=f"fixed:{width}"), size, seconds=seconds)
    for width in (16, 128)
    for size, seconds in {1: 1.5, 8: 2.0, 16: 2.0, 64: 4.0}.items()
)
CHAT = Texts(lengths="lognormal:40,0.8,400", answers="lognormal:40,0.6,128")
CHATS = tuple(
    Case(f"chats, {rate:g}/s", Open(rate=rate, arrivals="poisson"), CHAT, seconds=8.0, slo="ttft<200ms,tpot<50ms")
    for rate in (5.0, 10.0, 20.0, 30.0)
)
# MLServer's figures by others: which settings they had is not known.
RECORDED = "Recorded of MLServer earlier on this kind of machine, settings not known, no part of a ratio: {}.\n"


def _work(title: str, scenario: Scenario, *goals: Goal, published: str = "") -> Work:
    return Work(title, scenario.measure, COLUMNS, (HFX,), PACE, goals, published)


SCENARIOS = {
    "mlserver-burst": _work(
        f'{SEED_BURST} prompts "{SENTENCE}" at once, {SEED_TOKENS} tokens each, greedy',
        Scenario(GPT2, (BURST,), (CT2, GENAI), (TORCH,), server=True),
        *_faster(BURST, mlserver=2.5, ctranslate2=1.0),
        published=RECORDED.format("21.4 s until the last answer"),
    ),
    "mlserver-50rps": _work(
        "The same prompt 50 times a second for 3 s, whether earlier ones are answered or not",
        Scenario(GPT2, (RATE,), server=True),
        Goal(RATE.name, "requests/s", (HFX,), least=0.95 * SEED_RATE),
        *_faster(RATE, mlserver=1.8),
        Goal(RATE.name, "p50 ms", (HFX,), most=1 / 3, against=(mlserver.LABEL,)),
        published=RECORDED.format("26.3 requests/s, p50 3,200 ms, p99 4,700 ms"),
    ),
    "billsum": _work(
        "Summaries of long documents: 768 tokens read, 64 written with 4 beams",
        Scenario(Served("bart-large-cnn", slots=16), BILLS, (CT2, INTEL), (TORCH,), rounds=2),
        *(goal for case in BILLS for goal in _faster(case, ctranslate2=1.5, openvino=1.5, torch=6.0)),
    ),
    "faq": _work(
        "Questions about short texts, answers of 48 tokens",
        Scenario(Served("flan-t5-base", slots=16), QUESTIONS, (CT2, INTEL), (TORCH,)),
        *(goal for case in QUESTIONS for goal in _faster(case, ctranslate2=2.0, torch=6.0)),
    ),
    "classify": _work(
        "Labels of texts of 16 and of 128 tokens, for 1 to 64 callers; peers get as many texts at once",
        Scenario(Served("distilbert-base"), LABELS, (INSIDE, TORCH, OPTIMUM, INTEL)),
        *(goal for case in LABELS for goal in _faster(case, torch=3.0)),
        *(Goal(case.name, "p50 ms", (HFX,), most=1.0, against=(INSIDE.label,), relation="difference")
          for case in (LABELS[0], LABELS[4])),
    ),
    "chat-ragged": _work(
        "Prompts and answers of log-normal lengths that come by chance, streamed",
        Scenario(GPT2, CHATS, rounds=2),
        *(Goal(CHATS[at].name, "goodput", (HFX,), least=least) for at, least in ((0, 0.99), (2, 0.95))),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("scenarios", SCENARIOS))
