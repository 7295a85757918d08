"""Servers of peers: a process each, on free ports of this machine, ended with the measurement."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from bench.child import PeerFailed

START_SECONDS, LONGEST_SECONDS = 120.0, 3600


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 on which nothing listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(name: str, command: Sequence[str], ready: str, environment: Mapping[str, str]) -> Iterator[None]:
    """A server from the time at which the URL `ready` answers. Raises PeerFailed with its log's last line."""
    with NamedTemporaryFile(prefix="hfx-bench-") as log:
        process = subprocess.Popen(
            ["timeout", str(LONGEST_SECONDS), *command],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the benchmark
            env={**os.environ, **environment},
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(ready, timeout=2):
                    break
                time.sleep(0.2)
            else:
                lines = Path(log.name).read_text(errors="replace").strip().splitlines()
                raise PeerFailed(f"{name} did not start: {lines[-1].strip() if lines else 'its log is empty'}")
            yield
        finally:
            process.terminate()
            process.wait()
