"""Measuring one served model under one load with a load generator. The result is a Run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from hfx.client import Client, ModelMetadata
from hfx.client.address import parse_address
from hfx.errors import LoadFailed, RequestRefused, ServerError, UsageError
from hfx.names import GENERATION_TASKS, STREAM_SUFFIX
from hfx.perf.load import Plan
from hfx.perf.loadgen.generate import check, generate
from hfx.perf.loadgen.log import LoadRun, MeasureSpec, Progress, Target, Watch
from hfx.perf.loadgen.stats import run_of
from hfx.perf.results import Requests, Run, Scalar, Subject
from hfx.perf.server import ServerWatch, Statistics, located
from hfx.perf.tools.locust import run_locust
from hfx.perf.tools.perf_analyzer import run_perf_analyzer
from hfx.tasks import task_of

if TYPE_CHECKING:
    from hfx.triton import EmbeddedServer

__all__ = ["MeasureSpec", "Target", "Watch", "device_of", "measure", "metadata", "server_target"]
TOOLS = {"builtin": generate, "perf_analyzer": run_perf_analyzer, "locust": run_locust}
PATIENCE = 10.0  # timeout of a request for a model's metadata, in seconds


def server_target(server: EmbeddedServer, model: str, precision: str = "") -> Target:
    """Return the Target for `model` on a Triton that this process has started."""
    metrics, device = server.metrics_url, server.device
    return Target(model, server.grpc_url, metrics_url=metrics, device=device, precision=precision, pid=server.pid)


def metadata(target: Target) -> ModelMetadata:
    """Return the model's inputs and outputs.

    Raises UsageError for an HTTP address, ServerUnreachable, or ModelUnknown with a list of the served models.
    """
    if parse_address(target.grpc_url).protocol != "grpc":
        raise UsageError(f"{target.grpc_url} is an HTTP address.", "Give the gRPC port (8001 unless chosen otherwise).")
    with Client(target.grpc_url, timeout=PATIENCE, retries=0) as client:
        return client.metadata(target.model)


def device_of(target: Target) -> str:
    """Return "cpu" or "gpu" from the server's model configuration; empty if the configuration does not say."""
    with Statistics(target.grpc_url) as statistics, suppress(ServerError):
        return statistics.device(target.model)
    return ""


def measure(
    target: Target,
    plan: Plan,
    spec: MeasureSpec,
    *,
    label: str = "",
    round: int = 0,
    case: str = "",
    settings: Mapping[str, Scalar] = {},
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Put the load of `plan` on `target`, and return the Run.

    `watch` is called with the progress; setting `stop` ends the load early. `label`, `round`, `case` and `settings`
    only name the run in the result. Raises UsageError for requests or limits that the model or the tool does not
    support, ServerUnreachable, ModelUnknown, and LoadFailed if no request succeeded.
    """
    if spec.tool not in TOOLS:
        raise UsageError(f"There is no tool {spec.tool!r}.", f"Choose one of {', '.join(TOOLS)}.")
    found = metadata(target)
    target, spec = _known(target, spec, found)
    check(plan, spec.limits, spec.slo, bool(spec.stream))
    stop = stop or threading.Event()
    with ServerWatch(target, spec.limits.warms_up) as server:

        def follow(progress: Progress) -> None:
            server.follow(progress)
            if watch:
                watch(progress)

        model = metadata(replace(target, model=target.model + STREAM_SUFFIX)) if spec.stream else found
        log = TOOLS[spec.tool](LoadRun(target, plan, spec, model, follow, stop))
        load = plan.load(spec.requests.description, spec.limits.description, case)
        subject = Subject(
            label=label or target.model,
            model=target.model,
            tool=spec.tool,
            task=target.task,
            device=target.device,  # type: ignore[arg-type]
            precision=target.precision,
            protocol="grpc-stream" if spec.stream else "grpc",
            settings=dict(settings),
        )
        run = run_of(log, subject, load, plan, spec.slo, round)
        side = server.end(model.name, run.requests.succeeded)
    if not run.requests.succeeded and not stop.is_set():
        raise _no_answer(target.model, run.requests)
    notes = [*run.notes, *server.failures]
    if not target.metrics_url and target.task in GENERATION_TASKS:
        notes.append("The server's metrics were not found (--metrics-url): its decode steps are not known.")
    return replace(run, server=side, notes=tuple(notes))


def _no_answer(model: str, requests: Requests) -> LoadFailed:
    """Return the error for a load in which no request succeeded, with the most frequent reason."""
    if not requests.sent:
        return LoadFailed(f"No request was sent to {model}.", "Give it more time: --duration or --requests.")
    counts = {**requests.errors, **({"RequestTimeout": requests.timeouts} if requests.timeouts else {})}
    kind = max(counts, key=lambda each: counts[each], default="")
    words = requests.words.get(kind, "no reason is known")
    return LoadFailed(
        f"None of {requests.sent} requests to {model} succeeded: {kind} ({counts.get(kind, 0)}): {words}",
        f"Try one alone: hfx infer {model} TEXT",
    )


def _known(target: Target, spec: MeasureSpec, model: ModelMetadata) -> tuple[Target, MeasureSpec]:
    """Return `target` with its task, device, metrics and process, and `spec` with `stream` decided.

    Raises UsageError.
    """
    task = target.task or _task(model)
    if spec.stream and task not in GENERATION_TASKS:
        raise UsageError(
            f"The answers of {target.model!r} can't be streamed: it is for {task or 'no task of hfx'}.",
            "Leave --stream out.",
        )
    stream = task in GENERATION_TASKS if spec.stream is None else spec.stream
    if stream and target.model.endswith(STREAM_SUFFIX):
        name = target.model.removesuffix(STREAM_SUFFIX)
        raise UsageError(f"{target.model!r} is a part of the generator {name!r}.", f"Measure {name}.")
    known = replace(target, task=task, device=target.device or device_of(target))
    return located(known), replace(spec, stream=stream)


def _task(model: ModelMetadata) -> str:
    try:
        return str(task_of(model))
    except RequestRefused:  # models that hfx did not export can be measured, too
        return ""
