"""What the front process is started with: descriptors, files and bounds. Travels as JSON in its arguments."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Self

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limits:
    """The bounds of `hfx serve`'s options.

    `body` is in bytes after decompression; `connections` are those of clients, `requests` those in progress.
    """

    body: int = 16 * MIB
    connections: int = 2048
    requests: int = 1024


@dataclass(frozen=True)
class Tls:
    """PEM files: the server's certificate and key, and the authorities of client certificates (empty: none asked)."""

    certificate: str
    key: str
    client_authorities: str = ""


@dataclass(frozen=True)
class Settings:
    """`listener` and `control` are inherited descriptors: the listening socket, and one end of a socket pair.

    `upstream` is the port of Triton's HTTP at 127.0.0.1. `key_file` holds an API key in each line; empty: none asked.
    """

    listener: int
    control: int
    upstream: int
    limits: Limits = field(default_factory=Limits)
    key_file: str = ""
    tls: Tls | None = None
    access_log: bool = False

    def to_json(self) -> str:
        """The argument of `python -m hfx.front`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        values = json.loads(text)
        tls = values.pop("tls")
        return cls(**values | {"limits": Limits(**values["limits"]), "tls": tls and Tls(**tls)})
