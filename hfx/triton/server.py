"""What every way of running Triton offers, and the addresses it is reached at.

This file owns the interface and the check of the address; it must not know how a server is started.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from hfx.errors import UsageError

DEVICES = ("cpu", "gpu")


@dataclass(frozen=True)
class Ports:
    """The three ports of a server; 0 asks for a free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


@dataclass(frozen=True)
class Endpoints:
    """Where a running server is reached."""

    host: str
    ports: Ports

    @property
    def _contact(self) -> str:
        return "127.0.0.1" if ipaddress.ip_address(self.host).is_unspecified else self.host

    @property
    def http_url(self) -> str:
        """`http://HOST:PORT` of the HTTP API."""
        return f"http://{self._contact}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """`HOST:PORT` of the gRPC API, as clients take it."""
        return f"{self._contact}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """`http://HOST:PORT/metrics`, Prometheus text."""
        return f"http://{self._contact}:{self.ports.metrics}/metrics"


class Server(Protocol):
    """A Triton server that this process owns: it ends with the process."""

    @property
    def http_url(self) -> str:
        """`http://HOST:PORT` of the HTTP API."""

    @property
    def grpc_url(self) -> str:
        """`HOST:PORT` of the gRPC API."""

    @property
    def metrics_url(self) -> str:
        """`http://HOST:PORT/metrics`."""

    @property
    def exposure(self) -> str:
        """A warning when others than this machine can reach the server, else an empty string."""

    def start(self) -> None:
        """Start and return when every model answers; raises ServerError with the reason otherwise."""

    def fault(self) -> str:
        """Which process of the server died, and how; an empty string while all run."""

    def restart(self) -> None:
        """Start again after a fault, at the same addresses, with the same models.

        Raises ServerError with the reason when that fails; it may be called again.
        """

    def stop(self) -> bool:
        """End the server and remove what it left; stopping twice is harmless.

        New requests are refused, those under way get the exit timeout; False: some had not finished by its end.
        """

    def kill(self) -> None:
        """End every process of the server at once; what it left is removed by `stop`, which may be under way."""


def check_host(host: str) -> str:
    """The IPv4 address to listen at; `localhost` is 127.0.0.1."""
    try:
        return str(ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        raise UsageError(
            f"{host!r} is not an IPv4 address to listen at.",
            "Give 127.0.0.1 (this machine only) or 0.0.0.0 (everyone).",
        ) from None


def check_device(device: str) -> str:
    """`cpu` or `gpu`: the name of the configuration that models are loaded by."""
    if device not in DEVICES:
        raise UsageError(f"{device!r} is no device.", "Give cpu or gpu.")
    return device


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches HOST."""
    return ipaddress.ip_address(host).is_loopback
