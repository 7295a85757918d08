"""The interface of all kinds of Triton servers that this process runs, their addresses, and calls of their HTTP API."""

from __future__ import annotations

import http.client
import ipaddress
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hfx.errors import ServerError, UsageError
from hfx.triton.liveness import Death, call
from hfx.triton.loaded_models import LoadedModels

DEVICES = ("cpu", "gpu")
OPTIONS = {"http": "--http-port", "grpc": "--grpc-port", "metrics": "--metrics-port", "scrapes": "--scrape-port"}
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The three ports of a server; 0 stands for a free port."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


@dataclass(eq=False)
class Server(ABC):
    """A Triton server that ends with this process; a context manager.

    `repository` is a folder of model folders, each with a config.pbtxt; `models` limits it to some models (and the
    members that they call). `device` picks configs/cpu.pbtxt or configs/gpu.pbtxt. A port of 0 stands for a free port.
    `host` is the address of gRPC, and also of HTTP and metrics unless `inner_host` is given for a server behind a
    front. `timeout` is the number of seconds in which the models must load, `exit_timeout` the number of seconds that
    requests in flight get at the end. `progress` receives one line for each model loaded.
    If not `strict`, models that don't load are left out, with a line to `warn`, unless no model remains.
    `check` is called before models are copied. It may raise HfxError, and returns the names of the models to leave out.
    """

    repository: Path
    _: KW_ONLY
    device: str = "cpu"
    host: str = LOOPBACK
    inner_host: str = ""
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    models: Sequence[str] = ()
    timeout: float = 300.0
    exit_timeout: int = 10
    progress: Callable[[str], None] = lambda line: None
    strict: bool = True
    check: Callable[[], Sequence[str]] = tuple
    warn: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise UsageError(f"{self.device!r} is not a device.", "Give cpu or gpu.")
        self.repository = Path(self.repository)
        self.host = address(self.host)
        self.inner_host = address(self.inner_host or self.host)
        self.ports = self.requested_ports = Ports(self.http_port, self.grpc_port, self.metrics_port)

    @property
    def http_url(self) -> str:
        """`http://HOST:PORT` of the HTTP API."""
        return f"http://{contact(self.inner_host)}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """`HOST:PORT` of the gRPC API, the address for clients."""
        return f"{contact(self.host)}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """`http://HOST:PORT/metrics`, Prometheus text."""
        return f"http://{contact(self.inner_host)}:{self.ports.metrics}/metrics"

    @property
    def exposure(self) -> str:
        """A warning if other machines can reach the server, otherwise an empty string."""
        return "" if is_loopback(self.host) else self._exposure()

    @abstractmethod
    def _exposure(self) -> str: ...

    @abstractmethod
    def start(self) -> None:
        """Start the server, and return when every model answers. Raises ServerError with the reason otherwise."""

    @abstractmethod
    def deaths(self) -> list[Death]:
        """Return the deaths of the server's processes, with their reasons."""

    def fault(self) -> str:
        """Return the reasons of `deaths` on one line; an empty string while all processes run."""
        return "; ".join(death.reason for death in self.deaths())

    @property
    def replaceable(self) -> LoadedModels | None:
        """The models, if single ones can be replaced while the others serve; None if only a restart is possible."""
        return None

    @property
    def revision(self) -> int:
        """A number that changes with the set of the models that are served."""
        return 0

    def unloaded_configurations(self) -> list[dict[str, Any]]:
        """Triton's configurations of the models that are not in memory, but loaded on demand."""
        return [] if self.replaceable is None else self.replaceable.residency.unloaded_configurations()

    @abstractmethod
    def restart(self) -> None:
        """Kill the server and start it again at the same ports with the same models.

        Raises ServerError with the reason if that fails; it may be called again.
        """

    @abstractmethod
    def stop(self) -> bool:
        """End the server and remove its files. Stopping twice is harmless.

        New requests are refused, and requests in flight get `exit_timeout` seconds. Returns False if some had not
        finished by then, except for streams, which Triton may not count.
        """

    @abstractmethod
    def kill(self) -> None:
        """End every process of the server at once. `stop` removes its files, and may run at the same time."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def address(host: str) -> str:
    """Return the IPv4 address to listen at; `localhost` is 127.0.0.1. Raises UsageError for any other text."""
    try:
        return str(ipaddress.IPv4Address(LOOPBACK if host == "localhost" else host))
    except ValueError:
        raise UsageError(
            f"{host!r} is not an IPv4 address to listen at.",
            "Give 127.0.0.1 (this machine only) or 0.0.0.0 (everyone).",
        ) from None


def contact(host: str) -> str:
    """Return the address at which this machine reaches a server that listens at `host`."""
    return LOOPBACK if ipaddress.ip_address(host).is_unspecified else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens at `host`."""
    return ipaddress.ip_address(host).is_loopback


# Ports


def choose_ports(requested: Ports, host: str) -> Ports:
    """Return `requested` with a free port for each 0.

    Raises ServerError, which names the port and its option, if another port is taken. Triton has no "port 0", and runs
    on without metrics if their port is taken, so all three ports are tried before it starts. Another process can still
    take a free port before Triton does; the caller must then try again.
    """
    fixed = check_ports(requested)
    with ExitStack() as held:  # held until all are known, so that no port is chosen twice
        for use, port in fixed.items():
            held.enter_context(bind(host, port, use))
        free = {}
        for use in asdict(requested).keys() - fixed.keys():
            sock = held.enter_context(socket.socket())
            sock.bind((host, 0))
            free[use] = sock.getsockname()[1]
    return Ports(**fixed, **free)


def check_ports(requested: Ports) -> dict[str, int]:
    """Return the ports in `requested` that are not 0. Raises UsageError for an invalid port, and for equal ports."""
    fixed = {use: port for use, port in asdict(requested).items() if port}
    for use, port in fixed.items():
        if not 0 < port < 65536:
            raise UsageError(f"{OPTIONS[use]} {port} is not a port.", "Ports go from 1 to 65535; 0 takes a free one.")
        twin = next((other for other in fixed if other != use and fixed[other] == port), None)
        if twin:
            raise UsageError(f"{OPTIONS[use]} and {OPTIONS[twin]} are both {port}.", "Give each its own port.")
    return fixed


def bind(host: str, port: int, use: str, listening: bool = True) -> socket.socket:
    """Return a socket bound to HOST:PORT. Raises ServerError if another program listens there."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as in Triton: a port in TIME_WAIT counts as free
    try:
        sock.bind((host, port))
        if listening:
            sock.listen(1)
    except OSError as error:
        sock.close()
        raise port_taken(use, host, port, error.strerror or str(error)) from error
    return sock


def port_taken(use: str, host: str, port: int, reason: str) -> ServerError:
    """Return the error for a port that can't be listened at."""
    return ServerError(
        f"Can't listen on {host}:{port}: {reason}.",
        f"Stop the program that uses it, or choose another port with {OPTIONS[use]} (0: a free one).",
    )


# The HTTP API


def is_ready(http_url: str) -> bool:
    """Return whether the server reports that all of its models are ready."""
    try:
        call(f"{http_url}/v2/health/ready")
    except (OSError, http.client.HTTPException):
        return False
    return True
