"""What the front process is started with: descriptors, files and bounds. Travels as JSON in its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

MIB = 1 << 20
FAULT = b"!"  # begins a message to the front that says why /health is 503; then the reason, empty when it is not
MESSAGE_BYTES = 4096
OWN_DESCRIPTORS = 40  # of the front process, without connections


@dataclass(frozen=True)
class Limits:
    """The bounds of `hfx serve`'s options, and the times that a client may take, in seconds.

    `body` is in bytes after decompression; `connections` are those of clients, `requests` those in progress.
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

    @property
    def spare(self) -> int:
        """Connections above the limit that are kept for a moment, to be told so."""
        return 8 + self.connections // 8

    def within(self, descriptors: int) -> Limits:
        """These bounds, lowered to what a process with so many descriptors can keep."""
        room = max(descriptors - OWN_DESCRIPTORS, 20)
        return replace(self, connections=min(self.connections, room // 2), requests=min(self.requests, 3 * room // 10))


@dataclass(frozen=True)
class Tls:
    """PEM files: the server's certificate and key, and the authorities of client certificates (empty: none asked)."""

    certificate: str
    key: str
    client_authorities: str = ""


@dataclass(frozen=True)
class Settings:
    """`listener` and `control` are inherited descriptors: the listening socket, and one end of a SOCK_SEQPACKET pair.

    `upstream` is where Triton's HTTP is: `http://HOST:PORT` or `unix://` and a quoted path, `metrics` where its metrics
    are. `key_file` holds an API key in each line; empty: none asked. `repository` is the folder of the served models,
    where their tokenizers are; empty: they can't be had. `playground` is whether GET / answers a page to try them on.
    `hosts` are the names that a request's `Host` may have (none: any), `origins` those of foreign web pages.
    """

    listener: int
    control: int
    upstream: str
    metrics: str
    limits: Limits = field(default_factory=Limits)
    key_file: str = ""
    tls: Tls | None = None
    access_log: bool = False
    repository: str = ""
    playground: bool = True
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def to_json(self) -> str:
        """The argument of `python -m hfx.front`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        values = json.loads(text)
        tls = values.pop("tls")
        return cls(**values | {"limits": Limits(**values["limits"]), "tls": tls and Tls(**tls)})
