"""Supervision of a started server: finding and recovering dead parts (recovery.py), and stopping on a signal.

Processes are checked five times a second, models by liveness probes (liveness/).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

from hfx.errors import ServerError
from hfx.triton.front import Front
from hfx.triton.liveness import NO_ANSWER, PATIENCE_SECONDS, Death, Probe, Target, call, probes, send
from hfx.triton.recovery import Recovery, Report, after
from hfx.triton.server import Server
from hfx.triton.server import is_ready as server_is_ready

CHECK_SECONDS = 0.2
PROBE_SECONDS = 3.0  # between two probes of a model, so that they do not slow it down
READY_SECONDS = 0.25  # between two checks of Triton's own readiness
SILENCE_SECONDS = 8.0
SLOW_STOP_SECONDS = 1.0
ReportState = Callable[[str, int], None]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def keep_serving(server: Server, report: Report, report_state: ReportState = lambda fault, restarts: None) -> NoReturn:
    """Recover the running `server` whenever a part of it dies. Raises ServerError after too many failures in a row.

    `report_state` is called again and again with the reason why the server is not in service at present (empty if it
    is), and with the number of attempts to start something again.

    Must run in the main thread, like every start of a server. An exception from a signal handler ends it.
    """
    recovery = Recovery(server, report)
    silence = SilenceWatch(server.http_url, report)
    try:
        while True:
            recovery.recover(
                _next_deaths(server, recovery, lambda fault: report_state(fault or silence.fault, recovery.attempts))
            )
    finally:
        silence.stop()


def stop(server: Server, front: Front, report: Report) -> None:
    """End `front` and then `server`. Each gives requests in flight the server's `exit_timeout` to finish.

    Raises ServerError if some did not finish.
    """
    began = time.monotonic()
    waiting = f"Stopping: requests in flight have up to {server.exit_timeout} s to finish; a second signal ends them."
    with after(SLOW_STOP_SECONDS, lambda: report(waiting)):
        drained = front.stop(server.exit_timeout)
        drained_at = time.monotonic()
        finished = server.stop() and drained
    took = time.monotonic() - began
    is_cut = time.monotonic() - drained_at >= server.exit_timeout
    if not finished:
        raise ServerError(
            f"Triton did not finish within {took:.1f} s: requests still in flight are lost.",
            "Give them more time with --drain.",
        )
    if is_cut:  # while an HTTP connection is open, Triton does not count streams
        report(f"Stopped after {took:.1f} s with connections still open; streams on them are cut off.")
    else:
        report(f"Stopped after {took:.1f} s; no accepted request was lost.")


def _next_deaths(server: Server, recovery: Recovery, report_fault: Report) -> list[Death]:
    """Wait until there are deaths whose recovery is due, and return them."""
    while True:
        revision = server.revision
        probing = ProbeLoop(
            Target(server.http_url, server.metrics_url), PROBE_SECONDS, PATIENCE_SECONDS, server.unloaded_configurations
        )
        try:
            while server.revision == revision:
                deaths = [*server.deaths(), *probing.deaths]
                report_fault(recovery.verdict(deaths))
                if due := recovery.due(deaths):
                    return due
                time.sleep(CHECK_SECONDS)
        finally:
            probing.stop()


class ProbeLoop:
    """Sends probes to the server at `target` until `stop()`, to each model every `interval` seconds in its own thread.

    `deaths` has the models that can't answer any longer (see liveness.send for `patience`). When Triton ceases to be
    ready, all models are probed at once. From 26.01 on, Triton ceases to be ready within 0.3 s of a process's death.
    Readiness itself proves nothing: a model that is being replaced is not ready, and a process that hangs is ready.
    """

    def __init__(
        self,
        target: Target,
        interval: float,
        patience: float,
        unloaded: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self.deaths: list[Death] = []
        self._target = target
        self._interval = interval
        self._patience = patience
        self._unloaded = unloaded
        self._stopped = threading.Event()
        self._next = threading.Condition()  # notified when probes are due before their time
        self._spawn(self._begin)

    def stop(self) -> None:
        """Send no more probes. Probes without an answer yet end with the server's connections."""
        self._stopped.set()
        self._hurry()

    def _hurry(self) -> None:
        with self._next:
            self._next.notify_all()

    def _begin(self) -> None:
        requests = self._probes()
        for place, probe in enumerate(requests):
            self._spawn(self._repeat, probe, self._interval * place / len(requests))
        was_ready = False
        while not self._stopped.wait(READY_SECONDS):
            is_ready = server_is_ready(self._target.http_url)
            if was_ready and not is_ready:
                self._hurry()
            was_ready = is_ready

    def _probes(self) -> list[Probe]:
        while not self._stopped.is_set():
            try:
                return probes(self._target, self._unloaded())
            except NO_ANSWER:  # the server is busy or dying; the check of processes can tell which
                self._stopped.wait(self._interval)
        return []

    def _repeat(self, probe: Probe, delay: float) -> None:
        self._stopped.wait(delay)
        while not self._stopped.is_set():
            with self._next:
                self._next.wait(self._interval)
            if self._stopped.is_set():
                return
            if death := send(self._target, probe, self._patience):
                self.deaths.append(death)
                return

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="probe", daemon=True).start()


class SilenceWatch:
    """Reports when the server at `url` has answered nothing for SILENCE_SECONDS, and when it answers again.

    The server may be suspended, have no free descriptors, or get no processor time. This is not a death, so nothing
    else would report it. While the server is silent, `fault` has the reason.
    """

    def __init__(self, url: str, report: Report) -> None:
        self.fault = ""
        self._url = f"{url}/v2/health/live"
        self._report = report
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="silence", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, and report nothing further."""
        self._stopped.set()

    def _run(self) -> None:
        answered = time.monotonic()
        while not self._stopped.wait(CHECK_SECONDS if self.fault else PROBE_SECONDS):
            if self._is_live():
                if self.fault:
                    self._report(f"Triton answers again after {time.monotonic() - answered:.0f} s.")
                answered, self.fault = time.monotonic(), ""
            elif time.monotonic() - answered > SILENCE_SECONDS and not self.fault:
                self.fault = f"Triton has answered nothing for {time.monotonic() - answered:.0f} s."
                self._report(self.fault)

    def _is_live(self) -> bool:
        try:
            call(self._url, timeout=PROBE_SECONDS)
        except NO_ANSWER:
            return False
        return True


class StopSignals:
    """A context in which the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, and further ones call `at_once`.

    Further signals therefore don't interrupt the stop, which `at_once` may only shorten. After more than one signal,
    the context ends with KeyboardInterrupt, whatever the result of the stop. A signal that is ignored (nohup) remains
    ignored.
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
