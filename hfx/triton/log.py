"""Triton's log: the progress of a start, the reason why a start failed, and the end of all models at a stop.

HTTP opens only after every model has loaded, so until then the log is the only source. The patterns match the log of
tritonserver 2.51.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hfx.errors import ServerError
from hfx.process import end, exit_reason
from hfx.triton.gpu_causes import gpu_cause

LOADED = re.compile(r"\"successfully loaded '(.+)'\"")
FAILURES = (
    re.compile(r"\"failed to load '(?P<model>.+?)' version \d+: (?P<reason>.*)\""),
    re.compile(r"\"failed to load model '(?P<model>.+?)': (?P<reason>.*)\""),
    re.compile(r"\"Poll failed for model directory '(?P<model>.+?)': (?P<reason>.*)\""),
    re.compile(r"\"Invalid argument: (?P<reason>ensemble (?P<model>\S+) contains .*)\""),
)
CONFIG_SYNTAX = re.compile(r"Error parsing text-format inference.ModelConfig: (.*)")
NO_BACKEND = re.compile(r"unable to find backend library for backend '([^']*)'")
GIVEN_UP = re.compile(r'"Waiting for in-flight requests to complete\."|^error: creating server')
SOCKET_TAKEN = re.compile(r"Socket '[^']*:(\d+)' already in use")
SOCKET_REFUSED = re.compile(r"Socket '(unix:[^']*)' already in use")  # also for addresses that it can't listen at
DOCKER_REFUSED = re.compile(r"^docker: Error .*", re.MULTILINE)
METRICS_FAILED = "failed to start Metrics service"
# Triton logs one of these when every response has been handed to its connection, or when the time to exit is over.
# Triton 2.51 may run on for open gRPC streams.
STOPPED = re.compile("Found 0 live models and 0 in-flight|Exit timeout expired")
# The number in this line does not include streams. But a model with open streams stays loaded, and once a second after
# this line, Triton logs the number of loaded models (LIVE_MODELS).
IN_FLIGHT = re.compile(r"Found (\d+) model versions that have in-flight inferences")
LIVE_MODELS = re.compile(r"Found (\d+) live models")
FLUSH_SECONDS = 1.0
UNLOADING = '"All models are stopped, unloading models"'
# A stopping Triton of 25.05 or later writes this line once a second. It then takes no more requests, and waits until
# the number in the line is 0 before it counts the requests in flight. The number includes idle streams, so this may
# last until the exit timeout.
WAITING = re.compile(r"Found \d+ gRPC service connections and inference handlers")
SENT_SECONDS = 0.5  # the time that responses may take through Triton after an engine has sent them
# A phrase in the reason why a model did not load -> the advice.
ADVICE = (
    ("no GPUs are available", "This machine has no usable GPU: serve with --device cpu."),
    ("does not support GPUs", "This Triton was built without GPUs: serve with --device cpu."),
    ("unable to find backend library", "Install the backend there, use a server that has it, or leave the model out."),
    ("shared memory key", "/dev/shm is full or closed: give it more room (docker run --shm-size 1g)."),
    ("ModuleNotFoundError", "Install the missing module where the server runs."),
)
GENERAL_ADVICE = "Export the model again (hfx export --force), or leave it out with --models."
REASON_LINES = 12
POLL_SECONDS = 0.03


class PortLost(Exception):
    """Another process took the `port` for `use` between the choice and Triton's bind."""

    def __init__(self, use: str, port: int) -> None:
        super().__init__(f"{use} port {port}")
        self.use = use
        self.port = port


class SocketRefused(Exception):
    """Triton can't listen for HTTP at a Unix socket. The message is Triton's."""


class CrashedAtStart(ServerError):
    """A signal ended Triton while it started. A client's request may be the cause, so another start may succeed."""


