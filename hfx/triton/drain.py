"""Whether a server that was told to stop has anything left to do, though it still runs.

Triton 2.51 waits for clients: for the exit timeout while an HTTP connection is merely kept open, and beyond it while a
gRPC stream is. Owns the signs that nobody waits for an answer any more; ending the server is its owner's.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from hfx.triton import process
from hfx.triton.connections import connections
from hfx.triton.server import Ports

# Of the log. Requests of decoupled models are not in flight by this count, yet their models stay loaded.
IN_FLIGHT = re.compile(r"Found (\d+) model versions that have in-flight inferences")
ALL_UNLOADED = "Found 0 live models and 0 in-flight"  # every response has been handed to its connection
FLUSH_SECONDS = 1.0
QUIET_SECONDS = 3.0
BUSY_SHARE = 0.05  # of a core


class Drain:
    """A server with process id `group`, its `log` and `ports`, from when it is told to stop; `over` stays true."""

    def __init__(self, group: int, log: Path, ports: Ports) -> None:
        self.over = False
        self._group = group
        self._ports = ports
        self._log = log
        self._log_begin = log.stat().st_size
        self._unloaded_at: float | None = None
        self._quiet_since: float | None = None
        self._cpu_before = 0.0

    def look(self) -> bool:
        """Whether nothing is under way any more; to be asked a few times a second."""
        with self._log.open(errors="replace") as log:
            log.seek(self._log_begin)
            said = log.read()
        self.over = self.over or self._has_unloaded(said) or self._is_idle(said)
        return self.over

    def _has_unloaded(self, said: str) -> bool:
        if self._unloaded_at is None and ALL_UNLOADED in said:
            self._unloaded_at = time.monotonic()
        return self._unloaded_at is not None and time.monotonic() - self._unloaded_at > FLUSH_SECONDS

    def _is_idle(self, said: str) -> bool:
        """Whether it only waits for connections: for a while nothing was owed to them, sent or computed."""
        in_flight = IN_FLIGHT.findall(said)
        if (in_flight and in_flight[-1] != "0") or not self._connections_are_quiet():
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since, self._cpu_before = time.monotonic(), process.cpu_seconds(self._group)
        elif (seconds := time.monotonic() - self._quiet_since) > QUIET_SECONDS:
            self._quiet_since = None
            return process.cpu_seconds(self._group) - self._cpu_before <= BUSY_SHARE * seconds
        return False

    def _connections_are_quiet(self) -> bool:
        """False also without any: then Triton ends by itself."""
        try:
            http, grpc = connections(self._ports.http), connections(self._ports.grpc)
        except OSError:
            return False
        # An HTTP/2 connection carries many requests and chatter of its own: what it owes is not to be seen.
        quiet = [not connection.owes and connection.sent > QUIET_SECONDS for connection in http]
        quiet += [min(connection.sent, connection.received) > QUIET_SECONDS for connection in grpc]
        return bool(quiet) and all(quiet)
