"""Triton's log: progress while it starts, the reason when it fails, and the end of all models when it stops.

HTTP opens only after every model has loaded, so until then the log is the only source. The patterns are those of
tritonserver 2.51.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hfx.errors import ServerError
from hfx.triton import process

LOADING = re.compile(r'"loading: (.+):\d+"')
LOADED = re.compile(r"\"successfully loaded '(.+)'\"")
FAILURES = (
    re.compile(r"\"failed to load '(?P<model>.+?)' version \d+: (?P<reason>.*)\""),
    re.compile(r"\"failed to load model '(?P<model>.+?)': (?P<reason>.*)\""),
    re.compile(r"\"Poll failed for model directory '(?P<model>.+?)': (?P<reason>.*)\""),
    re.compile(r"\"Invalid argument: (?P<reason>ensemble (?P<model>\S+) contains .*)\""),
)
CONFIG_SYNTAX = re.compile(r"Error parsing text-format inference.ModelConfig: (.*)")
GIVEN_UP = re.compile(r'"Waiting for in-flight requests to complete\."|^error: creating server')
SOCKET_TAKEN = re.compile(r"Socket '[^']*:(\d+)' already in use")
SOCKET_REFUSED = re.compile(r"Socket '(unix:[^']*)' already in use")  # also said of addresses that it can't listen at
METRICS_FAILED = "failed to start Metrics service"
# Every response has been handed to its connection, or the time is over; Triton 2.51 may run on for open gRPC streams.
STOPPED = re.compile("Found 0 live models and 0 in-flight|Exit timeout expired")
# Streams are not in flight by this count, yet their models stay loaded: counted once a second after it.
IN_FLIGHT = re.compile(r"Found (\d+) model versions that have in-flight inferences")
LIVE_MODELS = re.compile(r"Found (\d+) live models")
FLUSH_SECONDS = 1.0
UNLOADING = '"All models are stopped, unloading models"'
SENT_SECONDS = 0.5  # for responses that an engine has sent on their way through Triton
REASON_LINES = 12
POLL_SECONDS = 0.03


class ServerLog:
    """The log of a server, read as it grows from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.exists() else 0  # a restart appends
        self.text = ""
        self.said = 0
        self._stopped_at: float | None = None

    def read(self) -> None:
        """Append to `text` what was written since the last call."""
        with self.path.open("rb") as log:
            if self.path.stat().st_size < self.offset:
                self.offset = 0  # it was rotated
            log.seek(self.offset)
            new = log.read()
        complete = new[: new.rfind(b"\n") + 1]
        self.offset += len(complete)
        self.text += complete.decode(errors="replace")

    def progress(self) -> str:
        """`loaded N of M models (NAME)` when that changed since the last call, else an empty string."""
        loaded = LOADED.findall(self.text)
        if len(loaded) == self.said:
            return ""
        self.said = len(loaded)
        return f"loaded {loaded[-1]} ({len(loaded)} of {len(set(LOADING.findall(self.text)) | set(loaded))})"

    def failures(self) -> dict[str, str]:
        """The models that did not load, each with its first reason, in the order in which they failed."""
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
        """Whether the server has decided to end; all reasons stand in the log by then."""
        return any(GIVEN_UP.search(line) for line in self.text.splitlines())

    def has_stopped(self) -> bool:
        """Whether Triton has had nothing to do for FLUSH_SECONDS but to wait for connections that are merely open."""
        self.read()
        if self._stopped_at is None and STOPPED.search(self.text):
            self._stopped_at = time.monotonic()
        return self._stopped_at is not None and time.monotonic() - self._stopped_at > FLUSH_SECONDS

    def is_unloading(self) -> bool:
        """Whether a stopping server has no request in flight that it counts, and takes none."""
        return UNLOADING in self.text

    def is_idle(self) -> bool:
        """Whether no request was in flight when a stopping server last counted them."""
        requests, models = IN_FLIGHT.findall(self.text), LIVE_MODELS.findall(self.text)
        has_streams = len(models) > 1 and models[-1] != "0"  # the first count is before any model has been unloaded
        return requests[-1:] == ["0"] and not has_streams

    def refused_socket(self) -> str:
        """What it said when it could not listen at a Unix socket; an empty string when it could."""
        match = SOCKET_REFUSED.search(self.text)
        return match[0] if match else ""

    def taken_port(self, metrics: int) -> int:
        """The port that another process took; 0 when all three were free."""
        if METRICS_FAILED in self.text:
            return metrics
        match = SOCKET_TAKEN.search(self.text)
        return int(match[1]) if match else 0

    def tail(self, lines: int = REASON_LINES) -> str:
        """The last `lines` lines, without the tables."""
        plain = [line for line in self.text.splitlines() if line and line[0] not in "+|"]
        return "\n".join(plain[-lines:])


def _readable(reason: str) -> str:
    """Triton escapes line ends in its log; a Python traceback follows the message after `At:`."""
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
    """Follow `log` until `is_ready()`; False as soon as `has_failed()` or the log says that the server gave up.

    Raises ServerError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        failed = has_failed()
        log.read()
        if line := log.progress():
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
    running: subprocess.Popen[bytes], log: ServerLog, grace: float, all_answered: Callable[[], bool] = lambda: False
) -> bool:
    """End the server that writes `log` within `grace` seconds; False: requests were still in flight.

    It is over too when Triton counts no request in flight and `all_answered()` says so of those that it does not count:
    Triton 2.51 never unloads a model whose process died with requests in it.
    """
    answered_at: float | None = None

    def is_done() -> bool:
        nonlocal answered_at
        if log.has_stopped():
            return True
        if answered_at is None and log.is_unloading() and all_answered():
            answered_at = time.monotonic()
        return answered_at is not None and time.monotonic() - answered_at > SENT_SECONDS

    code = process.end(running, grace, is_done)
    log.read()
    return code == 0 or answered_at is not None or log.is_idle()


def load_error(log: ServerLog, paths: Mapping[str, str], code: int | None) -> ServerError:
    """The error for a server that gave up, ended with `code` (None: not yet); `paths`: folder it saw -> the user's."""
    failures = log.failures()
    if not failures:
        ending = "" if code is None else f" ({process.exit_reason(code)})"
        return ServerError(f"Triton did not start{ending}. Its last words:\n{log.tail()}", f"Its log: {log.path}")
    reasons = "\n".join(f"{model}: {reason}" for model, reason in failures.items())
    for seen, original in paths.items():
        reasons = reasons.replace(seen, original)
    return ServerError(
        f"Triton can't load {', '.join(failures)}.\n{reasons}", f"{_advice(reasons)} Its log: {log.path}"
    )


def _advice(reasons: str) -> str:
    if "no GPUs are available" in reasons:
        return "This machine has no usable GPU: serve with --device cpu."
    if "ModuleNotFoundError" in reasons:
        return "Install the missing module where the server runs."
    return "Export the model again (hfx export --force), or leave it out with --models."
