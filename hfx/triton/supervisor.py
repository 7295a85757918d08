"""Keeps a started server serving: finds what died, starts it again with back-off, and says so in a line.

Processes are checked five times a second, models by liveness probes (liveness.py). Triton can't restart a single stub:
the whole server is killed, which also breaks streams that hang, and started again.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

from hfx.errors import ServerError
from hfx.triton.front import Front
from hfx.triton.liveness import NO_ANSWER, PATIENCE_SECONDS, Death, Probe, Target, probes, send
from hfx.triton.server import Server

CHECK_SECONDS = 0.2
PROBE_SECONDS = 3.0  # between two probes of a model: they should not be felt
MAX_RESTARTS = 10  # in a row: what dies more often has a reason that another start won't cure
HEALTHY_SECONDS = 20.0  # of serving after which a fault is a new one
MAX_PAUSE_SECONDS = 30.0
SLOW_RESTART_SECONDS = 3.0
SLOW_STOP_SECONDS = 1.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Report = Callable[[str], None]


def keep_serving(server: Server, report: Report) -> NoReturn:
    """Restart `server`, which runs, whenever a part of it dies; ServerError when that has failed too often in a row.

    Belongs into the main thread, as every start of a server. An exception from a signal's handler ends it.
    """
    restarts = 0
    while True:
        began = time.monotonic()
        fault = _next_fault(server)
        if time.monotonic() - began > HEALTHY_SECONDS:
            restarts = 0
        restarts = _restart(server, fault, restarts, report)


def stop(server: Server, front: Front, report: Report) -> None:
    """End `front` and then `server`, each of which gives the requests in flight the server's `exit_timeout` to finish.

    Raises ServerError when some did not.
    """
    began = time.monotonic()
    waiting = f"Stopping: requests under way have up to {server.exit_timeout} s to finish; a second signal ends them."
    with _after(SLOW_STOP_SECONDS, lambda: report(waiting)):
        drained = front.stop(server.exit_timeout)
        drained_at = time.monotonic()
        finished = server.stop() and drained
    took = time.monotonic() - began
    is_cut = time.monotonic() - drained_at >= server.exit_timeout
    if not finished:
        raise ServerError(
            f"Triton was not done after {took:.1f} s: requests that were still under way are lost.",
            "Give them more time with --drain.",
        )
    if is_cut:  # beside an open HTTP connection Triton does not count streams
        report(f"Stopped after {took:.1f} s with connections still open; streams on them are cut off.")
    else:
        report(f"Stopped after {took:.1f} s; no accepted request was lost.")


def _next_fault(server: Server) -> str:
    probing = ProbeLoop(Target(server.http_url, server.metrics_url), PROBE_SECONDS, PATIENCE_SECONDS)
    try:
        while not (fault := server.fault() or (probing.death.reason if probing.death else "")):
            time.sleep(CHECK_SECONDS)
        return fault
    finally:
        probing.stop()


def _restart(server: Server, fault: str, restarts: int, report: Report) -> int:
    """Restart `server` until it serves, after so many `restarts` in a row; returns their new number."""
    began = time.monotonic()
    failure = ServerError(f"{fault}.", "Is the memory of this machine enough? Serve fewer models with --models.")
    while restarts < MAX_RESTARTS:
        time.sleep(_pause(restarts))
        restarts += 1
        try:
            with _after(SLOW_RESTART_SECONDS, lambda: report(f"{fault}; starting again.")):
                server.restart()
        except ServerError as error:
            failure = error
            reason = " ".join(error.message.splitlines()[:2])
            report(f"{fault}; restart {restarts} of {MAX_RESTARTS} failed: {reason}")
        else:
            report(f"{fault}; serving again after {time.monotonic() - began:.1f} s.")
            return restarts
    raise ServerError(f"{MAX_RESTARTS} restarts in a row did not help: {failure.message}", failure.fix)


def _pause(restarts: int) -> float:
    """Seconds before the next restart after so many in a row: the first comes at once."""
    return random.uniform(0.5, 1.0) * min(MAX_PAUSE_SECONDS, 2.0 ** (restarts - 1)) if restarts else 0.0


@contextmanager
def _after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` in another thread when the body takes longer than `seconds`."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ProbeLoop:
    """Probes of the server at `target` until `stop()`, each model every `interval` seconds in a thread of its own.

    `death` is why a model can't answer any longer (see liveness.send for `patience`); None while all can.
    """

    def __init__(self, target: Target, interval: float, patience: float) -> None:
        self.death: Death | None = None
        self._target = target
        self._interval = interval
        self._patience = patience
        self._stopped = threading.Event()
        self._spawn(self._begin)

    def stop(self) -> None:
        """Send no more. Probes without an answer yet break with their server."""
        self._stopped.set()

    def _begin(self) -> None:
        requests = self._probes()
        for place, probe in enumerate(requests):
            self._spawn(self._repeat, probe, self._interval * place / len(requests))

    def _probes(self) -> list[Probe]:
        while not self._stopped.is_set():
            try:
                return probes(self._target)
            except NO_ANSWER:  # a busy or dying server; the process check tells which
                self._stopped.wait(self._interval)
        return []

    def _repeat(self, probe: Probe, delay: float) -> None:
        self._stopped.wait(delay)
        while not self._stopped.wait(self._interval):
            self.death = self.death or send(self._target, probe, self._patience)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="probe", daemon=True).start()


class StopSignals:
    """A context in which the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, and further ones call `at_once`.

    So nothing disturbs the stopping: `at_once` may only shorten it. After more than one signal the context ends with
    KeyboardInterrupt, whatever came of the stopping. A signal that is ignored (nohup) stays so.
    """

    def __init__(self) -> None:
        self.received = 0
        self.at_once: Callable[[], None] = lambda: None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received > 1:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        self.received += 1
        if self.received == 1:
            raise KeyboardInterrupt
        self.at_once()
