"""Limits on the number of requests in progress, and on the memory that their bodies take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfx.front.refusals import overloaded
from hfx.front.settings import Limits
from hfx.memory import release_freed_memory

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

MUCH_MEMORY = 32 << 20  # bytes


@dataclass(eq=False)
class Share:
    """The bytes that a request of `client` takes: its body and the values parsed from it."""

    client: ClientConnection
    bytes: int = 0
    is_admitted: bool = False  # the body is complete


class InProgress:
    """The requests in progress. `admitted` counts those whose bodies are complete."""

    def __init__(self, limits: Limits) -> None:
        self.admitted = 0
        self._limits = limits
        self._bytes = 0  # of all shares
        # The most bytes of all shares in this second, and since memory was given back.
        self._recent = self._most = 0
        self._shares: set[Share] = set()

    def begin(self, client: ClientConnection) -> Share:
        """Return the share of a new request. `end` frees it."""
        share = Share(client)
        self._shares.add(share)
        return share

    def end(self, share: Share) -> None:
        """Free what the share holds. A second call does nothing."""
        self._shares.discard(share)
        self._bytes -= share.bytes
        self.admitted -= share.is_admitted
        share.bytes, share.is_admitted = 0, False

    def reserve(self, share: Share, size: int) -> None:
        """Add `size` bytes to the share; a negative size frees them.

        The requests whose bodies come slowest are ended to make room. Raises Refusal (503) if that is not enough.
        """
        while self._bytes + size > self._limits.bodies:
            slow = {each.client: each for each in self._shares if each is not share and not each.is_admitted}
            client = share.client.slowest(slow)
            if client is None:
                raise overloaded("The bodies of the requests in progress take all the memory that is for them.")
            self.end(slow[client])
            client.give_way()
        share.bytes += size
        self._bytes += size
        self._recent = max(self._recent, self._bytes)

    def give_back_memory(self) -> None:
        """Give the kernel the memory of bodies once the bodies of a second are MUCH_MEMORY smaller than before.

        To be called each second. It takes 1 to 25 ms of the event loop, so a steady load must not cause it again and
        again. Without it, 24 bodies of 10 MB leave 200 MB in exceptions' frames and in the C library.
        """
        recent, self._recent = self._recent, self._bytes
        self._most = max(self._most, recent)
        if self._most - recent >= MUCH_MEMORY:
            self._most = recent
            release_freed_memory()

    def admit(self, share: Share) -> None:
        """Count a request whose body is complete. Raises Refusal (503) if as many as allowed are in progress."""
        if self.admitted >= self._limits.requests:
            most = self._limits.requests
            raise overloaded(f"{most} requests are in progress, as many as are taken at a time.")
        share.is_admitted = True
        self.admitted += 1
