"""The generator's process: takes a job from the process that started it, tells how it goes, and gives the outcome.

A process of its own, as what its starter does meanwhile (a live table, reading the server's metrics) would make its
clock late. It ends when its starter says so or is gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import selectors
import sys
from array import array
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from hfx.errors import ServerError
from hfx.perf.builtin.doors import failure, opened
from hfx.perf.builtin.driver import Driver, Job, News, Outcome
from hfx.perf.builtin.messages import read_answer, read_streamed
from hfx.perf.builtin.records import Failure, Recorder

FEW_COLLECTIONS = (100_000, 50, 1000)  # of the garbage collector: each is a pause
MOST_LATENCIES = 4096  # of a message: 32 KiB, which a pipe that can be written to takes


class Teller:
    """Sends news to the starter, and never waits for it: what it has no room for goes with the next."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._kept = array("d")

    def __call__(self, news: News) -> None:
        """Tell it."""
        latencies = self._kept + news.latencies
        if select.select([], [self._pipe], [], 0)[1]:
            with suppress(OSError):  # the starter is gone: the loop is told of it, too
                self._pipe.send(replace(news, latencies=latencies[-MOST_LATENCIES:]))
            latencies = array("d")
        self._kept = latencies[-MOST_LATENCIES:]


def main() -> None:
    """Serve one job on the connection whose descriptor is the argument."""
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    # select() waits for microseconds, epoll for whole milliseconds, by which every send would be late.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            answer: Outcome | ServerError = runner.run(serve(pipe.recv(), pipe))
        except ServerError as error:
            answer = error
    with suppress(OSError):
        pipe.send(answer)


async def serve(job: Job, pipe: Connection) -> Outcome:
    """Carry out JOB. Raises ServerError where there is no connection."""
    door = await opened(job.address, job.access, job.stream, job.limits.timeout)
    read = (read_streamed if job.stream else read_answer) if job.counts else None

    def explain(words: str) -> Failure:
        return failure("", words, job.address.url, job.limits.timeout)

    driver = Driver(job, door, Recorder(read, explain, job.stream), Teller(pipe))
    asyncio.get_running_loop().add_reader(pipe.fileno(), _told, pipe, driver)
    if read is not None:
        read(b"")  # what reads messages is imported before the clock starts
    gc.freeze()
    gc.set_threshold(*FEW_COLLECTIONS)
    try:
        return await driver.run()
    finally:
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        await door.close()


def _told(pipe: Connection, driver: Driver) -> None:
    """The starter has said something, which can only be to stop, or is gone."""
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    driver.stop()


if __name__ == "__main__":
    main()
