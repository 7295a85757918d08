"""Reading Triton's log while it starts: progress for people, and the reason when it fails.

HTTP opens only after every model has loaded, so until then the log is the only source. This file owns the patterns
of tritonserver 2.51's log lines; it must not know how the server is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import ServerError
from hfx.triton.process import exit_reason

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
METRICS_FAILED = "failed to start Metrics service"
REASON_LINES = 12


@dataclass(frozen=True)
class Failure:
    """A model that did not load, and why."""

    model: str
    reason: str


class StartupLog:
    """The log of a starting server, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.exists() else 0  # a restart appends
        self.text = ""
        self.said = 0

    def read(self) -> None:
        """Take in what was written since the last call."""
        with self.path.open("rb") as log:
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

    def failures(self) -> list[Failure]:
        """The models that did not load, each once, in the order in which they failed."""
        found: dict[str, str] = {}
        syntax = ""
        for line in self.text.splitlines():
            if match := CONFIG_SYNTAX.search(line):
                syntax = f" ({match[1]})"
            for match in filter(None, (pattern.search(line) for pattern in FAILURES)):
                found.setdefault(match["model"], _readable(match["reason"]) + syntax)
                syntax = ""
        return [Failure(model, reason) for model, reason in found.items()]

    def has_given_up(self) -> bool:
        """Whether the server has decided to end; all reasons stand in the log by then."""
        return any(GIVEN_UP.search(line) for line in self.text.splitlines())

    def taken_port(self, metrics: int) -> int:
        """The port that another process took; 0 when all three were free."""
        if METRICS_FAILED in self.text:
            return metrics
        match = SOCKET_TAKEN.search(self.text)
        return int(match[1]) if match else 0

    def tail(self, lines: int = REASON_LINES) -> str:
        """The last LINES lines, without the tables."""
        plain = [line for line in self.text.splitlines() if line and line[0] not in "+|"]
        return "\n".join(plain[-lines:])


def _readable(reason: str) -> str:
    """Triton escapes line ends in its log; a Python traceback follows the message after `At:`."""
    lines = reason.replace("\\n", "\n").replace('\\"', '"').removeprefix("Internal: ").strip().splitlines()
    shown = [line for line in lines if line.strip()]
    return "\n".join(shown if len(shown) <= REASON_LINES else [*shown[:2], "…", *shown[3 - REASON_LINES :]])


def load_error(log: StartupLog, paths: Mapping[str, str], code: int | None) -> ServerError:
    """The error for a server that gave up, ended with CODE (None: not yet); PATHS: folder it saw -> the user's."""
    failures = log.failures()
    if not failures:
        ending = "" if code is None else f" ({exit_reason(code)})"
        return ServerError(f"Triton did not start{ending}. Its last words:\n{log.tail()}", f"Its log: {log.path}")
    reasons = "\n".join(f"{failure.model}: {failure.reason}" for failure in failures)
    for seen, original in paths.items():
        reasons = reasons.replace(seen, original)
    names = ", ".join(failure.model for failure in failures)
    return ServerError(f"Triton can't load {names}.\n{reasons}", f"{_advice(reasons)} Its log: {log.path}")


def _advice(reasons: str) -> str:
    if "no GPUs are available" in reasons:
        return "This machine has no usable GPU: serve with --device cpu."
    if "ModuleNotFoundError" in reasons:
        return "Install the missing module where the server runs."
    return "Export the model again (hfx export --force), or leave it out with --models."
