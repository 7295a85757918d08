"""The load generator's process: takes a job from the process that started it, reports progress, and sends the log.

In a process of its own, the work of its starter (a live table, reading the server's metrics) can't make its clock late.
It ends when its starter says so or is gone.
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
from hfx.client.grpc_transport import WITH_STATUS, open_channel
from hfx.errors import ServerError
from hfx.perf.load.plans import LoadLimits, Plan
from hfx.perf.loadgen.driver import Driver
from hfx.perf.loadgen.log import COUNTS, Piece, Progress, RequestLog, RequestRecord

SERVICE = "/inference.GRPCInferenceService"
CONNECT_SECONDS = 5.0
GC_THRESHOLD = (100_000, 50, 1000)  # each collection is a pause


@dataclass(frozen=True)
class Job:
    """All that a process needs to put a load to a server; `messages` are requests as bytes, `counts` as in the log."""

    address: Address
    plan: Plan
    limits: LoadLimits
    messages: tuple[bytes, ...]
    stream: bool
    counts: bool


class Sender:
    """Requests over one gRPC channel, each answered by one message or by a stream."""

    def __init__(self, job: Job, channel: Any) -> None:
        self._job = job
        self._infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
        self._stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")

    async def send(self, record: RequestRecord) -> None:
        """Send the request now, and fill its record in."""
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
            self._fail(record, "CANCELLED", "the server ended it")  # gRPC raises it for that, too

    async def _read_stream(self, message: bytes, record: RequestRecord) -> None:
        call = self._stream(timeout=self._job.limits.timeout, metadata=(WITH_STATUS,))
        await call.write(message)
        await call.done_writing()
        while (answer := await call.read()) is not grpc.aio.EOF:
            record.times.append(time.perf_counter())
            record.messages.append(answer)

    def _fail(self, record: RequestRecord, status: str, message: str) -> None:
        record.end = time.perf_counter()
        error = _error(status, message, self._job.address.url, self._job.limits.timeout)
        record.error = type(error).__name__, error.message


def read_answer(message: bytes) -> Piece:
    """What a ModelInferResponse says of its tokens."""
    return _piece(service_pb2.ModelInferResponse.FromString(message))


def read_streamed(message: bytes) -> Piece:
    """What a ModelStreamInferResponse says of its tokens."""
    answer = service_pb2.ModelStreamInferResponse.FromString(message)
    return Piece(error=answer.error_message) if answer.error_message else _piece(answer.infer_response)


def main() -> None:
    """Serve one job on the connection whose descriptor is the argument."""
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    # select() waits for microseconds, epoll for whole milliseconds, by which every send would be late.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            answer: RequestLog | ServerError = runner.run(serve(pipe.recv(), pipe))
        except ServerError as error:
            answer = error
    with suppress(OSError):
        pipe.send(answer)


async def serve(job: Job, pipe: Connection) -> RequestLog:
    """Carry out `job`. Raises ServerError where there is no connection."""
    loop, channel = asyncio.get_running_loop(), open_channel(grpc.aio, job.address)
    try:
        await channel.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=CONNECT_SECONDS)
    except grpc.RpcError as error:
        raise _error(error.code().name, error.details(), job.address.url, CONNECT_SECONDS) from error
    log, read = RequestLog(job.stream, job.counts), read_streamed if job.stream else read_answer
    send = Sender(job, channel).send
    driver = Driver(job.plan, job.limits, send, log, _reporting(pipe), read if job.counts else None)

    def stop() -> None:  # the starter has said to stop, or is gone
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
    """Sends progress to the starter, and drops it where the pipe is full: the next one says the same."""

    def report(progress: Progress) -> None:
        if select.select([], [pipe], [], 0)[1]:
            with suppress(OSError):  # the starter is gone: the loop hears of it, too
                pipe.send(progress)

    return report


def _error(status: str, message: str, url: str, timeout: float) -> ServerError:
    if status == "DEADLINE_EXCEEDED":
        return errors.timed_out(url, timeout)
    return errors.failure(status, message, url)


def _piece(answer: Any) -> Piece:
    raw = {tensor.name: content for tensor, content in zip(answer.outputs, answer.raw_output_contents, strict=False)}
    read, written, truncated = (int(np.frombuffer(raw[name], np.int32)[0]) if raw.get(name) else 0 for name in COUNTS)
    # A text is preceded by the four bytes of its length.
    return Piece(read, written, truncated, raw.get(names.FINISH_REASON, b"")[4:].decode(errors="replace"))


if __name__ == "__main__":
    main()
