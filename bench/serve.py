"""`python -m bench.serve`: a generator through Triton over gRPC and HTTP beside the same engine in process."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from bench import command, h2load
from bench.cases import SEED_BURST, SEED_RATE, SEED_SECONDS, SEED_TOKENS, SENTENCE, TIMEOUT, Served, callers
from bench.child import Child, Run
from bench.client import Record, drive, posts, run_figures, summary
from bench.command import Settings, Work
from bench.exports import NAME
from bench.figures import Figures, Goal, add_measured, noted, take_turns
from bench.peers import llama_server, mlserver
from bench.scenarios import mlserver_client
from hfx.errors import LoadFailed
from hfx.names import MAX_TOKENS, MIN_TOKENS, TEXT_INPUT
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Request, RequestSet, parse_lengths, synthetic
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.perf.server.metrics import COMPLETED
from hfx.triton import EmbeddedServer

WHOLE, PIECES, UNARY, STREAM, HTTP = (
    "in process", "in process, pieces", "unary gRPC", "gRPC stream", "HTTP generate"
)  # fmt: skip
WAYS = (WHOLE, PIECES, UNARY, STREAM, HTTP)
GPT2 = Served("distilgpt2", slots=128)
CALLERS = {1: 12, 8: 48, 32: 128, 128: 320}  # callers: requests of a turn
COLUMNS = (
    "tokens/s", "requests/s", "requests/s to the last answer", "seconds", "p50 ms", "p99 ms", "first token p50 ms",
    "first token p99 ms", "pause p50 ms", "pause p99 ms", "processor us a token",
)  # fmt: skip
Turn = Callable[["LoadCase"], dict[str, float | None]]
Texts = tuple[tuple[str, int], ...]  # texts, each with the number of tokens of its answer


@dataclass(frozen=True)
class LoadCase:
    """`requests` of `texts` in turn, by `plan`."""

    name: str
    plan: Plan
    requests: int
    texts: Texts


class Ways:
    """A server with an HTTP client in a process of its own, and the engine in another. A context manager's content."""

    def __init__(self, repository: Path, stack: ExitStack) -> None:
        self.server = stack.enter_context(EmbeddedServer(repository))
        self._target = server_target(self.server, NAME)
        url = f"{self.server.http_url}/v2/models/{NAME}/generate"
        self._http = stack.enter_context(Child(open_http, url=url, body=body, tokens="output_tokens"))
        self._inside = stack.enter_context(Child(open_inside, repository=str(repository)))

    def run(self, way: str, case: LoadCase) -> dict[str, float | None]:
        """The figures of a turn; processor time is that of the server, or of the engine's own process."""
        before = self._processor()
        if way in (UNARY, STREAM):
            found, written = over_grpc(self._target, case, way == STREAM)
            spent = self._processor() - before
        else:
            sample = (self._http if way == HTTP else self._inside).run((way, case), warm=False)
            found, written = summary(sample.value), sum(record.tokens for record in sample.value)
            spent = self._processor() - before if way == HTTP else sample.processor
        wanted = sum(case.texts[number % len(case.texts)][1] for number in range(case.requests))
        if written != wanted:
            raise ValueError(f"wrote {written} tokens where {wanted} were asked for")
        return {**found, "processor us a token": 1e6 * spent / written}

    def _processor(self) -> float:
        """Seconds of a processor that the server's processes have used."""
        root = psutil.Process(self.server.pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


def over_grpc(target: Target, case: LoadCase, stream: bool) -> tuple[dict[str, float | None], int]:
    """(figures, tokens written) by the product's own generator."""
    requests = [Request({TEXT_INPUT: (text,), MAX_TOKENS: (new,), MIN_TOKENS: (new,)}) for text, new in case.texts]
    limits = LoadLimits(requests=case.requests, warmup_requests=0, timeout=TIMEOUT)
    run = measure(target, case.plan, MeasureSpec(RequestSet(tuple(requests), case.name), limits, stream=stream))
    return run_figures(run), run.tokens.written if run.tokens else 0


def open_http(url: str, body: Callable[[str, int], object], tokens: str) -> Callable[[tuple[str, LoadCase]], Run]:
    """In the client's process: posts of `body(text, new tokens)`; `tokens` is the answers' count of tokens."""

    def prepare(case: tuple[str, LoadCase]) -> Run:
        load = case[1]
        bodies = [body(text, new) for text, new in load.texts]
        return posts(url, bodies, lambda answer: int(answer[tokens]))(load.plan, load.requests)

    return prepare


def body(text: str, new: int) -> dict[str, str | int]:
    """The JSON of a request for exactly `new` tokens to Triton's generate."""
    return {TEXT_INPUT: text, MAX_TOKENS: new, MIN_TOKENS: new}


def open_inside(repository: str) -> Callable[[tuple[str, LoadCase]], Run]:
    """In the engine's process: whole texts with a thread for each caller, pieces in one event loop."""
    from hfx.local.generator import LocalGenerator

    generator = LocalGenerator.open(Path(repository), NAME)._generator
    generator.warm_up()

    async def load(way: str, case: LoadCase) -> list[Record]:
        most = case.plan.callers if isinstance(case.plan, Closed) else case.requests
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(most)

        def whole(text: str, new: int, record: Record) -> None:
            record.tokens = generator.generate(text, max_tokens=new, min_tokens=new).output_tokens
            record.messages.append(time.perf_counter())

        async def send(number: int, record: Record) -> None:
            text, new = case.texts[number % len(case.texts)]
            if way == WHOLE:
                await loop.run_in_executor(threads, whole, text, new, record)
                return
            async with generator.stream(text, max_tokens=new, min_tokens=new) as stream:
                async for piece in stream:
                    record.messages.append(time.perf_counter())
                    record.tokens = piece.output_tokens

        with threads:
            return await drive(send, case.plan, case.requests)

    return lambda case: lambda: asyncio.run(load(*case))


def mixed(count: int) -> Texts:
    """Requests with prompts of about 25 words and answers of 16 to 64 tokens, the same at every call."""
    chance = random.Random(0)
    prompts = synthetic(count, parse_lengths("lognormal:25,1.0,100")).items
    return tuple((str(each.inputs[TEXT_INPUT][0]), chance.randint(16, 64)) for each in prompts)


def through_triton(
    cases: list[LoadCase], turns: int, settings: Settings, figures: Figures, beside: Mapping[str, Turn]
) -> None:
    """All ways, and those `beside` them, in every case of every round, after a load that does not count."""
    with ExitStack() as stack:
        ways = Ways(GPT2.repository("int8", settings.quick), stack)
        chosen = [way for way in WAYS if not settings.ways or any(word in way for word in settings.ways)]
        for way in chosen:
            with noted(figures, f"{way}, warming up"):
                ways.run(way, cases[-1])
        take_turns(figures, "Triton", {case.name: case for case in cases},
                   {**{way: partial(ways.run, way) for way in chosen}, **beside}, settings.turns(turns),
                   patience=240.0)  # fmt: skip


def load(settings: Settings, figures: Figures) -> None:
    """Callers who wait; llama.cpp's server gets the same."""
    sizes = {1: 4, 8: 24} if settings.quick else CALLERS
    cases = [LoadCase(callers(count), Closed(count), sent, mixed(sent)) for count, sent in sizes.items()]
    chosen = not settings.ways or any(word in llama_server.LABEL for word in settings.ways)
    beside: dict[str, Turn] = (
        {llama_server.LABEL: partial(_llama_server, GPT2.checkpoint(settings.quick))} if chosen else {}
    )
    through_triton(cases, 3, settings, figures, beside)


def seed(settings: Settings, figures: Figures) -> None:
    """Requests at a fixed rate, and many in the same moment; MLServer once."""
    seconds, many = (0.5, 32) if settings.quick else (SEED_SECONDS, SEED_BURST)
    texts = ((SENTENCE, SEED_TOKENS),)
    cases = [LoadCase(RATE_CASE, Open(rate=SEED_RATE), round(SEED_RATE * seconds), texts),
             LoadCase(BURST_CASE, Open(arrivals="burst"), many, texts)]  # fmt: skip
    through_triton(cases, 2, settings, figures, {})
    if settings.ways:
        return
    checkpoint = GPT2.checkpoint(settings.quick)
    with noted(figures, mlserver.LABEL), mlserver_client(checkpoint, [SENTENCE], SEED_TOKENS) as peer:
        for case in cases:
            add_measured(figures, mlserver.LABEL, case.name, 0, partial(_posted, peer, case))


def overload(settings: Settings, figures: Figures) -> None:
    """Callers who wait, few and many, and more requests than can be answered, whose callers don't wait for others."""
    if not h2load.is_installed():
        raise LoadFailed("h2load is not on PATH.", "Install nghttp2-client: a generator in Python takes a core.")
    seconds = 3.0 if settings.quick else OVERLOAD_SECONDS
    wanted = {MAX_TOKENS: OVERLOAD_TOKENS, MIN_TOKENS: OVERLOAD_TOKENS}
    with EmbeddedServer(OVERLOADED.repository("int8", settings.quick)) as server:

        def run(plan: Closed | Open) -> dict[str, float | None]:
            return h2load.run(server, NAME, SENTENCE, plan, seconds, OVERLOAD_DEADLINE, wanted, COMPLETED)

        def excess(times: float, case: str) -> dict[str, float | None]:
            peak = figures.median(PEAK, case, "answers/s") or run(Closed(PEAK_CALLERS))["answers/s"] or 1.0
            return run(Open(rate=times * peak))

        ways: dict[str, Callable[[str], dict[str, float | None]]] = {
            PEAK: lambda _: run(Closed(PEAK_CALLERS)),
            MANY: lambda _: run(Closed(MANY_CALLERS)),
            **{offered(times): partial(excess, times) for times in OFFERED},
        }
        with noted(figures, "warming up"):
            run(Closed(PEAK_CALLERS))
        take_turns(figures, "overload", {OVERLOAD_CASE: OVERLOAD_CASE}, ways, settings.turns(3))


def long(settings: Settings, figures: Figures) -> None:
    """Callers with short prompts alone, and beside one who sends a long prompt again and again."""
    requests, tokens = (16, 60) if settings.quick else (160, LONG_TOKENS)
    case = LoadCase(callers(LONG_CALLERS), Closed(LONG_CALLERS), requests, ((SENTENCE, OVERLOAD_TOKENS),))
    numbers, text = itertools.count(), text_of(tokens, LONG.checkpoint(settings.quick))
    with EmbeddedServer(LONG.repository("int8", settings.quick)) as server, ThreadPoolExecutor(1) as other:
        target = server_target(server, NAME)

        def alone(case: LoadCase) -> dict[str, float | None]:
            found, _ = over_grpc(target, case, stream=True)
            pause, usual = found["pause p99 ms"], found["pause p50 ms"]
            return {**found, UNEVEN: pause / usual if pause and usual else None}

        def beside(case: LoadCase) -> dict[str, float | None]:
            over = threading.Event()

            def send() -> list[float]:
                times: list[float] = []
                while not over.is_set():  # each begins with another number, so that none is known to the prefix cache
                    prompt = LoadCase("a long prompt", Closed(1), 1, ((f"{next(numbers)} {text}", 1),))
                    times.append(over_grpc(target, prompt, stream=True)[0]["first token p50 ms"] or 0.0)
                return times

            sending = other.submit(send)
            try:
                found = alone(case)
            finally:
                over.set()
            return {**found, LONG_FIRST: statistics.median(sending.result())}

        with noted(figures, "warming up"):
            alone(case)
        take_turns(figures, "long", {case.name: case}, {"alone": alone, BESIDE: beside}, settings.turns(3))


def text_of(tokens: int, folder: Path) -> str:
    """Return a text of about so many tokens of the tokenizer in `folder`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    (item,) = synthetic(1, parse_lengths(f"fixed:{tokens}")).items
    text = str(item.inputs[TEXT_INPUT][0])
    places = tokenizer(text, return_offsets_mapping=True).offset_mapping
    return text if len(places) <= tokens else text[: places[tokens - 1][1]]


def offered(times: float) -> str:
    """The name of a load of so many times the peak."""
    return f"{times:g} times the peak"


def _llama_server(checkpoint: Path, case: LoadCase) -> dict[str, float | None]:
    """A server with a slot for each caller (more would cost it a fifth), after a request that does not count."""
    slots = case.plan.callers if isinstance(case.plan, Closed) else case.requests
    with (
        llama_server.served(checkpoint, slots) as url,
        Child(open_http, url=url, body=llama_server.body, tokens="tokens_predicted") as client,
    ):
        client.run((HTTP, replace(case, plan=Closed(1), requests=1)), warm=False)
        return summary(client.run((HTTP, case), warm=False).value)


def _posted(client: Child, case: LoadCase) -> dict[str, float | None]:
    return summary(client.run((case.plan, case.requests), warm=False).value)


PEAK_CALLERS, MANY_CALLERS, OFFERED = 64, 500, (1.6, 4.0, 8.0)
PEAK, MANY = callers(PEAK_CALLERS), callers(MANY_CALLERS)
OVERLOADED = Served("distilgpt2", slots=32)
OVERLOAD_TOKENS, OVERLOAD_SECONDS, OVERLOAD_DEADLINE = 32, 15.0, 60.0
OVERLOAD_CASE = f"{OVERLOAD_TOKENS} tokens"
LONG, LONG_CALLERS, LONG_TOKENS = Served("smollm-135m", slots=32), 16, 1900
BESIDE, UNEVEN, LONG_FIRST = "beside a long prompt", "pause p99 / p50", "first token of the long prompt ms"
RATE_CASE, BURST_CASE = "50 requests/s for 3 s", f"{SEED_BURST} at once"
WORKS = {
    "load": Work("Callers who each send the next request after an answer", load, COLUMNS, (WHOLE,), "tokens/s", (
        *(Goal(callers(count), "tokens/s", (way,), least=0.9, against=(PIECES if way == STREAM else WHOLE,))
          for count in CALLERS for way in (UNARY, STREAM, HTTP)),
        *(Goal(callers(count), "tokens/s", (HTTP,), least=least, against=(llama_server.LABEL,))
          for count, least in ((1, 1.0), (8, 1.5), (32, 2.0))),
        *(Goal(callers(count), "first token p50 ms", (STREAM,), most=2.0, against=(PIECES,),
               relation="difference") for count in CALLERS),
    )),
    "seed": Work(f'"{SENTENCE}", {SEED_TOKENS} tokens', seed, COLUMNS, goals=(
        *(Goal(RATE_CASE, "requests/s", (way,), least=0.95 * SEED_RATE) for way in (UNARY, STREAM, HTTP)),
        *(Goal(RATE_CASE, "requests/s to the last answer", (way,), least=1.8, against=(mlserver.LABEL,))
          for way in (UNARY, STREAM, HTTP)),
        *(Goal(BURST_CASE, "seconds", (way,), most=0.4, against=(mlserver.LABEL,)) for way in (UNARY, STREAM, HTTP)),
    )),
    "overload": Work(
        f'"{SENTENCE}", {OVERLOAD_TOKENS} tokens, {OVERLOADED.slots} slots, more than can be answered', overload,
        ("answers/s", "steps/s", "refused/s", "late", "p99 ms", "refused p99 ms"), (PEAK,), "answers/s",
        tuple(Goal(OVERLOAD_CASE, "answers/s", (way,), least=0.9, against=(PEAK,))
              for way in (MANY, *map(offered, OFFERED))),
    ),
    "long": Work(
        f'"{SENTENCE}", {OVERLOAD_TOKENS} tokens, beside a prompt of {LONG_TOKENS} tokens', long,
        ("tokens/s", "pause p50 ms", "pause p99 ms", UNEVEN, "first token p50 ms", LONG_FIRST), ("alone",), "tokens/s",
        (Goal(callers(LONG_CALLERS), UNEVEN, (BESIDE,), most=3.0),),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("serve", WORKS))
