"""Requests that a batch sends: they are answered beside those of callers, and never delay them much."""

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
    """`app` for the requests of batches: at most `most` are in progress, and one begins beside those of others."""

    def __init__(self, app: App, most: int) -> None:
        self.limits, self.metrics = app.limits, app.metrics
        self._app, self._most = app, most
        self._running = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, when its turn has come."""
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
