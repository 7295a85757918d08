"""What a Triton's /metrics counts for a model over a stretch of time: requests, failures, a generator's own figures."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hfx.errors import ServerError, ServerUnreachable
from hfx.names import STREAM_SUFFIX
from hfx.perf.results import Gpu, Step

ANSWER_SECONDS = 5.0
MODEL = "model"
COMMON = {MODEL, "version"}  # labels that don't tell one counter of a model from another
BUCKET = "_bucket"  # of histograms: the client's own distributions are finer
TOKENS, STEPS = "hfx_generated_tokens_total", "hfx_steps_total"
FIRST, FURTHER = "hfx_time_to_first_token_seconds", "hfx_inter_token_seconds"
LAST = f"{FIRST}_count"  # the last counter to be brought up to date: once a second
COMPLETED = "hfx_requests_completed_total"  # five times a second, later on a busy machine
SETTLED_SECONDS = 1.0  # then it is up to date, also where it is less than what was answered
LATEST_SECONDS = 3.0
POLL_SECONDS = 0.1
MILLI = 1000.0
GPU = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes")
OURS = ("nv_inference_", "hfx_")
TYPED = re.compile(r"^# TYPE (\S+)", re.MULTILINE)


Metrics = tuple[Sample, ...]  # counters, and the gauges GPU


def read(url: str) -> Metrics:
    """What stands at `url` (http://HOST:PORT/metrics) now. Raises ServerUnreachable, or ServerError for other text."""
    try:
        answer = httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False).raise_for_status()
        return parse(answer.text)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"{url} is not answered: {error}.", "Is --metrics-url right?") from error
    except ValueError as error:
        raise ServerError(f"{url} gives no metrics: {error}.", "Is --metrics-url right?") from error


def parse(text: str) -> Metrics:
    """The counters of Prometheus' text format, and the gauges GPU. Raises ValueError."""
    typed = set(TYPED.findall(text))
    try:
        samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if family.type == "counter" or sample.name in GPU
        ]
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(str(error) or "a line is not a sample") from error
    # The parser adds _total to counters that lack it.
    return tuple(
        each if each.name in typed else each._replace(name=each.name.removesuffix("_total")) for each in samples
    )


def counters(before: Metrics, after: Metrics, models: Collection[str]) -> dict[str, float]:
    """By how much each counter of `models` grew; what tells it apart, such as a reason, stands in braces.

    Of Triton's own and hfx's; neither what stood still nor what began anew meanwhile.
    """
    was, now = _of(before, models), _of(after, models)
    return {name: now[name] - was.get(name, 0.0) for name in now if now[name] > was.get(name, 0.0)}


def gpus(metrics: Metrics) -> tuple[Gpu, ...]:
    """The GPUs that Triton sees, by their ids; none where it has no GPU or does not tell."""
    shares, memory = ({s.labels.get("gpu_uuid", ""): s.value for s in metrics if s.name == name} for name in GPU)
    return tuple(Gpu(name, shares.get(name), round(memory[name])) for name in sorted(memory))


def counted(url: str, before: Metrics, models: Collection[str], answered: int) -> dict[str, float]:
    """As `counters`, of the metrics at `url` once a generator has counted all; after a while if it never does."""
    began = time.monotonic()
    after = read(url)
    while not _is_complete(before, after, models, answered, began) and time.monotonic() < began + LATEST_SECONDS:
        time.sleep(POLL_SECONDS)
        after = read(url)
    return counters(before, after, models)


def engine_step(counters: Mapping[str, float], model: str) -> Step | None:
    """The engine of `model` by what its `counters` grew; None where there was no step.

    Triton counts only how long it took to hand a request over: the engine decodes the rows of many requests in a step.
    A row of a step is a token. A request's average: `input` is the time to its first token, in the queue
    and of its prompt; `infer` is that from its first to its last token.
    """
    tokens, steps = counters.get(TOKENS, 0.0), counters.get(STEPS, 0.0)
    requests = counters.get(f"{FIRST}_count", 0.0)
    if not (tokens and steps and requests):
        return None
    return Step(
        model=model + STREAM_SUFFIX,
        requests=round(tokens),
        executions=round(steps),
        batch=tokens / steps,
        queue=0.0,
        input=MILLI * counters.get(f"{FIRST}_sum", 0.0) / requests,
        infer=MILLI * counters.get(f"{FURTHER}_sum", 0.0) / requests,
        output=0.0,
    )


def with_engine(steps: Sequence[Step], counters: Mapping[str, float], model: str) -> tuple[Step, ...]:
    """`steps` with the engine of `model` in the place of its hand-over, and of the relay, whose time contains it."""
    engine = engine_step(counters, model)
    if engine is None:
        return tuple(steps)
    return (*(step for step in steps if step.model not in (model, engine.model)), engine)


def _is_complete(before: Metrics, after: Metrics, models: Collection[str], answered: int, began: float) -> bool:
    """Whether the slowest counter of a generator has so many answers more, or all that it has completed."""
    was, now = _of(before, models), _of(after, models)
    if LAST not in now or now[LAST] - was.get(LAST, 0.0) >= answered:
        return True
    return time.monotonic() - began >= SETTLED_SECONDS and now[LAST] >= now.get(COMPLETED, math.inf)


def _of(metrics: Metrics, models: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in metrics:
        if sample.labels.get(MODEL) not in models or sample.name.endswith(BUCKET):
            continue
        if sample.name.startswith(OURS) and math.isfinite(sample.value):
            others = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in COMMON)
            key = sample.name + (f"{{{others}}}" if others else "")
            found[key] = found.get(key, 0.0) + sample.value
    return found