class StartFailed(Exception):
    """Triton did not start, for the reason in `error`.

    `models` are those that did not load. `crashed` is true if a signal ended Triton instead.
    """

    def __init__(self, error: ServerError, models: Sequence[str], crashed: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.models = tuple(models)
        self.crashed = crashed


class ServerLog:
    """The log of a server, read as it grows from now on.

    `models` is the number of its models, members included (0: not known).
    """

    def __init__(self, path: Path, models: int = 0) -> None:
        self.path = path
        self.models = models
        self.offset = path.stat().st_size if path.exists() else 0  # a restart appends
        self.text = ""
        self.reported = 0
        self._stopped_at: float | None = None

    def read(self) -> None:
        """Append to `text` the lines that were written since the last call."""
        with self.path.open("rb") as log:
            if self.path.stat().st_size < self.offset:
                self.offset = 0  # it was rotated
            log.seek(self.offset)
            new = log.read()
        complete = new[: new.rfind(b"\n") + 1]
        self.offset += len(complete)
        self.text += complete.decode(errors="replace")

    def progress(self) -> list[str]:
        """Return a line `loaded NAME (3 of 8)` for each model that was loaded since the last call."""
        loaded = list(dict.fromkeys(LOADED.findall(self.text)))
        total = max(self.models, len(loaded))
        lines = [f"loaded {name} ({count} of {total})" for count, name in enumerate(loaded, 1)][self.reported :]
        self.reported = len(loaded)
        return lines

    def failures(self) -> dict[str, str]:
        """Return the models that did not load, each with its first reason, in the order in which they failed."""
        reasons: dict[str, str] = {}
        syntax = ""
        for line in self.text.splitlines():
            if match := CONFIG_SYNTAX.search(line):
                syntax = f" ({match[1]})"
            for match in filter(None, (pattern.search(line) for pattern in FAILURES)):
                reasons.setdefault(match["model"], _readable(match["reason"]) + syntax)
                syntax = ""
        return reasons

    def has_given_up(self) -> bool:
        """Return whether the server has decided to end. By then, all reasons are in the log."""
        return any(GIVEN_UP.search(line) for line in self.text.splitlines())

    def has_stopped(self) -> bool:
        """Return whether STOPPED was logged more than FLUSH_SECONDS ago.

        Since then, Triton waits only for idle connections.
        """
        self.read()
        if self._stopped_at is None and STOPPED.search(self.text):
            self._stopped_at = time.monotonic()
        return self._stopped_at is not None and time.monotonic() - self._stopped_at > FLUSH_SECONDS

    def is_unloading(self) -> bool:
        """Return whether a stopping server takes no more requests, and has none in flight that it counts."""
        return UNLOADING in self.text

    def is_stopping(self) -> bool:
        """Return whether the server takes no more requests. It may still count idle connections as open."""
        return self.is_unloading() or WAITING.search(self.text) is not None

    def is_idle(self) -> bool:
        """Return whether no request was in flight when a stopping server last counted them."""
        requests, models = IN_FLIGHT.findall(self.text), LIVE_MODELS.findall(self.text)
        has_streams = len(models) > 1 and models[-1] != "0"  # the first count is before any model has been unloaded
        return requests[-1:] == ["0"] and not has_streams

    def refused_socket(self) -> str:
        """Return Triton's message if it could not listen at a Unix socket, and an empty string otherwise."""
        match = SOCKET_REFUSED.search(self.text)
        return match[0] if match else ""

    def taken_port(self, metrics: int) -> int:
        """Return the port that another process took, or 0 if all three were free."""
        if METRICS_FAILED in self.text:
            return metrics
        match = SOCKET_TAKEN.search(self.text)
        return int(match[1]) if match else 0

    def tail(self, lines: int = REASON_LINES) -> str:
        """Return the last `lines` lines, without the tables that Triton prints."""
        plain = [line for line in self.text.splitlines() if line and line[0] not in "+|"]
        return "\n".join(plain[-lines:])


def _readable(reason: str) -> str:
    """Restore the line ends of `reason`, which Triton escapes in its log, and shorten it to REASON_LINES lines.

    A Python traceback follows the message after `At:`.
    """
    lines = reason.replace("\\n", "\n").replace('\\"', '"').removeprefix("Internal: ").strip().splitlines()
    shown = [line for line in lines if line.strip()]
    return "\n".join(shown if len(shown) <= REASON_LINES else [*shown[:2], "…", *shown[3 - REASON_LINES :]])


def wait_until_ready(
    log: ServerLog,
    is_ready: Callable[[], bool],
    has_failed: Callable[[], bool],
    timeout: float,
    progress: Callable[[str], None],
) -> bool:
    """Read `log` until `is_ready()`. Returns False as soon as `has_failed()`, or the log says that the server gave up.

    Raises ServerError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        failed = has_failed()
        log.read()
        for line in log.progress():
            progress(line)
        if failed or log.has_given_up():
            return False
        if is_ready():
            return True
        if time.monotonic() > deadline:
            raise ServerError(
                f"Triton was not ready after {timeout:g} s. Its last words:\n{log.tail()}",
                f"Give it more time, or look for the reason in {log.path}.",
            )
        time.sleep(POLL_SECONDS)


def end_server(
    running: subprocess.Popen[bytes],
    log: ServerLog,
    grace: float,
    all_answered: Callable[[bool], bool] = lambda by_triton: False,
) -> bool:
    """End the server that writes `log` within `grace` seconds. Returns False if requests were still in flight.

    The server is also done when it takes no more requests and `all_answered()` has been true for SENT_SECONDS. The
    argument of `all_answered` is True if Triton has counted no open request, so that only the requests that Triton does
    not count matter; otherwise all requests do. This is needed because Triton 2.51 never unloads a model whose process
    died with requests in it, and later releases wait for idle streams.
    """
    answered_at: float | None = None

    def is_done() -> bool:
        nonlocal answered_at
        if log.has_stopped():
            return True
        if not (log.is_stopping() and all_answered(log.is_unloading())):
            answered_at = None
        elif answered_at is None:
            answered_at = time.monotonic()
        return answered_at is not None and time.monotonic() - answered_at > SENT_SECONDS

    code = end(running, grace, is_done)
    log.read()
    return code == 0 or answered_at is not None or log.is_idle()


def load_error(
    log: ServerLog, paths: Mapping[str, str], code: int | None, backends: str = "the server's image"
) -> ServerError:
    """Return the error for a server that gave up, and ended with `code` (None: not yet).

    `paths` maps the folders that the server saw to the user's; `backends` is where it looks for backends.
    """
    failures = log.failures()
    if not failures:
        ending = "" if code is None else f" ({exit_reason(code)})"
        cause, advice = gpu_cause("\n".join(DOCKER_REFUSED.findall(log.text)))
        why = f": {cause}" if cause else ""
        message = f"Triton did not start{ending}{why}. Its last words:\n{log.tail()}"
        return ServerError(message, f"{advice} Its log: {log.path}".strip())
    reasons = "\n".join(f"{model}: {reason}" for model, reason in failures.items())
    for seen, original in paths.items():
        reasons = reasons.replace(seen, original)
    for name in sorted(set(NO_BACKEND.findall(reasons))):
        reasons += f"\nThere is no backend {name!r} in {backends}, nor in the model's folder."
    causes = [gpu_cause(reason, log.text) for reason in failures.values()]
    why = f": {causes[0][0]}" if all(cause for cause, _ in causes) else ""
    on_gpu = [*dict.fromkeys(advice for _, advice in causes if advice)]
    others = [advice for phrase, advice in ADVICE if phrase in reasons and not (on_gpu and "GPU" in advice)]
    advice = " ".join([*on_gpu, *others]) or GENERAL_ADVICE
    return ServerError(f"Triton can't load {', '.join(failures)}{why}.\n{reasons}", f"{advice} Its log: {log.path}")


def start_failure(
    log: ServerLog, ports: Mapping[str, int], paths: Mapping[str, str], code: int | None, backends: str
) -> Exception:
    """Return PortLost (`ports` maps uses to numbers), SocketRefused, or StartFailed with the `load_error`."""
    log.read()
    if reason := log.refused_socket():
        return SocketRefused(reason)
    if port := log.taken_port(ports["metrics"]):
        return PortLost(next(use for use, chosen in ports.items() if chosen == port), port)
    failures = log.failures()
    crashed = code is not None and code < 0 and not failures
    return StartFailed(load_error(log, paths, code, backends), tuple(failures), crashed)


# The log is bounded, because Triton 2.51 writes 16 to 50 MB a second when it has no free descriptors.


FILE_BYTES = 16 << 20
OLDER_FILES = 2  # beside the one that is written
CHECK_SECONDS = 0.2


class LogRotation:
    """Moves the contents of the file `path`, to which a server appends, to `path`.1 and so on, until `stop()`.

    The file itself stays, as the server and its stubs hold it open. Lines that they write while it is copied and
    emptied are lost; this takes some milliseconds for each 16 MB.
    """

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-rotation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop rotating, and remove the older files."""
        self._stopped.set()
        self._thread.join()
        for older in self._older():
            older.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            if self._path.exists() and self._path.stat().st_size > self._file_bytes:
                self._rotate()

    def _rotate(self) -> None:
        newest, *_ = older = self._older()
        for target, source in zip(reversed(older), reversed(older[:-1]), strict=False):
            if source.exists():
                source.replace(target)
        shutil.copyfile(self._path, newest)
        os.truncate(self._path, 0)

    def _older(self) -> list[Path]:
        return [self._path.with_name(f"{self._path.name}.{number}") for number in range(1, OLDER_FILES + 1)]
