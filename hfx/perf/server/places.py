"""Where else a server answers whose gRPC address is known, and which process it is, if it runs on this machine.

Nothing is guessed: an address is taken only when what answers there is Triton.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from hfx.client.address import Address, parse_address
from hfx.perf.server.processes import listening

USUAL_GRPC, USUAL_OTHERS = 8001, (8000, 8002)
ANSWER_SECONDS = 1.0
MOST_BYTES = 1 << 20
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Place:
    """A server's other addresses and its process; what is not known is empty or None."""

    http_url: str = ""
    metrics_url: str = ""
    pid: int | None = None


def place(grpc_url: str) -> Place:
    """What can be found of the Triton that listens at GRPC_URL."""
    address = parse_address(grpc_url)
    if address.secure:
        return Place()
    here = listening(address.port) if _is_here(address) else None
    usual = USUAL_OTHERS if address.port == USUAL_GRPC else ()
    ports = [port for port in here.ports if port != address.port] if here else usual
    base = address.target.rpartition(":")[0]
    urls = [f"http://{base}:{port}" for port in ports]
    return Place(
        _first(urls, "/v2", b'"triton"'), _first(urls, "/metrics", b"nv_inference"), here.pid if here else None
    )


def _is_here(address: Address) -> bool:
    own = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    return address.is_loopback or address.host in own


def _first(urls: Iterable[str], path: str, words: bytes) -> str:
    """The first of URLS whose PATH holds WORDS; the metrics' with its path."""
    for url in urls:
        with suppress(OSError, http.client.HTTPException), _opener.open(url + path, timeout=ANSWER_SECONDS) as answer:
            if words in answer.read(MOST_BYTES):
                return url + path.removeprefix("/v2")
    return ""
