"""The way to a server that fits: the plain connection where that will do, else gRPC's own library.

Owns the choice, and what failures are in hfx.errors. It must not know what the bytes say that are sent.
"""

from __future__ import annotations

from typing import Protocol

from hfx.client import errors
from hfx.client.address import Access, Address
from hfx.errors import ServerError
from hfx.perf.builtin.records import Failure, Record

SERVICE = "/inference.GRPCInferenceService"
LIVE, INFER, STREAM = f"{SERVICE}/ServerLive", f"{SERVICE}/ModelInfer", f"{SERVICE}/ModelStreamInfer"
CONNECT_SECONDS = 5.0
WITH_STATUS = ("triton_grpc_error", "true")  # so that Triton ends a stream that fails, and with its status


class Door(Protocol):
    """A way to ask."""

    async def connect(self) -> None:
        """Be ready to ask. Raises ServerError."""

    async def ask(self, message: bytes, record: Record) -> None:
        """Send it now, and note what comes; returns after the last answer, or with the record's error set."""

    async def close(self) -> None:
        """Let go of it; what is under way ends."""


async def opened(address: Address, access: Access, stream: bool, timeout: float) -> Door:
    """A door that is connected; requests are answered with a STREAM or a single message. Raises ServerError."""
    from hfx.perf.builtin.library import Library
    from hfx.perf.builtin.plain import Plain

    if not address.secure:
        plain = Plain(address, access, stream, timeout)
        try:
            await plain.connect()
            return plain
        except ServerError:  # a server that it does not suit, or none: the library knows
            await plain.close()
    library = Library(address, access, stream, timeout)
    await library.connect()
    return library


def error(status: str, words: str, url: str, timeout: float) -> ServerError:
    """What a failed call means."""
    if status == "DEADLINE_EXCEEDED":
        return errors.lateness(url, timeout)
    return errors.failure(status, words, url)


def failure(status: str, words: str, url: str, timeout: float) -> Failure:
    """The same as a record keeps it."""
    found = error(status, words, url, timeout)
    return type(found).__name__, found.message
