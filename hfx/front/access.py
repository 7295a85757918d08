"""Rules for which web pages may use the server.

Any page that is open in a browser can make the browser send requests, also to 127.0.0.1. The check of `Host` prevents
DNS rebinding, in which the page's own name is resolved to 127.0.0.1 (CVE-2024-28224 of Ollama). The headers `Origin`
and `Sec-Fetch-Site`, which no page can forge, identify requests from other sites (Fetch standard, 2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hfx.front.refusals import Header, Refusal

ANY = "*"
METHODS: Header = (b"access-control-allow-methods", b"GET, POST")
EXPOSED: Header = (b"access-control-expose-headers", b"inference-header-content-length, retry-after, x-request-id")
PREFLIGHT_SECONDS = 600
HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,1000}")
# A page can't send bodies of these media types to another origin without a preflight.
MEDIA_TYPES = (b"application/json", b"application/octet-stream")
SHOWN = 100  # characters of a header that a message repeats


class WebAccess:
    """Accepts requests for a `Host` in `hosts` (empty: any) from pages of this server and of `origins`."""

    def __init__(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._hosts = frozenset() if ANY in hosts else frozenset(host.lower().encode() for host in hosts)
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def check_host(self, headers: Mapping[bytes, bytes], http_version: str) -> None:
        """Raise Refusal (400 if an HTTP/1.1 request has no Host, 403 if the Host is not in `hosts`)."""
        host = headers.get(b"host")
        if host is None and http_version == "1.1":
            raise Refusal(400, "The request has no Host. Send one, as HTTP/1.1 requires.")
        if host is not None and self._hosts and _name(host) not in self._hosts:
            fix = "Use a name of this machine, or start `hfx serve` with --allowed-host NAME."
            raise Refusal(403, f"The server does not answer as {_shown(host)}. {fix}")

    def check_origin(self, method: str, headers: Mapping[bytes, bytes]) -> list[Header]:
        """Return the headers that let a page of another origin read the answer, or `vary` alone for other requests.

        The list is empty if no origins are allowed. Raises Refusal (403) if the request's page may not use the server.
        """
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"")
        is_known = origin is not None and (ANY.encode() in self._origins or origin.lower() in self._origins)
        if not (is_known or _is_own(method, origin, site, headers)):
            fix = "Start `hfx serve` with --cors-origin ORIGIN to allow it."
            raise Refusal(403, f"A web page of {_shown(origin or b'another site')} may not use this server. {fix}")
        if origin is None or not is_known:
            return [] if not self._origins else [(b"vary", b"Origin")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), EXPOSED]


def check_media_type(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise Refusal (415) if a web page sends a body of a type that it could send without a preflight."""
    if method != "POST" or b"origin" not in headers:
        return
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise Refusal(415, "A web page has to send JSON as such. Set Content-Type: application/json.")


def preflight(method: str, headers: Mapping[bytes, bytes]) -> list[Header] | None:
    """Return the additional headers of the answer to a preflight, or None if the request is not a preflight."""
    if method != "OPTIONS" or b"origin" not in headers or b"access-control-request-method" not in headers:
        return None
    requested = headers.get(b"access-control-request-headers", b"")
    allowed = [(b"access-control-allow-headers", requested)] if HEADER_NAMES.fullmatch(requested) else []
    return [METHODS, *allowed, (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS)]


def _is_own(method: str, origin: bytes | None, site: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request comes from a page of this server, from a link to it, or from no web page at all."""
    if site == b"same-origin":  # this holds also behind a proxy, which sends another Host
        return True
    if origin is not None:
        return origin.lower().partition(b"://")[2] == headers.get(b"host", b"").lower() != b""
    return site != b"cross-site" or (method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate")


@lru_cache(64)
def _name(host: bytes) -> bytes:
    """Return the name in `host` without its port, in lower case."""
    found = re.fullmatch(rb"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(?::[0-9]{0,5})?", host)
    return found[1].lower() if found else b""


def _shown(value: bytes) -> str:
    return repr(value[:SHOWN].decode("latin-1"))
