"""The front process of a server: started, watched, replaced when it dies or hangs, and drained.

The listening socket belongs to this process, and the front inherits it: while a new front starts, the kernel keeps
connections that are being made.
"""

from __future__ import annotations

import importlib.util
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hfx.errors import ServerError
from hfx.extras import install_command
from hfx.front.settings import Settings, State
from hfx.process import ends_with_parent, exit_reason, keep_running, spawn
from hfx.triton.liveness.process_table import read_process
from hfx.triton.server import LOOPBACK, address, bind, contact, is_loopback, port_taken

# A front without a heartbeat for this long counts as hanging, unless it uses the processor (BUSY).
SILENCE_SECONDS = 10.0
MOST_SILENCES = 6  # after so many silences in a row, a front counts as hanging even if it uses the processor
BUSY = 0.1  # a front that uses the processor for more than this share of a silence is slow, not hanging
START_SECONDS = 60.0
LOCAL_NAMES = ("localhost", LOOPBACK, "[::1]")  # of this machine, for its own programs
PACKAGES = ("uvicorn", "httptools", "uvloop", "prometheus_client")


class Front:
    """The process that serves the public HTTP port at HOST:PORT (0: a free port), and passes requests on to Triton.

    Triton's own HTTP is at a Unix socket, or at a port of 127.0.0.1. All fields of `settings` are used, except those
    that depend on the running processes (descriptors, URLs and the start time). Requests may name this machine and the
    hosts in `settings.hosts`. If there are none, and `host` is not a loopback address, they may name any host.
    `scrape_port` is the port of the `scraper`, for scrapes and health checks alone (0: none). `report` receives a line
    for each front that had to be replaced.
    """

    def __init__(
        self,
        host: str,
        port: int,
        settings: Settings,
        scrape_port: int = 0,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        _check_packages()
        host = address(host)
        self._listeners = [bind(host, port, "http", listening=False)]
        if scrape_port:
            self._listeners.append(bind(host, scrape_port, "scrapes", listening=False))
        self._settings = replace(
            settings,
            listener=self._listeners[0].fileno(),
            hosts=(*LOCAL_NAMES, host, *settings.hosts) if settings.hosts or is_loopback(host) else (),
            started=time.time(),
            scraper=self._listeners[-1].fileno() if scrape_port else None,
        )
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # so that no front is started after a stop
        self._configured = threading.Event()  # set when the settings are complete
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._state = State()
        self._replaced = 0  # the number of fronts that were replaced
        self._control: socket.socket | None = None  # the connection to the running front
        self._failure = ""
        self._thread = threading.Thread(target=self._supervise, name="front", daemon=True)
        self.url = f"{'https' if settings.tls else 'http'}://{contact(host)}:{self._listeners[0].getsockname()[1]}"

    @property
    def pid(self) -> int:
        """The process id of the front that runs, or ran last; 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def has_playground(self) -> bool:
        """Whether GET / answers with the page."""
        return self._settings.playground

    def prepare(self) -> None:
        """Start the process, which imports its modules and then waits for `start`. To be called while Triton starts."""
        self._thread.start()

    def start(self, upstream: str, metrics: str, commands: str = "") -> None:
        """Start serving for the URLs of Triton's HTTP and metrics, and return when the process answers.

        `commands` is the path of the socket through which the front loads and unloads models on demand (empty: all
        models stay loaded).

        Raises ServerError if the process ends before it answers, or if another program has begun to listen at the port.
        """
        self._settings = replace(self._settings, upstream=upstream, metrics=metrics, commands=commands)
        for listener, use in zip(self._listeners, ("http", "scrapes"), strict=False):
            try:
                listener.listen(self._settings.limits.connections)
            except OSError as error:
                host, port = listener.getsockname()
                raise port_taken(use, host, port, error.strerror or str(error)) from error
        self._configured.set()
        if self._thread.ident is None:
            self.prepare()
        if not self._started.wait(2 * START_SECONDS) or self._failure:
            self.kill()
            raise ServerError(f"The HTTP front {self._failure} while it started.", "Its own words are above.")

    def report_state(self, fault: str, restarts: int) -> None:
        """Send the server's state to the front.

        With a `fault`, /health answers 503 and names it as the reason; if `fault` is empty, /health answers what Triton
        says. The metric of restarts is `restarts` plus the number of replaced fronts.
        """
        state = State(fault, restarts + self._replaced)
        with self._lock:
            if state != self._state:
                self._state = state
                self._send_state()

    def _send_state(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # the front has ended, or hangs; the next front gets the state, too
                self._control.send(self._state.to_message(), socket.MSG_DONTWAIT)

    def stop(self, grace: float) -> bool:
        """Take no more requests, and end the front when the requests in progress are answered.

        It is killed after `grace` seconds. Returns False if some requests were not answered by then.
        """
        self._close()
        running = self._process
        if running is None:
            return True
        running.terminate()
        try:
            running.wait(grace)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()
        return True

    def kill(self) -> None:
        """End the process at once; harmless without one."""
        self._close()
        if self._process is not None:
            self._process.kill()

    def _close(self) -> None:
        with self._lock:
            self._stopping.set()
            self._configured.set()
            for listener in self._listeners:
                listener.close()

    # The following methods run in the thread that starts the fronts. The kernel kills a front when this thread ends,
    # which is at the end of the program.

    def _supervise(self) -> None:
        keep_running(self._run, self._stopping, self._report_end)
        self._started.set()

    def _report_end(self, fault: str) -> None:
        self._report(f"the HTTP front {fault}; starting another one.")
        self._replaced += 1

    def _run(self) -> str:
        """Start a front, wait for its end, and return how it ended.

        If the first front ends before it answers, no other front is started.
        """
        try:
            fault = self._run_once()
        except OSError as error:  # no process, memory or descriptor is left
            fault = f"did not start: {error.strerror}"
        if not self._started.is_set() and not self._stopping.is_set():
            self._failure = fault
            self._stopping.set()
        return fault

    def _run_once(self) -> str:
        own, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own:
            with control, self._lock:
                if self._stopping.is_set():
                    return "is stopping"
                descriptor = control.fileno()  # of the same number in the process
                inherited = self._settings.listener, self._settings.scraper, self._settings.background
                self._process = running = spawn(
                    ends_with_parent((sys.executable, "-P", "-m", "hfx.front")),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,  # its stderr is ours: the access log, and what goes wrong
                    pass_fds=[each for each in (descriptor, *inherited) if each is not None],
                )
                self._control = own
                self._send_state()
            self._configured.wait()
            try:
                _send(running, replace(self._settings, control=descriptor))
                return self._watch(running, own)
            finally:
                with self._lock:
                    self._control = None

    def _watch(self, running: subprocess.Popen[bytes], control: socket.socket) -> str:
        """Wait until the front ends, or kill it when its heartbeats cease. Return how it ended."""
        patience, silences, computed = START_SECONDS, 0, 0.0
        while True:
            readable, _, _ = select.select([control], [], [], patience)
            process = read_process(running.pid)
            before, computed = computed, process.cpu_seconds if process else 0.0
            if not readable:
                silences += 1
                if computed - before > BUSY * patience and silences < MOST_SILENCES and self._started.is_set():
                    continue
                running.kill()
                running.wait()
                return f"gave no sign for {silences * patience:g} s"
            try:
                beats = control.recv(4096)
            except OSError:
                beats = b""
            if not beats:
                return f"died ({exit_reason(running.wait())})"
            self._started.set()
            patience, silences = SILENCE_SECONDS, 0


def _send(process: subprocess.Popen[bytes], settings: Settings) -> None:
    """Write the settings to the standard input of a front, and close it."""
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stream:  # a front that has ended gets nothing
        stream.write(settings.to_json().encode())


def _check_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerError(
            f"The public HTTP port needs packages that are not installed: {', '.join(missing)}.",
            f"Run: {install_command('embedded')}    (with --with local or docker, the extra front is enough)",
        )
