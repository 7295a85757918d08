"""Requests of batches, which are answered beside the requests of callers and hardly delay them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hfx.front.app import App
    from hfx.front.connection import ClientConnection
    from hfx.front.guard import Receive
    from hfx.front.response import Send

POLL_SECONDS = 0.01


class Background:
    """Passes the requests of batches to `app`, at most `most` at a time.

    While requests of callers are in progress, a request of a batch begins only if no other request of a batch runs.
    """

    def __init__(self, app: App, most: int) -> None:
        self.limits, self.metrics = app.limits, app.metrics
        self._app, self._most = app, most
        self._running = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request when its turn has come."""
        connection: ClientConnection = scope["extensions"]["hfx"]["connection"]
        async with self._turn:
            while self._running and (self._app.in_progress.admitted > self._running or self._running >= self._most):
                await asyncio.sleep(POLL_SECONDS)
                if connection.has_left:
                    return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
