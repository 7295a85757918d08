"""What a Triton's /metrics counts for a model over a stretch of time: requests, failures, a generator's own figures.

Source of the format: Prometheus' text exposition, version 0.0.4. It must not know what load there was.
"""

from __future__ import annotations

import http.client
import math
import re
import time
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hfx.errors import ServerError, ServerUnreachable
from hfx.perf.results.schema import Gpu

ANSWER_SECONDS = 5.0
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=}))')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
MODEL = "model"
UNTOLD = {MODEL, "version"}  # labels that don't tell one counter of a model from another
BUCKET = "_bucket"  # of histograms: the client's own distributions are finer
TOLD = "hfx_time_to_first_token_seconds_count"  # the last to be brought up to date: once a second
COMPLETED, FAST_SECONDS = "hfx_requests_completed_total", 0.25  # of those that are up to date so soon
LATEST_SECONDS = 1.5
POLL_SECONDS = 0.1
GPU = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes")
OURS = ("nv_inference_", "hfx_")
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Sample:
    """One line: a value of NAME under its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """All samples of one look, and the type of each name ("counter", "gauge"; names without one are missing)."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str]


def read(url: str) -> Metrics:
    """What stands at URL (http://HOST:PORT/metrics) now. Raises ServerUnreachable, or ServerError for other text."""
    try:
        with _opener.open(url, timeout=ANSWER_SECONDS) as answer:
            return parse(answer.read().decode())
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(f"{url} is not answered: {reason}.", "Is --metrics-url right?") from error
    except ValueError as error:
        raise ServerError(f"{url} gives no metrics: {error}.", "Is --metrics-url right?") from error


def parse(text: str) -> Metrics:
    """TEXT's samples. Raises ValueError with the first line that is none."""
    samples, types = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words[:2] == ["#", "TYPE"] and len(words) == 4:
            types[words[2]] = words[3]
        elif words and not line.startswith("#"):
            try:
                samples.append(_sample(line))
            except ValueError:
                raise ValueError(f"line {number} is no sample") from None
    return Metrics(tuple(samples), types)


def counters(before: Metrics, after: Metrics, models: Collection[str]) -> dict[str, float]:
    """By how much each counter of MODELS grew; what tells it apart, such as a reason, stands in braces.

    Of Triton's own and hfx's; neither what stood still nor what began anew meanwhile.
    """
    was, now = _of(before, models), _of(after, models)
    return {name: now[name] - was.get(name, 0.0) for name in now if now[name] > was.get(name, 0.0)}


def gpus(metrics: Metrics) -> tuple[Gpu, ...]:
    """The GPUs that Triton sees, by their ids; none where it has no GPU or does not tell."""
    shares, memory = ({s.labels.get("gpu_uuid", ""): s.value for s in metrics.samples if s.name == n} for n in GPU)
    return tuple(Gpu(name, shares.get(name), round(memory[name])) for name in sorted(memory))


def counted(url: str, before: Metrics, models: Collection[str], answered: int) -> dict[str, float]:
    """As `counters`, of URL's metrics once a generator has told of all; after a while if it never does."""
    began = time.monotonic()
    after = read(url)
    while not _is_told(before, after, models, answered, began) and time.monotonic() < began + LATEST_SECONDS:
        time.sleep(POLL_SECONDS)
        after = read(url)
    return counters(before, after, models)


def _is_told(before: Metrics, after: Metrics, models: Collection[str], answered: int, began: float) -> bool:
    """Whether the slowest figure of a generator tells of so many answers more, or of all that it has completed."""
    was, now = _of(before, models), _of(after, models)
    if TOLD not in now or now[TOLD] - was.get(TOLD, 0.0) >= answered:
        return True
    return time.monotonic() - began >= FAST_SECONDS and now[TOLD] >= now.get(COMPLETED, math.inf)


def _of(metrics: Metrics, models: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in metrics.samples:
        counts = metrics.types.get(sample.name) == "counter" and math.isfinite(sample.value)
        if not counts or sample.labels.get(MODEL) not in models or sample.name.endswith(BUCKET):
            continue
        if sample.name.startswith(OURS):
            key = sample.name + _told(sample.labels)
            found[key] = found.get(key, 0.0) + sample.value
    return found


def _told(labels: Mapping[str, str]) -> str:
    words = ",".join(f"{name}={value}" for name, value in sorted(labels.items()) if name not in UNTOLD)
    return f"{{{words}}}" if words else ""


def _sample(line: str) -> Sample:
    """NAME{LABEL="VALUE",…} NUMBER [TIMESTAMP]."""
    name = NAME.match(line)
    if name is None:
        raise ValueError(line)
    rest = line[name.end() :]
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        labels, rest = _labels(rest[1:])
    value, *timestamp = rest.split()
    if len(timestamp) > 1:
        raise ValueError(line)
    return Sample(name.group(), labels, float(value))


def _labels(text: str) -> tuple[dict[str, str], str]:
    """The labels at the start of TEXT, and what follows their closing brace."""
    found: dict[str, str] = {}
    while not text.lstrip().startswith("}"):
        label = LABEL.match(text)
        if label is None:
            raise ValueError(text)
        found[label.group(1)] = re.sub(r"\\[\\\"n]", lambda escape: ESCAPES[escape.group()], label.group(2))
        text = text[label.end() :]
    return found, text.lstrip()[1:]
