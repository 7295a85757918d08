"""The settings of the front process: descriptors, files and limits. They are passed to it as a JSON argument."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

MIB = 1 << 20
MESSAGE_BYTES = 8192
FAULT_LENGTH = 1000  # characters, which JSON may write with 6 bytes each
BODIES_AT_ONCE = 16  # of the largest size
OWN_DESCRIPTORS = 40  # of the front process, without connections


@dataclass(frozen=True)
class Limits:
    """The limits from `hfx serve`'s options, and the times that a client may take, in seconds.

    `body` is the size of a body in bytes after decompression, `connections` the number of clients' connections,
    `requests` the number of requests in progress, and `memory` the memory of all processes of the server in bytes
    (None: no limit). `head_seconds` limits the whole head of a request, `pause_seconds` the time between two pieces of
    a body, `body_seconds` the whole body, `idle_seconds` the time between two requests, and `write_seconds` the time
    in which a client reads nothing of an answer.
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
        """The limit on the bytes of all bodies in progress, including parsed bodies.

        A body is in the front, in tritonserver and in /dev/shm. Together, these may take three eighths of the memory.
        """
        most = BODIES_AT_ONCE * self.body
        return most if self.memory is None else max(self.body, min(most, self.memory // 8))

    @property
    def spare(self) -> int:
        """The number of connections above the limit that stay open for a moment, to get a refusal."""
        return 8 + self.connections // 8

    def within(self, descriptors: int, memory: int | None) -> Limits:
        """Return these limits, lowered to what `descriptors` allow, for a server with so much `memory`."""
        room = max(descriptors - OWN_DESCRIPTORS, 20)
        connections, requests = min(self.connections, room // 2), min(self.requests, 3 * room // 10)
        return replace(self, connections=connections, requests=requests, memory=memory)


@dataclass(frozen=True)
class Tls:
    """PEM files: the server's certificate and key, and the authorities of client certificates (empty: not required)."""

    certificate: str
    key: str
    client_authorities: str = ""


@dataclass(frozen=True)
class State:
    """The state of the server, which the watching process sends to the front.

    `fault` is the reason why /health answers 503, or an empty string if there is none. `restarts` counts how often any
    part of the server was started again.
    """

    fault: str = ""
    restarts: int = 0

    def to_message(self) -> bytes:
        """Return the state as a message to the front, of at most MESSAGE_BYTES."""
        return json.dumps({"fault": self.fault[:FAULT_LENGTH], "restarts": self.restarts}).encode()

    @classmethod
    def from_message(cls, message: bytes) -> Self:
        """Return the state in a message from `to_message`."""
        return cls(**json.loads(message))


@dataclass(frozen=True)
class Settings:
    """The settings of a front process.

    `listener` and `control` are inherited descriptors: the listening socket, and one end of a SOCK_SEQPACKET pair.
    `upstream` is the URL of Triton's HTTP, `http://HOST:PORT` or `unix://` and a quoted path; `metrics` is that of its
    metrics. `key_file` has an API key in each line (empty: no key is required). `access_log` is text or json (empty: no
    log). Spans are sent to `otlp_endpoint` (empty: none are sent). `repository` is the folder of the served models with
    their tokenizers (empty: not available). `playground` is whether GET / answers a page on which to try the models.
    `hosts` are the names that a request's `Host` may have (empty: any), and `origins` the origins of foreign web pages
    that may send requests. `started` is the start time of the server, in seconds since 1970. `scraper` is another
    listening socket, for /metrics and /health only, without a key and without TLS (None: there is none). `shadow` is
    the share of answers that `shadow_command` compares.

    `batches` is the URL at which the process of the Batch API listens (unix://; empty: there is no such process), and
    `background` another listening socket, for the requests of that process (None: there is none). At most
    `background_requests` of these are in progress at a time.

    `commands` is the socket of the process that loads models (empty: all models stay loaded). A model that was not used
    for `unload_after` seconds is unloaded (0: never). All loaded models together may take `memory_budget` bytes (0: no
    limit). A load may take `load_seconds`.
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
        """Return the input of `python -m hfx.front`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings in the JSON text from `to_json`."""
        values = json.loads(text)
        tls = values.pop("tls")
        return cls(**values | {"limits": Limits(**values["limits"]), "tls": tls and Tls(**tls)})
