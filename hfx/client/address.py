"""The address of a server, and the TLS files, headers and token of connections to it.

A token is never sent to another machine in plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hfx.errors import UsageError

if TYPE_CHECKING:
    import ssl

SCHEMES = {"grpc": ("grpc", False), "grpcs": ("grpc", True), "http": ("http", False), "https": ("http", True)}
USUAL_PORTS = {"http": 80, "https": 443, "grpcs": 443}
FIX = "Give HOST:PORT (gRPC), e.g. 127.0.0.1:8001, or grpc://, grpcs://, http:// or https://HOST:PORT."
AUTHORIZATION = "authorization"


@dataclass(frozen=True)
class Tls:
    """The PEM files of an encrypted connection.

    `ca` is the certificate authority to trust (default: the system's authorities). `certificate` and `key` are the
    client's own, for a server that requires them.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("A certificate needs its key, and a key its certificate.", "Give both, or none.")
        for name in ("ca", "certificate", "key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise UsageError(f"The TLS file {name}={path} does not exist.", "Give the path of a PEM file.")


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Return an SSL context that uses the files of `tls`. Raises UsageError for a file that can't be read as PEM."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        if tls.certificate is not None:
            context.load_cert_chain(str(tls.certificate), str(tls.key), password=lambda: "")
    except OSError as error:  # also ssl.SSLError
        given = ", ".join(f"{name}={path}" for name, path in vars(tls).items() if path is not None)
        raise UsageError(
            f"The TLS files {given} can't be used: {error}.",
            "Give PEM files that you may read: certificates, and a key without a password.",
        ) from error
    return context


@dataclass(frozen=True)
class Address:
    """A server's address. `url` is the text that the user gave."""

    protocol: str
    secure: bool
    host: str
    port: int
    url: str

    @property
    def target(self) -> str:
        """The address without its scheme, as HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the address is on this machine."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"


def parse_address(url: str) -> Address:
    """Parse `url`. Raises UsageError if it is not the address of a server."""
    try:
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        port = parts.port or (USUAL_PORTS.get(parts.scheme) if parts.port is None else None)
    except (ValueError, TypeError):
        raise UsageError(f"{url!r} is not an address of a server.", FIX) from None
    known = SCHEMES.get(parts.scheme)
    if known is None or not parts.hostname or not port or parts.username or parts.path.strip("/") or parts.query:
        raise UsageError(f"{url!r} is not an address of a server.", FIX)
    return Address(*known, parts.hostname, port, url)


def checked_headers(
    address: Address, headers: Mapping[str, str] | None, token: str | None, tls: Tls | None
) -> dict[str, str]:
    """Return the headers of each request, with lower-case names.

    Raises UsageError for a header or token that can't be sent to `address`, and for `tls` without encryption.
    """
    if tls is not None and not address.secure:
        raise UsageError(f"{address.url} is not encrypted, so tls has no effect.", "Give grpcs:// or https://.")
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in sent.items():
        if not name.isascii() or not isinstance(value, str) or "\n" in value or "\r" in value:
            raise UsageError(f"The header {name!r} can't be sent.", "Give an ASCII name, and a str of one line.")
    if token is not None:
        _check_token(address, token)
        sent[AUTHORIZATION] = f"Bearer {token}"
    return sent


def _check_token(address: Address, token: str) -> None:
    if not token or not token.isascii() or any(character.isspace() for character in token):
        raise UsageError("The token is empty or has characters that no token has.", "Give it without 'Bearer'.")
    if not address.secure and not address.is_loopback:
        raise UsageError(
            f"The token would travel to {address.url} in plain text, for all on the way to read.",
            f"Give grpcs:// or https://; to send it all the same, give headers={{'{AUTHORIZATION}': 'Bearer …'}}.",
        )
