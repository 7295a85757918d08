"""`python -m hfx.front SETTINGS`: the front process, from its settings to the end of its last request."""

from __future__ import annotations

import logging
import resource
import socket
import sys
from pathlib import Path

import uvicorn

from hfx.front.app import App
from hfx.front.connection import ClientConnection
from hfx.front.settings import Settings
from hfx.front.upstream import Upstream

KEEP_ALIVE_SECONDS = 75


def main(argument: str) -> None:
    """Serve until SIGTERM, and then until the requests in progress are answered."""
    settings = Settings.from_json(argument)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what it would say of requests, clients decide
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    control = socket.socket(fileno=settings.control)
    control.setblocking(False)

    async def beat() -> None:
        control.send(b".")

    upstream = Upstream(settings.upstream)
    app = App(upstream, settings.limits, read_keys(settings.key_file), settings.access_log)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=ClientConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=settings.limits.connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        callback_notify=beat,
        timeout_notify=0,  # with each second
    )
    Server(config, upstream).run([socket.socket(fileno=settings.listener)])


class Server(uvicorn.Server):
    """uvicorn's server, which also closes the connections to Triton when it drains."""

    def __init__(self, config: uvicorn.Config, upstream: Upstream) -> None:
        super().__init__(config)
        self._upstream = upstream

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and return when those in progress are answered."""
        self._upstream.close()
        await super().shutdown(sockets)


def read_keys(path: str) -> list[str]:
    """The keys in the lines of the file at `path`; none for an empty path."""
    return [line.strip() for line in Path(path).read_text("utf-8").splitlines() if line.strip()] if path else []


if __name__ == "__main__":
    main(sys.argv[1])
