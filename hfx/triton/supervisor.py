"""Keeps a started server serving: sees what died, starts it again with back-off, and says so in a line.

Processes are looked at five times a second, models asked by canaries (watch.py). Triton can't be mended in parts: the
whole server is killed, which also breaks streams that hang, and started again. Owns the pace of restarts and the end
of the patience with them; how a server is started, and what a signal means, are others'.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from hfx.errors import ServerError
from hfx.triton.canary import Target
from hfx.triton.server import Server
from hfx.triton.watch import Watch

LOOK_SECONDS = 0.2
MOST_RESTARTS = 10  # in a row: what dies more often has a reason that another start won't cure
HEALTHY_SECONDS = 20.0  # of serving after which a fault is a new one
LONGEST_PAUSE_SECONDS = 30.0
SLOW_RESTART_SECONDS = 3.0
SLOW_STOP_SECONDS = 1.0

Say = Callable[[str], None]


def keep_serving(server: Server, say: Say) -> NoReturn:
    """Restart SERVER, which runs, whenever a part of it dies; ServerError when that has failed too often in a row.

    Belongs into the main thread, as every start of a server. An exception from a signal's handler ends it.
    """
    restarts = 0
    while True:
        began = time.monotonic()
        fault = _next_fault(server)
        if time.monotonic() - began > HEALTHY_SECONDS:
            restarts = 0
        restarts = _heal(server, fault, restarts, say)


def stop(server: Server, seconds: int, say: Say) -> None:
    """Let the requests under way finish within SECONDS and end SERVER; ServerError when some did not."""
    began = time.monotonic()
    waiting = f"Stopping: requests under way have up to {seconds} s to finish; a second signal ends them."
    with _after(SLOW_STOP_SECONDS, lambda: say(waiting)):
        finished = server.stop()
    took = time.monotonic() - began
    if not finished:
        raise ServerError(
            f"Triton was not done after {took:.1f} s: requests that were still under way are lost.",
            "Give them more time with --drain.",
        )
    say(f"Stopped after {took:.1f} s; no accepted request was lost.")


def _next_fault(server: Server) -> str:
    watch = Watch(Target(server.http_url, server.metrics_url))
    try:
        while not (fault := server.fault() or watch.fault()):
            time.sleep(LOOK_SECONDS)
        return fault
    finally:
        watch.stop()


def _heal(server: Server, fault: str, restarts: int, say: Say) -> int:
    """Restart SERVER until it serves; returns the number of restarts in a row, RESTARTS of them before."""
    began = time.monotonic()
    failure = ServerError(f"{fault}.", "Is the memory of this machine enough? Serve fewer models with --models.")
    while restarts < MOST_RESTARTS:
        time.sleep(_pause(restarts))
        restarts += 1
        try:
            with _after(SLOW_RESTART_SECONDS, lambda: say(f"{fault}; starting again.")):
                server.restart()
        except ServerError as error:
            failure = error
            reason = " ".join(error.message.splitlines()[:2])
            say(f"{fault}; restart {restarts} of {MOST_RESTARTS} failed: {reason}")
        else:
            say(f"{fault}; serving again after {time.monotonic() - began:.1f} s.")
            return restarts
    raise ServerError(f"{MOST_RESTARTS} restarts in a row did not help: {failure.message}", failure.fix)


def _pause(restarts: int) -> float:
    """Seconds before the next restart after so many RESTARTS in a row: the first comes at once."""
    return random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_SECONDS, 2.0 ** (restarts - 1)) if restarts else 0.0


@contextmanager
def _after(seconds: float, do: Callable[[], None]) -> Iterator[None]:
    """DO it, in another thread, when the body takes longer than SECONDS."""
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
