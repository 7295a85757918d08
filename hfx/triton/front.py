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

SILENCE_SECONDS = 10.0  # without a heartbeat: then the front hangs, unless it computes
MOST_SILENCES = 6  # in a row, however much it computes
BUSY = 0.1  # of the time: a front that computes that much is slow, not dead
START_SECONDS = 60.0
LOCAL_NAMES = ("localhost", LOOPBACK, "[::1]")  # of this machine, for its own programs
PACKAGES = ("uvicorn", "httptools", "uvloop", "prometheus_client")


class Front:
    """The public HTTP port at HOST:PORT (0: a free one) of the server whose own HTTP is at a port of 127.0.0.1.

    Of `settings` all is taken that no start of a process decides. Their `hosts` are allowed beside this machine's; at
    an address beyond it any will do without them. `scrape_port`, where it is not 0, is that of the `scraper`. `report`
    receives a line for each front that had to be replaced.
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
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._state = State()
        self._replaced = 0  # fronts
        self._control: socket.socket | None = None  # to the front that runs
        self._failure = ""
        self._thread = threading.Thread(target=self._supervise, name="front", daemon=True)
        self.url = f"{'https' if settings.tls else 'http'}://{contact(host)}:{self._listeners[0].getsockname()[1]}"

    @property
    def pid(self) -> int:
        """The process id of the front that runs, or ran last; 0 before the first one."""
        return self._process.pid if self._process else 0

    @property
    def has_playground(self) -> bool:
        """Whether GET / answers with the page."""
        return self._settings.playground

    def start(self, upstream: str, metrics: str, commands: str = "") -> None:
        """Start the process for the URLs of Triton's HTTP and metrics, and return when it answers.

        `commands` is the socket where it has models loaded on demand; empty: none is.

        Raises ServerError when it ends instead, or when another program listens at its port by now.
        """
        self._settings = replace(self._settings, upstream=upstream, metrics=metrics, commands=commands)
        for listener, use in zip(self._listeners, ("http", "scrapes"), strict=False):
            try:
                listener.listen(self._settings.limits.connections)
            except OSError as error:
                host, port = listener.getsockname()
                raise port_taken(use, host, port, error.strerror or str(error)) from error
        self._thread.start()
        if not self._started.wait(2 * START_SECONDS) or self._failure:
            self.kill()
            raise ServerError(f"The HTTP front {self._failure} while it started.", "Its own words are above.")

    def report_state(self, fault: str, restarts: int) -> None:
        """Have /health answer 503 with the reason `fault`, with an empty one what Triton says; and count restarts."""
        state = State(fault, restarts + self._replaced)
        with self._lock:
            if state != self._state:
                self._state = state
                self._send_state()

    def _send_state(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # a front that has ended, or hangs: the next one gets it, too
                self._control.send(self._state.to_message(), socket.MSG_DONTWAIT)

    def stop(self, grace: float) -> bool:
        """Take no more requests, and end when those in progress are answered; False: not all were after `grace` s."""
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
            for listener in self._listeners:
                listener.close()

    # The thread that starts the processes: the kernel kills each one when this thread ends, with the whole program.

    def _supervise(self) -> None:
        keep_running(self._run, self._stopping, self._report_end)
        self._started.set()

    def _report_end(self, fault: str) -> None:
        self._report(f"the HTTP front {fault}; starting another one.")
        self._replaced += 1

    def _run(self) -> str:
        """Start a front and wait for its end; returns how it ended. The first one must not end before it answers."""
        fault = self._run_once()
        if not self._started.is_set() and not self._stopping.is_set():
            self._failure = fault
            self._stopping.set()
        return fault

    def _run_once(self) -> str:
        own, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = replace(self._settings, control=control.fileno())
        with own:
            with control, self._lock:
                if self._stopping.is_set():
                    return "is stopping"
                command = (sys.executable, "-P", "-m", "hfx.front", settings.to_json())
                self._process = running = spawn(
                    ends_with_parent(command),
                    stdout=subprocess.DEVNULL,  # its stderr is ours: the access log, and what goes wrong
                    pass_fds=[each for each in _descriptors(settings) if each is not None],
                )
                self._control = own
                self._send_state()
            try:
                return self._watch(running, own)
            finally:
                with self._lock:
                    self._control = None

    def _watch(self, running: subprocess.Popen[bytes], control: socket.socket) -> str:
        """Return when the front has ended, or has been killed because its heartbeats ceased."""
        patience, silences, computed = START_SECONDS, 0, 0.0
        while True:
            readable, _, _ = select.select([control], [], [], patience)
            before, computed = computed, _cpu_seconds(running.pid)
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


def _descriptors(settings: Settings) -> tuple[int | None, ...]:
    return settings.listener, settings.scraper, settings.background, settings.control


def _cpu_seconds(pid: int) -> float:
    process = read_process(pid)
    return process.cpu_seconds if process else 0.0


def _check_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerError(
            f"The public HTTP port needs packages that are not installed: {', '.join(missing)}.",
            f"Run: {install_command('embedded')}    (with --with local or docker, the extra front is enough)",
        )
