"""A served model, and the rest of its server: its metrics, and its process where it is on this machine.

Of a server elsewhere, or of another user, nothing is known, and nothing is guessed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import httpx
import psutil

from hfx.client.address import parse_address

USUAL_GRPC, USUAL_METRICS = 8001, 8002
METRICS_ABOVE_HTTP = 2  # of Triton's usual ports
ANSWER_SECONDS = 1.0
# They listen for a server that is elsewhere, or in a container.
PROXIES = ("docker-proxy", "containerd-shim", "rootlessport", "sshd", "ssh", "kubectl")


@dataclass(frozen=True)
class Target:
    """A served model: NAME (never NAME_stream), its address (`grpc_url`: HOST:PORT), and what is known of it.

    `metrics_url` is a whole URL; where it is not known, it may be near `http_url`. `pid` is the server's, on this
    machine. What is empty is not known.
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
    """`target` with the metrics and the process that it lacks; metrics count only where Triton's are answered."""
    address = parse_address(target.grpc_url)
    if address.secure or (target.metrics_url and target.pid is not None):
        return target
    own = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    is_here = address.is_loopback or address.host in own
    usual = [USUAL_METRICS] if address.port == USUAL_GRPC else []
    pid, ports = (listening(address.port) if is_here else None) or (None, usual)
    places = [replace(address, port=port) for port in ports if port != address.port]
    if target.http_url:
        http = parse_address(target.http_url)
        places.append(replace(http, port=http.port + METRICS_ABOVE_HTTP))
    urls = (f"http://{place.target}/metrics" for place in places)
    metrics_url = target.metrics_url or next(filter(_has_metrics, urls), "")
    return replace(target, metrics_url=metrics_url, pid=pid if target.pid is None else target.pid)


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


def _has_metrics(url: str) -> bool:
    with suppress(httpx.HTTPError, httpx.InvalidURL):
        return b"nv_inference" in httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False).content
    return False
