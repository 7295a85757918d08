"""Made-up results of every kind, as `hfx perf` would write them: what tables, charts and pages are tested with.

Times follow a queue in front of a server of known capacity, so that figures hang together; all of it is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from hfx.perf.results import Distribution, Gpu, Load, Machine, Requests, Result, Run, Step, Subject
from hfx.perf.results.distribution import distribution
from hfx.perf.results.schema import ClientSide, Cost, ServerSide, Tokens

BEGAN = "2026-03-02T10:00:00Z"
MACHINE = Machine(
    processor="Example Processor 9000 @ 2.80GHz",
    cores=8,
    memory=32 << 30,
    system="Linux 6.1.0",
    load=0.21,
    versions={"hfx": "0.1.0", "tritonserver": "2.51.0", "onnxruntime": "1.22.1", "python": "3.11.9"},
)
GPU_MACHINE = replace(MACHINE, gpus=("Example GPU 80 GiB",))
CONCURRENCIES = (1, 2, 4, 8, 16, 32)


def times(median: float, seed: int, count: int = 400, sigma: float = 0.25) -> Distribution:
    """COUNT times around MEDIAN milliseconds, log-normal."""
    chance = random.Random(seed)
    found = distribution(median / 1e3 * chance.lognormvariate(0, sigma) for _ in range(count))
    assert found is not None
    return found


def throughput(callers: int, alone: float, sigma: float = 0.08, kappa: float = 0.002) -> float:
    """Requests a second by the Universal Scalability Law, ALONE being those of one caller."""
    return alone * callers / (1 + sigma * (callers - 1) + kappa * callers * (callers - 1))


def run(label: str, callers: int, alone: float, seed: int, *, model: str = "sentiment", device: str = "cpu") -> Run:
    """An ensemble of a tokenizer, a net and an aggregation under CALLERS callers."""
    rate = throughput(callers, alone)
    latency = 1e3 * callers / rate
    count = 400
    batch = max(1.0, callers * 0.6)
    parts = (("tokenize", 0.1, 0.05), ("net", 0.5, 0.28), ("postprocess", 0.04, 0.03))
    server = tuple(
        Step(
            f"{model}_{name}", count, int(count / batch), batch, queue=wait * latency, input=0.004 * latency,
            infer=work * latency, output=0.002 * latency,
        )
        for name, wait, work in parts
    )  # fmt: skip
    return Run(
        subject=Subject(label, model, "builtin", task="text-classification", device=device, precision="int8"),  # type: ignore[arg-type]
        load=Load("closed", concurrency=callers, data="128 texts of 16 to 128 words", limit="400 requests"),
        began=BEGAN,
        seconds=count / rate,
        requests=Requests(count, count),
        throughput=rate,
        latency=times(latency, seed),
        slo="latency<100ms",
        goodput=min(1.0, max(0.0, 1.6 - latency / 100)),
        client=ClientSide(cores=0.2, lag_p99=0.4),
        server=ServerSide(
            steps=server, cores=min(7.6, 1.1 * callers), memory=(900 + 4 * callers) << 20, counters={"hfx_x_total": 3.0}
        ),
    )


@cache
def concurrencies(levels: Sequence[int] = CONCURRENCIES, **changes: object) -> Result:
    """`hfx perf run sentiment --concurrency 1,2,4,8,16,32`; the last level had errors and a saturated client."""
    runs = [run("", callers, 52.0, callers) for callers in levels]
    runs[-1] = replace(
        runs[-1],
        requests=Requests(
            400,
            391,
            timeouts=2,
            errors={"ServerBusy": 7},
            words={"ServerBusy": "its queue is full.", "RequestTimeout": "no answer in 60 s."},
        ),
        client=ClientSide(
            cores=0.97, lag_p99=38.0, saturated="the client kept 0.97 of a core busy: it may be the limit."
        ),
    )
    made = Result(
        kind="run",
        title="sentiment",
        command="hfx perf run sentiment --concurrency 1,2,4,8,16,32 --slo 'latency<100ms'",
        created=BEGAN,
        machine=MACHINE,
        runs=tuple(runs),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def streaming(label: str, callers: int, seed: int, *, device: str = "cpu", speed: float = 1.0, turn: int = 0) -> Run:
    """A generator that streams: 120 requests of 50 tokens."""
    token = 6.0 * (1 + 0.055 * callers) / speed
    first = 24.0 * (1 + 0.2 * callers) / speed
    latency = first + 49 * token
    rate = 1e3 * callers / latency
    written = tuple(50 for _ in range(120))
    step = Step("stories_stream", 120, 120, 1.0, queue=0.1 * callers, input=0.1, infer=latency - 1, output=0.2)
    gpus = (Gpu("Example GPU 80 GiB", busy=0.3 + 0.01 * callers, memory=9 << 30),) if device == "gpu" else ()
    return Run(
        subject=Subject(label, "stories", "builtin", "text-generation", device, "fp32", protocol="grpc-stream"),  # type: ignore[arg-type]
        load=Load("closed", concurrency=callers, data="128 prompts of 12 words, 50 tokens each", limit="120 requests"),
        began=BEGAN,
        seconds=120 / rate,
        requests=Requests(120, 120),
        throughput=rate,
        latency=times(latency, seed, 120, 0.08),
        round=turn,
        tokens_per_second=50 * rate,
        tokens=Tokens(read=1440, written=6000, each=written),
        ttft=times(first, seed + 1, 120),
        tpot=times(token, seed + 2, 120, 0.1),
        gaps=times(token, seed + 3, 5880, 0.3),
        slo="ttft<200ms,tpot<50ms",
        goodput=min(1.0, 200 / first / 2),
        client=ClientSide(cores=0.1),
        server=ServerSide(steps=(step,), cores=7.2 if device == "cpu" else 1.2, memory=2 << 30, gpus=gpus),
    )


@cache
def generator() -> Result:
    """`hfx perf run stories --concurrency …` over the stream."""
    runs = tuple(streaming("", callers, 10 * callers) for callers in (1, 2, 4, 8, 16))
    return Result("run", "stories", "hfx perf run stories --concurrency 1:16:2x", BEGAN, MACHINE, runs)


@cache
def devices() -> Result:
    """`hfx perf compare stories --devices cpu,gpu` with prices, three rounds."""
    prices = {"cpu": 0.34, "gpu": 4.10}
    runs = []
    for turn in range(3):
        for callers in (1, 4, 16):
            for device, speed in (("cpu", 1.0), ("gpu", 9.0 + 0.4 * turn)):
                made = streaming(device, callers, 7 * callers + turn, device=device, speed=speed, turn=turn)
                made = replace(made, subject=replace(made.subject, label=device))
                runs.append(replace(made, cost=_cost(prices[device], made)))
    return Result(
        kind="compare",
        title="stories: cpu, gpu",
        command="hfx perf compare stories --devices cpu,gpu --price cpu=0.34/h --price gpu=4.10/h",
        created=BEGAN,
        machine=GPU_MACHINE,
        runs=tuple(runs),
        base="cpu",
        details={"break even": {"cpu -> gpu": "gpu is cheaper from 31 requests/s"}},
    )


def _cost(price: float, made: Run) -> Cost:
    tokens = made.tokens_per_second or 1.0
    return Cost(price, price / 3.6 / made.throughput, 1e6 * price / 3600 / tokens, "$")


@cache
def one_device() -> Result:
    """The same on a machine without a GPU."""
    whole = devices()
    runs = tuple(each for each in whole.runs if each.subject.device == "cpu")
    note = "gpu was not run: this machine has no GPU."
    return replace(whole, machine=MACHINE, runs=runs, notes=(note,))


@cache
def cases() -> Result:
    """Two variants with short and with long texts, in three rounds."""
    runs = []
    for turn in range(3):
        for words in (16, 128):
            for label, speed in (("fp32", 1.0), ("int8", 3.4)):
                rate = 4000 / words * speed * random.Random(f"{turn} {words} {label}").uniform(0.95, 1.05)
                load = Load("closed", concurrency=8, data=f"8 texts of {words} words", case=f"{words} words")
                latency = times(8e3 / rate, words + turn, 10, 0.03)
                subject = Subject(label, "sentiment", "builtin", "text-classification", "cpu", label)
                runs.append(Run(subject, load, BEGAN, 80 / rate, Requests(80, 80), rate, latency, round=turn))
    return Result("compare", "sentiment: fp32, int8", "hfx perf compare", BEGAN, MACHINE, tuple(runs), base="fp32")


@cache
def tuning() -> Result:
    """`hfx tune sentiment`: twelve trials, the settings before, the ones chosen, and the final A/B."""
    chance = random.Random(5)
    runs = [replace(run("before", 8, 40.0, 1), round=0)]
    for number in range(12):
        made = run(f"trial {number}", 8, 30 + 40 * chance.random(), number)
        settings = {"instances": 1 + number % 4, "threads": 1 + number // 4, "max_queue_delay": 100 * number}
        slower = times(8e3 / made.throughput * chance.uniform(0.9, 1.8), number)
        runs.append(replace(made, subject=replace(made.subject, settings=settings), latency=slower))
    for turn in (1, 2, 3):
        for label, alone in (("before", 40.0), ("trial 5", 66.0)):
            made = run(label, 8, alone * (1 + 0.01 * turn), 50 + turn)
            runs.append(replace(made, round=turn, load=replace(made.load, case="final")))
    return Result(
        kind="tune",
        title="sentiment",
        command="hfx tune sentiment --slo 'latency<100ms' --budget 10m",
        created=BEGAN,
        machine=MACHINE,
        runs=tuple(runs),
        base="before",
        details={"chosen": "trial 5", "slo": "latency<100ms"},
    )


Make = Callable[[], Result]
ALL: tuple[Make, ...] = (concurrencies, generator, devices, one_device, cases, tuning)
