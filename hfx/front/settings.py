"""What the front process is started with: descriptors, files and bounds. Travels as JSON in its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

MIB = 1 << 20
MESSAGE_BYTES = 8192
FAULT_LENGTH = 1000  # characters, which JSON may write with 6 bytes each
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNBOUNDED = 1 << 60  # version 1 says so many bytes or more where there is no bound
BODIES_AT_ONCE = 16  # of the largest size
OWN_DESCRIPTORS = 40  # of the front process, without connections


@dataclass(frozen=True)
class Limits:
    """The bounds of `hfx serve`'s options, and the times that a client may take, in seconds.

    `body` is in bytes after decompression; `connections` are those of clients, `requests` those in progress; `memory`
    is what all processes of the server may have, in bytes (None: any).
    `head_seconds` are for the whole head of a request, `pause_seconds` between two pieces of a body, `body_seconds` for
    all of it, `idle_seconds` between two requests, `write_seconds` without taking anything of an answer.
    """

    body: int = 16 * MIB
    connections: int = 2048
    requests: int = 1024
    head_seconds: float = 10.0
    pause_seconds: float = 10.0
    body_seconds: float = 120.0
    idle_seconds: float = 75.0
    write_seconds: float = 60.0
    memory: int | None = None

    @property
    def bodies(self) -> int:
        """The bytes of all bodies in progress, parsed ones too.

        A body is in the front, in tritonserver and in /dev/shm: together they may take three eighths of the memory.
        """
        most = BODIES_AT_ONCE * self.body
        return most if self.memory is None else max(self.body, min(most, self.memory // 8))

    @property
    def spare(self) -> int:
        """Connections above the limit that are kept for a moment, to be told so."""
        return 8 + self.connections // 8

    def within(self, descriptors: int, memory: int | None) -> Limits:
        """These bounds, lowered to what a process with so many descriptors, and with so much `memory`, can keep."""
        room = max(descriptors - OWN_DESCRIPTORS, 20)
        connections, requests = min(self.connections, room // 2), min(self.requests, 3 * room // 10)
        return replace(self, connections=connections, requests=requests, memory=memory)


@dataclass(frozen=True)
class Tls:
    """PEM files: the server's certificate and key, and the authorities of client certificates (empty: none asked)."""

    certificate: str
    key: str
    client_authorities: str = ""


@dataclass(frozen=True)
class State:
    """What the process that watches a front tells it.

    `fault` is why /health is 503, empty while it is not; `restarts` is how often anything had to be started again.
    """

    fault: str = ""
    restarts: int = 0

    def to_message(self) -> bytes:
        """The state as the front reads it, in MESSAGE_BYTES at most."""
        return json.dumps({"fault": self.fault[:FAULT_LENGTH], "restarts": self.restarts}).encode()

    @classmethod
    def from_message(cls, message: bytes) -> Self:
        """The state that `to_message` wrote."""
        return cls(**json.loads(message))


@dataclass(frozen=True)
class Settings:
    """`listener` and `control` are inherited descriptors: the listening socket, and one end of a SOCK_SEQPACKET pair.

    `upstream` is where Triton's HTTP is: `http://HOST:PORT` or `unix://` and a quoted path, `metrics` where its metrics
    are. `key_file` holds an API key in each line; empty: none asked. `access_log` is text or json; empty: none.
    `otlp_endpoint` is where spans are sent; empty: nowhere. `repository` is the folder of the served models, where
    their tokenizers are; empty: they can't be had. `playground` is whether GET / answers a page to try them on. `hosts`
    are the names that a request's `Host` may have (none: any), `origins` those of foreign web pages. `started` is when
    the server was, in seconds since 1970. `scraper` is another listening socket, for /metrics and /health alone,
    without a key and without TLS; None: there is none. `shadow` is the share of answers that `shadow_command` compares.
    `batches` is where the process of the Batch API listens (unix://, empty: there is none), `background` another
    listening socket, for the requests of that process (None: there is none); beside others `background_requests` of
    them are in progress.
    `commands` is the socket of the process that loads models; empty: all are loaded. One that was not used for
    `unload_after` seconds is unloaded (0: none is), all together take `memory_budget` bytes (0: any), and a load may
    take `load_seconds`.
    """

    listener: int = -1
    control: int = -1
    upstream: str = ""
    metrics: str = ""
    limits: Limits = field(default_factory=Limits)
    key_file: str = ""
    tls: Tls | None = None
    access_log: str = ""
    otlp_endpoint: str = ""
    repository: str = ""
    playground: bool = True
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    started: float = 0.0
    scraper: int | None = None
    shadow: float = 0.0
    shadow_command: Sequence[str] = ()
    batches: str = ""
    background: int | None = None
    background_requests: int = 1
    commands: str = ""
    unload_after: float = 0.0
    memory_budget: int = 0
    load_seconds: float = 300.0

    def to_json(self) -> str:
        """The argument of `python -m hfx.front`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        values = json.loads(text)
        tls = values.pop("tls")
        return cls(**values | {"limits": Limits(**values["limits"]), "tls": tls and Tls(**tls)})


def memory_limit() -> int | None:
    """The bytes that this process's cgroup (version 2 or 1) may have, as a container sees it; None without a bound."""
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < UNBOUNDED:
            return int(text)
    return None
