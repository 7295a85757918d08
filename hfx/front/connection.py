"""The connections of clients: uvicorn's HTTP protocol over httptools, bounded in number, time and size of its parts."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hfx.front.upstream import UpstreamConnection


class ClientConnection(HttpToolsProtocol):
    """A client's connection; `upstream` is the one to Triton that works for it, closed when the client leaves."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.upstream: UpstreamConnection | None = None

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {"hfx": {"connection": self}}

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: Triton need not go on."""
        if self.upstream is not None:
            self.upstream.abort()
        super().connection_lost(exc)
