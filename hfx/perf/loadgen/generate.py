"""hfx's own load generator: checks requests against the model, and makes a worker process send them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from hfx import names
from hfx.client import ModelMetadata
from hfx.client.address import parse_address
from hfx.client.grpc_transport import encode_request
from hfx.client.tensors import to_tensors
from hfx.client.transport import Request as InferRequest
from hfx.errors import HfxError, ServerError, UsageError
from hfx.metadata import check_values
from hfx.perf.load import LoadLimits, Open, Plan, Request, RequestSet, Slo, text_tensors
from hfx.perf.loadgen.log import LoadRun, RequestLog
from hfx.perf.loadgen.worker import Job
from hfx.process import end, ends_with_parent, spawn

WORKER = "hfx.perf.loadgen.worker"
POLL_SECONDS = 0.05
END_SECONDS = 10.0
MAX_INT32 = 2**31 - 1


def generate(run: LoadRun) -> RequestLog:
    """Carry out `run`, and return its log. When `run.stop` is set, requests in flight are cancelled.

    Raises UsageError for requests that the model does not accept, and ServerUnreachable before anything is sent. Later
    failures are counted.
    """
    spec, model = run.spec, run.model
    if spec.arguments:
        raise UsageError(
            f"The built-in load generator takes no flags: {' '.join(spec.arguments)}.",
            "Leave out what follows `--`.",
        )
    limits, stream = spec.limits, bool(spec.stream)
    tensors = [
        to_tensors(request.inputs, model.input_types)
        for request in completed(spec.requests, model, stream, limits.timeout)
    ]
    messages = tuple(
        encode_request(InferRequest(model.name, each, (), "", 0.0)).SerializeToString() for each in tensors
    )
    job = Job(parse_address(run.target.grpc_url), run.plan, limits, messages, stream, counts_tokens(model))
    with _process() as (process, pipe):
        try:
            pipe.send(job)
            return _followed(pipe, run)
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            reason = f"The load generator's process ended with code {process.returncode}."
            raise HfxError(reason, "Its output is above.") from None


def check(plan: Plan, limits: LoadLimits, slo: Slo | None, stream: bool) -> None:
    """Raise UsageError for a load without an end, and for an SLO on token times without streaming."""
    if slo is not None and not stream and {"ttft", "tpot"} & set(slo.bounds):
        raise UsageError(
            f"The SLO {slo.text!r} limits times of tokens, but answers are not streamed.",
            "Measure a generator with streaming, or limit the latency only.",
        )
    endless = limits.requests is None and limits.most_seconds is None
    if isinstance(plan, Open) and plan.at_once:
        if limits.requests is None or limits.warmup_seconds or limits.stable is not None:
            raise UsageError(
                "A burst of all requests at once needs their number, and has no seconds.",
                "Give --requests; a warm-up may be a number of requests.",
            )
    elif endless and not (isinstance(plan, Open) and plan.arrivals == "trace"):
        raise UsageError("The load has no end.", "Give --requests or --duration.")


def completed(requests: RequestSet, model: ModelMetadata, stream: bool, timeout: float) -> Sequence[Request]:
    """Return `requests` with the inputs that the load generator adds: `timeout` (seconds) as a deadline, and `stream`.

    The deadline makes the server end generations that have timed out here. Raises UsageError for a request that `model`
    does not accept.
    """
    needed = text_tensors(model.input_types)
    extra: dict[str, tuple[Any, ...]] = {}
    if names.TIMEOUT_MS in model.input_types:
        extra[names.TIMEOUT_MS] = (min(max(1, round(timeout * 1e3)), MAX_INT32),)
    if stream:
        extra[names.STREAM] = (True,)
    for request in requests.items:
        missing = [name for name in needed if name not in request.inputs]
        if missing:
            raise UsageError(
                f"The model {model.name!r} needs a {missing[0]}, which the requests do not have.",
                f"Say which column it is with --column {missing[0]}=COLUMN.",
            )
        check_values(model, request.inputs)
    return [replace(request, inputs=extra | dict(request.inputs)) for request in requests.items]


def counts_tokens(model: ModelMetadata) -> bool:
    """Return whether the answers of `model` include token counts."""
    return any(tensor.name == names.OUTPUT_TOKENS for tensor in model.outputs)


def _followed(pipe: Connection, run: LoadRun) -> RequestLog:
    is_stopping = False
    while True:
        if run.stop.is_set() and not is_stopping:
            pipe.send(None)
            is_stopping = True
        if not pipe.poll(POLL_SECONDS):
            continue
        message = pipe.recv()
        if isinstance(message, ServerError):
            raise message
        if isinstance(message, RequestLog):
            return message
        run.watch(message)


@contextmanager
def _process() -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Yield the worker process and this side's end of its pipe. The process has ended when the context exits."""
    ours, theirs = Pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())]
    process = spawn(ends_with_parent(command), pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()  # the worker ends when its pipe closes
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        end(process, grace=0)
