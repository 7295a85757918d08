"""The load generator's process: receives a job from its parent, reports progress, and returns the log.

As a separate process, it is not delayed by the parent's work (a live table, reading the server's metrics). It ends when
its parent requests it, or dies.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import selectors
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from hfx import names
from hfx.client import errors
from hfx.client.address import Address
from hfx.client.grpc_transport import open_channel
from hfx.errors import ServerError
from hfx.perf.load.plans import LoadLimits, Plan
from hfx.perf.loadgen.driver import Driver
from hfx.perf.loadgen.log import COUNTS, AnswerPart, Progress, RequestLog, RequestRecord

SERVICE = "/inference.GRPCInferenceService"
CONNECT_SECONDS = 5.0
GC_THRESHOLD = (100_000, 50, 1000)  # collections are rare, because each collection is a pause


@dataclass(frozen=True)
class Job:
    """The input of the process. `messages` are encoded requests; for `stream` and `counts`, see RequestLog."""

    address: Address
    plan: Plan
    limits: LoadLimits
    messages: tuple[bytes, ...]
    stream: bool
    counts: bool


class Sender:
    """Sends requests over one gRPC channel."""

    def __init__(self, job: Job, channel: Any) -> None:
        self._job = job
        self._infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
        self._stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")

    async def send(self, record: RequestRecord) -> None:
        """Send the request of `record`, wait for its answer, and fill in the record."""
        messages = self._job.messages
        message = messages[record.index % len(messages)]
        record.sent = time.perf_counter()
        try:
            if self._job.stream:
                await self._read_stream(message, record)
            else:
                record.messages.append(await self._infer(message, timeout=self._job.limits.timeout))
                record.times.append(time.perf_counter())
            record.end = record.times[-1] if record.times else time.perf_counter()
        except grpc.RpcError as error:
            self._fail(record, error.code().name, error.details() or "")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._fail(record, "CANCELLED", "the server ended it")  # gRPC raises CancelledError for that case, too

    async def _read_stream(self, message: bytes, record: RequestRecord) -> None:
        call = self._stream(timeout=self._job.limits.timeout)
        await call.write(message)
        await call.done_writing()
        while (answer := await call.read()) is not grpc.aio.EOF:
            record.times.append(time.perf_counter())
            record.messages.append(answer)
        last = service_pb2.ModelStreamInferResponse.FromString(record.messages[-1] if record.messages else b"")
        if last.error_message:
            self._fail(record, "", last.error_message)

    def _fail(self, record: RequestRecord, status: str, message: str) -> None:
        record.end = time.perf_counter()
        error = _error(status, message, self._job.address.url, self._job.limits.timeout)
        record.error = type(error).__name__, error.message


def read_answer(message: bytes) -> AnswerPart:
    """Return the token counts in an encoded ModelInferResponse."""
    return _piece(service_pb2.ModelInferResponse.FromString(message))


def read_streamed(message: bytes) -> AnswerPart:
    """Return the token counts in an encoded ModelStreamInferResponse."""
    return _piece(service_pb2.ModelStreamInferResponse.FromString(message).infer_response)


def main() -> None:
    """Carry out one job, which comes from the connection whose file descriptor is the argument."""
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    # select() has timeouts in microseconds; epoll rounds them to milliseconds, which would delay every send.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            answer: RequestLog | ServerError = runner.run(serve(pipe.recv(), pipe))
        except ServerError as error:
            answer = error
    with suppress(OSError):
        pipe.send(answer)


async def serve(job: Job, pipe: Connection) -> RequestLog:
    """Carry out `job`, and return its log. Raises ServerError if the server can't be reached."""
    loop, channel = asyncio.get_running_loop(), open_channel(grpc.aio, job.address)
    try:
        await channel.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=CONNECT_SECONDS)
    except grpc.RpcError as error:
        raise _error(error.code().name, error.details(), job.address.url, CONNECT_SECONDS) from error
    log, read = RequestLog(job.stream, job.counts), read_streamed if job.stream else read_answer
    send = Sender(job, channel).send
    driver = Driver(job.plan, job.limits, send, log, _reporting(pipe), read if job.counts else None)

    def stop() -> None:  # the parent wrote to the pipe, or died
        loop.remove_reader(pipe.fileno())
        driver.stop()

    loop.add_reader(pipe.fileno(), stop)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        return await driver.run()
    finally:
        loop.remove_reader(pipe.fileno())
        await channel.close()


def _reporting(pipe: Connection) -> Callable[[Progress], None]:
    """Return a function that sends progress to the parent.

    Progress is dropped if the pipe is full, as more will follow.
    """

    def report(progress: Progress) -> None:
        if select.select([], [pipe], [], 0)[1]:
            with suppress(OSError):  # the parent has died; the event loop notices that, too
                pipe.send(progress)

    return report


def _error(status: str, message: str, url: str, timeout: float) -> ServerError:
    if status == "DEADLINE_EXCEEDED":
        return errors.timed_out(url, timeout)
    return errors.failure(status, message, url)


def _piece(answer: Any) -> AnswerPart:
    raw = {tensor.name: content for tensor, content in zip(answer.outputs, answer.raw_output_contents, strict=False)}
    read, written, truncated = (int(np.frombuffer(raw[name], np.int32)[0]) if raw.get(name) else 0 for name in COUNTS)
    # A BYTES element begins with its length, in four bytes.
    return AnswerPart(read, written, truncated, raw.get(names.FINISH_REASON, b"")[4:].decode(errors="replace"))


if __name__ == "__main__":
    main()
