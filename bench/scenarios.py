"""`python -m bench.scenarios`: canned loads of full-size models through a real Triton, beside their peers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import cases, command, roofline
from bench.cases import (
    SEED_BURST,
    SEED_RATE,
    SEED_SECONDS,
    SEED_TOKENS,
    SENTENCE,
    SENTENCES,
    Case,
    Served,
    Texts,
    callers,
)
from bench.child import Child
from bench.client import posts, run_figures, summary
from bench.command import Settings, Work, open_ways
from bench.exports import NAME
from bench.figures import Figures, Goal, take_turns
from bench.peers import Way, mlserver
from hfx.errors import LoadFailed
from hfx.names import TEXT_INPUT
from hfx.perf.load import Closed, Open, RequestSet, Slo
from hfx.perf.loadgen.log import percentile
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.triton import EmbeddedServer

HFX, PRECISION = "hfx int8 served", "int8"
PACE = "requests/s to the last answer"
CLASSIFIER_SECONDS = 0.7  # of a peer's turn; a batch takes milliseconds
COLUMNS = (
    "requests/s", PACE, "tokens/s", "p50 ms", "p99 ms", "first token p50 ms", "first token p99 ms", "a token p50 ms",
    "goodput", "rows a step", "of the limit",
)  # fmt: skip
CaseLoad = tuple[Case, RequestSet]
Turn = Callable[[CaseLoad], dict[str, float | None]]


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
        chosen = list({case.name: case for case in map(_quick, self.cases)}.values()) if settings.quick else self.cases
        checkpoint = self.model.checkpoint(settings.quick)
        repository, count = self.model.repository(PRECISION, settings.quick), cases.token_counter(checkpoint)
        rates = None if settings.quick else roofline.rates()
        with ExitStack() as stack:
            server = stack.enter_context(EmbeddedServer(repository, models=[NAME]))
            children = open_ways(settings.chosen((*self.peers, *self.slow)), checkpoint, figures, stack)
            ways: dict[str, Turn] = {HFX: partial(_served, server_target(server, NAME), repository, rates, count)}
            ways |= {label: partial(_batch, child) for label, child in children.items()}
            if self.server and not settings.ways:
                ways[mlserver.LABEL] = partial(_mlserver, checkpoint)
            slow = {way.label for way in self.slow}
            loads = {case.name: (case, case.request_set(count)) for case in chosen}
            take_turns(figures, self.model.shape, loads, ways, settings.turns(self.rounds),
                       lambda way, case, turn: bool(turn) and way in slow)  # fmt: skip


def _served(
    target: Target, repository: Path, rates: roofline.Rates | None, count: Callable[[str], int], load: CaseLoad
) -> dict[str, float | None]:
    case, requests = load
    slo = Slo.parse(case.slo) if case.slo else None
    run = measure(target, case.plan, MeasureSpec(requests, case.limits, slo, stream=bool(case.slo)), case=case.name)
    figures, written = run_figures(run), run.tokens.each if run.tokens else ()
    _check_written(case, written)
    rows = figures["rows a step"]
    if rates and rows and case.beams == 1:
        texts = [count(str(each.inputs[TEXT_INPUT][0])) for each in requests.items]
        new = sum(written) / run.requests.succeeded
        work = (rows, run.throughput, sum(texts) / len(texts), new)
        figures["of the limit"] = roofline.share_of_limit(repository, target.model, rates, *work)
    return figures


def _check_written(case: Case, written: Sequence[int]) -> None:
    if case.new and set(written) != {case.new}:
        raise LoadFailed(f"An answer has not {case.new} tokens, so times would not be comparable.")


def _batch(child: Child, load: CaseLoad) -> dict[str, float | None]:
    case, requests = load
    sample = child.run(case.batch(requests), 0.0 if case.new else CLASSIFIER_SECONDS, warm=case.rows < SEED_BURST)
    _check_written(case, sample.value.written)
    times = [1e3 * each for each in sample.seconds]
    rate = len(times) * case.rows / sum(sample.seconds)
    return {
        "requests/s": rate,
        PACE: rate,
        "tokens/s": rate * case.new or None,
        "p50 ms": percentile(times, 0.5),
        "p99 ms": percentile(times, 0.99),
    }


def _mlserver(checkpoint: Path, load: CaseLoad) -> dict[str, float | None]:
    case, requests = load
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
    texts = Texts(case.texts.text, case.texts.lengths.replace("768", "24"), "fixed:4" if case.texts.answers else "")
    plan = Closed(min(case.plan.callers, 4)) if isinstance(case.plan, Closed) else case.plan
    if isinstance(plan, Open) and plan.rate:
        plan = replace(plan, rate=min(plan.rate, 10.0))
    requests, seconds = case.requests and min(case.requests, 4), case.seconds and min(case.seconds, 0.4)
    rows, new = min(case.rows, 4), min(case.new, 4)
    return replace(case, plan=plan, texts=texts, rows=rows, requests=requests, seconds=seconds, new=new)


def _faster(case: Case, **least: float) -> tuple[Goal, ...]:
    """By how many times hfx is to be faster than peers (torch=3.0)."""
    labels = {way.peer: way.label for way in (TORCH, CT2, GENAI, INTEL)} | {"mlserver": mlserver.LABEL}
    return tuple(Goal(case.name, PACE, (HFX,), least=times, against=(labels[peer],)) for peer, times in least.items())


TORCH, CT2, GENAI = Way("torch", "fp32"), Way("ctranslate2", "int8"), Way("genai", "int8")
INTEL, OPTIMUM, INSIDE = Way("openvino", "int8"), Way("optimum", "int8"), Way("hfx", "int8")
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
    Case(f"{words}, {callers(size)}", Closed(size), Texts(lengths=lengths), size, seconds=seconds)
    for words, lengths in {"16 tokens": "fixed:16", "128 tokens": "fixed:128", "sentences": SENTENCES}.items()
    for size, seconds in {1: 1.5, 8: 2.0, 16: 2.0, 64: 4.0}.items()
    if size > 1 or lengths != SENTENCES  # alone, a sentence is a text of so many tokens
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
        "Labels of texts of 16 and of 128 tokens and of sentences of many lengths; peers get as many texts at once",
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
