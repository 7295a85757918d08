"""Results of every kind, as `hfx perf` would write them, for tests of tables, charts and pages.

Times follow a queue in front of a server of known capacity, so that the figures are consistent. Everything is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hfx.perf.results import (
    ClientSide,
    Cost,
    Distribution,
    Gpu,
    Machine,
    Requests,
    Result,
    Run,
    ServerSide,
    Step,
    Tokens,
    distribution,
)
from tests.rigs.files import perf_runs
from tests.rigs.files.perf_runs import result

MACHINE = Machine("Example Processor 9000 @ 2.80GHz", 8, 32 << 30, "Linux 6.1.0", 0.21, (), {"onnxruntime": "1.22.1"})
GPU_MACHINE = replace(MACHINE, gpus=("Example GPU 80 GiB",))
CONCURRENCIES = (1, 2, 4, 8, 16, 32)


def times(median: float, seed: int, count: int = 400, sigma: float = 0.25) -> Distribution:
    """Return `count` log-normal times around `median` milliseconds."""
    chance = random.Random(seed)
    found = distribution(median / 1e3 * chance.lognormvariate(0, sigma) for _ in range(count))
    assert found is not None
    return found


def run(label: str, callers: int, alone: float, seed: int, **more: Any) -> Run:
    """Return a run of an ensemble with the throughput of the Universal Scalability Law; `alone` is that of 1 caller."""
    rate = alone * callers / (1 + 0.08 * (callers - 1) + 0.002 * callers * (callers - 1))
    latency, batch = 1e3 * callers / rate, max(1.0, callers * 0.6)
    parts = (("tokenize", 0.1, 0.05), ("net", 0.5, 0.28), ("postprocess", 0.04, 0.03))  # shares of queue and infer
    steps = tuple(
        Step(f"sentiment_{name}", 400, int(400 / batch), batch, wait * latency, 0.004 * latency, work * latency, 0.1)
        for name, wait, work in parts
    )
    known: dict[str, Any] = {
        "requests": Requests(400, 400),
        "latency": times(latency, seed),
        "slo": "latency<100ms",
        "goodput": min(1.0, max(0.0, 1.6 - latency / 100)),
        "client": ClientSide(cores=0.2, lag_p99=0.4),
        "server": ServerSide(steps, min(7.6, 1.1 * callers), (900 + 4 * callers) << 20),
    }
    return perf_runs.run(label, rate, callers=callers, model="sentiment", device="cpu", **(known | more))


@cache
def concurrencies(levels: Sequence[int] = CONCURRENCIES) -> Result:
    """`hfx perf run sentiment --concurrency 1,2,4,8,16,32`; the last level had errors and a saturated client."""
    runs = [run("", callers, 52.0, callers) for callers in levels]
    words = {"ServerBusy": "its queue is full.", "RequestTimeout": "no answer in 60 s."}
    saturated = "the client kept 0.97 of a core busy: it may be the limit."
    runs[-1] = replace(
        runs[-1], requests=Requests(400, 391, 2, {"ServerBusy": 7}, words), client=ClientSide(0.97, 38.0, saturated)
    )
    return result(*runs, title="sentiment", machine=MACHINE)


def streaming(callers: int, seed: int, *, speed: float = 1.0, **more: Any) -> Run:
    """Return a run of a streaming generator: 120 requests of 50 tokens."""
    token, first = 6.0 * (1 + 0.055 * callers) / speed, 24.0 * (1 + 0.2 * callers) / speed
    latency = first + 49 * token
    rate = 1e3 * callers / latency
    step = Step("stories_stream", 120, 120, 1.0, queue=0.1 * callers, input=0.1, infer=latency - 1, output=0.2)
    gpus = (Gpu("Example GPU 80 GiB", 0.3 + 0.01 * callers, 9 << 30),) if more.get("device") == "gpu" else ()
    known: dict[str, Any] = {
        "requests": Requests(120, 120),
        "latency": times(latency, seed, 120, 0.08),
        "tokens_per_second": 50 * rate,
        "tokens": Tokens(read=1440, written=6000, each=(50,) * 120),
        "ttft": times(first, seed + 1, 120),
        "tpot": times(token, seed + 2, 120, 0.1),
        "gaps": times(token, seed + 3, 5880, 0.3),
        "slo": "ttft<200ms,tpot<50ms",
        "goodput": min(1.0, 200 / first / 2),
        "server": ServerSide((step,), 1.2 if gpus else 7.2, 2 << 30, gpus),
    }
    return perf_runs.run("", rate, callers=callers, model="stories", protocol="grpc-stream", **(known | more))


@cache
def generator() -> Result:
    """Return the result of `hfx perf run stories --concurrency 1:16:2x` over the stream."""
    return result(*(streaming(callers, 10 * callers) for callers in (1, 2, 4, 8, 16)), title="stories", machine=MACHINE)


@cache
def devices() -> Result:
    """Return the result of `hfx perf compare stories --devices cpu,gpu` with prices, three rounds."""
    runs = []
    for turn in range(3):
        for callers in (1, 4, 16):
            for device, speed, price in (("cpu", 1.0, 0.34), ("gpu", 9.0 + 0.4 * turn, 4.10)):
                made = streaming(callers, 7 * callers + turn, speed=speed, device=device, round=turn)
                cost = Cost(price, price / 3.6 / made.throughput, price / 3.6e-3 / (made.tokens_per_second or 1), "$")
                runs.append(replace(made, subject=replace(made.subject, label=device), cost=cost))
    return result(*runs, kind="compare", title="stories: cpu, gpu", machine=GPU_MACHINE)


@cache
def one_device() -> Result:
    """Return the same comparison on a machine without a GPU."""
    runs = tuple(each for each in devices().runs if each.subject.device == "cpu")
    return replace(devices(), machine=MACHINE, runs=runs, notes=("gpu was not run: this machine has no GPU.",))


@cache
def cases() -> Result:
    """Return a result of two variants with short and with long texts, in three rounds."""
    runs = []
    for turn in range(3):
        for words in (16, 128):
            for label, speed in (("fp32", 1.0), ("int8", 3.4)):
                rate = 4000 / words * speed * random.Random(f"{turn} {words} {label}").uniform(0.95, 1.05)
                work = {"case": f"{words} words", "data": f"8 texts of {words} words"}
                latency = times(8e3 / rate, words + turn, 10, 0.03)
                runs.append(perf_runs.run(label, rate, callers=8, latency=latency, round=turn, **work))
    return result(*runs, kind="compare", title="sentiment: fp32, int8", machine=MACHINE)


@cache
def tuning() -> Result:
    """Return the result of `hfx tune sentiment`: twelve trials, settings before and after, and the final A/B."""
    chance = random.Random(5)
    runs = [run("before", 8, 40.0, 1)]
    for number in range(12):
        settings = {"instances": 1 + number % 4, "threads": 1 + number // 4, "max_queue_delay": 100 * number}
        made = run(f"trial {number}", 8, 30 + 40 * chance.random(), number, settings=settings)
        runs.append(replace(made, latency=times(8e3 / made.throughput * chance.uniform(0.9, 1.8), number)))
    for turn in (1, 2, 3):
        for label, alone in (("before", 40.0), ("trial 5", 66.0)):
            runs.append(run(label, 8, alone * (1 + 0.01 * turn), 50 + turn, round=turn, case="final"))
    return result(*runs, kind="tune", title="sentiment", machine=MACHINE, details={"chosen": "trial 5"})


Make = Callable[[], Result]
ALL: tuple[Make, ...] = (concurrencies, generator, devices, one_device, cases, tuning)
