"""Differences of Triton's /metrics between two times: counters of Triton, and of generators' engines."""

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
COMMON = {MODEL, "version"}  # labels that do not distinguish counters of one model
BUCKET = "_bucket"  # histogram buckets are skipped, because the client's own distributions are finer
TOKENS, STEPS = "hfx_generated_tokens_total", "hfx_steps_total"
FIRST, FURTHER = "hfx_time_to_first_token_seconds", "hfx_inter_token_seconds"
LAST = f"{FIRST}_count"  # updated once per second, after all other counters
COMPLETED = "hfx_requests_completed_total"  # updated five times per second, less often on a busy machine
SETTLED_SECONDS = 1.0  # after this time, LAST is complete even if it is below the number of answers
LATEST_SECONDS = 3.0
POLL_SECONDS = 0.1
MILLI = 1000.0
GPU = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes")
PREFIXES = ("nv_inference_", "hfx_")
TYPED = re.compile(r"^# TYPE (\S+)", re.MULTILINE)


Metrics = tuple[Sample, ...]  # counters, and the gauges in GPU


def read(url: str) -> Metrics:
    """Read the metrics at `url` (http://HOST:PORT/metrics).

    Raises ServerUnreachable, or ServerError for other content.
    """
    try:
        answer = httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False).raise_for_status()
        return parse(answer.text)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"{url} is not answered: {error}.", "Is --metrics-url right?") from error
    except ValueError as error:
        raise ServerError(f"{url} gives no metrics: {error}.", "Is --metrics-url right?") from error


def parse(text: str) -> Metrics:
    """Return the counters, and the gauges in GPU, of a text in Prometheus' format. Raises ValueError."""
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
    # The parser appends _total to counters that lack it.
    return tuple(
        each if each.name in typed else each._replace(name=each.name.removesuffix("_total")) for each in samples
    )


def counters(before: Metrics, after: Metrics, models: Collection[str]) -> dict[str, float]:
    """Return counter -> increase, for the counters of `models`. Further labels, such as a reason, are in braces.

    Counters that did not grow, or were reset meanwhile, are left out.
    """
    was, now = _of(before, models), _of(after, models)
    return {name: now[name] - was.get(name, 0.0) for name in now if now[name] > was.get(name, 0.0)}


def gpus(metrics: Metrics) -> tuple[Gpu, ...]:
    """Return the GPUs that Triton reports, named by their UUIDs. Empty if it reports none."""
    shares, memory = ({s.labels.get("gpu_uuid", ""): s.value for s in metrics if s.name == name} for name in GPU)
    return tuple(Gpu(name, shares.get(name), round(memory[name])) for name in sorted(memory))


def counted(url: str, before: Metrics, models: Collection[str], answered: int) -> dict[str, float]:
    """Return `counters` since `before`, once all `answered` requests are counted, or after LATEST_SECONDS."""
    began = time.monotonic()
    after = read(url)
    while not _is_complete(before, after, models, answered, began) and time.monotonic() < began + LATEST_SECONDS:
        time.sleep(POLL_SECONDS)
        after = read(url)
    return counters(before, after, models)


def engine_step(counters: Mapping[str, float], model: str) -> Step | None:
    """Return a Step for the engine of the generator `model`, from the increases of its `counters`.

    Triton's own statistics only contain the time to hand a request over to the engine. In this Step, a row is a token,
    and an execution is a decode step. Times are means over requests: `input` is the time to the first token (queue and
    prompt), and `infer` the time from the first to the last token. Returns None if there were no decode steps.
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
    """Return `steps` with the engine's Step in place of the Steps of Triton for the engine and its relay."""
    engine = engine_step(counters, model)
    if engine is None:
        return tuple(steps)
    return (*(step for step in steps if step.model not in (model, engine.model)), engine)


def _is_complete(before: Metrics, after: Metrics, models: Collection[str], answered: int, began: float) -> bool:
    """Return whether LAST has grown by `answered`, or equals COMPLETED after SETTLED_SECONDS.

    Returns true if there is no generator.
    """
    was, now = _of(before, models), _of(after, models)
    if LAST not in now or now[LAST] - was.get(LAST, 0.0) >= answered:
        return True
    return time.monotonic() - began >= SETTLED_SECONDS and now[LAST] >= now.get(COMPLETED, math.inf)


def _of(metrics: Metrics, models: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in metrics:
        if sample.labels.get(MODEL) not in models or sample.name.endswith(BUCKET):
            continue
        if sample.name.startswith(PREFIXES) and math.isfinite(sample.value):
            others = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name not in COMMON)
            key = sample.name + (f"{{{others}}}" if others else "")
            found[key] = found.get(key, 0.0) + sample.value
    return found
