"""A served model, and the rest of its server: its other addresses, and its process where it is on this machine.

Of a server elsewhere, or of another user, nothing is known, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import httpx
import psutil

from hfx.client.address import parse_address

USUAL_GRPC, USUAL_OTHERS = 8001, (8000, 8002)
ANSWER_SECONDS = 1.0
# They listen for a server that is elsewhere, or in a container.
PROXIES = ("docker-proxy", "containerd-shim", "rootlessport", "sshd", "ssh", "kubectl")


@dataclass(frozen=True)
class Target:
    """A served model: NAME (never NAME_stream), its address (`grpc_url`: HOST:PORT), and what is known of it.

    `http_url` and `metrics_url` are whole URLs; `pid` is the server's, on this machine. What is empty is not known.
    """

    model: str
    grpc_url: str
    http_url: str = ""
    metrics_url: str = ""
    device: str = ""
    precision: str = ""
    task: str = ""
    pid: int | None = None


def located(target: Target) -> Target:
    """`target` with the addresses and the process that it lacks; an address counts only where Triton answers."""
    address = parse_address(target.grpc_url)
    if address.secure or (target.http_url and target.metrics_url and target.pid is not None):
        return target
    usual = USUAL_OTHERS if address.port == USUAL_GRPC else ()
    own = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    is_here = address.is_loopback or address.host in own
    pid, ports = (listening(address.port) if is_here else None) or (None, usual)
    base = address.target.rpartition(":")[0]
    urls = [f"http://{base}:{port}" for port in ports if port != address.port]
    return replace(
        target,
        http_url=target.http_url or _first(urls, "/v2", b'"triton"'),
        metrics_url=target.metrics_url or _first(urls, "/metrics", b"nv_inference"),
        pid=pid if target.pid is None else target.pid,
    )


def listening(port: int) -> tuple[int, list[int]] | None:
    """The process of this user's that listens at `port`, with all its ports; None where it only hands on to another."""
    try:
        sockets = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid]
        owners = sorted(each.pid for each in sockets if each.laddr.port == port)
        process = psutil.Process(owners[0]) if owners else None  # of a parent and its forks, the parent
        if process is None or process.name().startswith(PROXIES):
            return None
        if process.uids().real != psutil.Process().uids().real:
            return None
    except psutil.Error:
        return None
    return process.pid, sorted(each.laddr.port for each in sockets if each.pid == process.pid)


def _first(urls: Iterable[str], path: str, words: bytes) -> str:
    """The first of `urls` whose `path` holds `words`; that of the metrics with its path."""
    for url in urls:
        with suppress(httpx.HTTPError):
            if words in httpx.get(url + path, timeout=ANSWER_SECONDS, trust_env=False).content:
                return url + path.removeprefix("/v2")
    return ""
