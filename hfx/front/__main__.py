"""`python -m hfx.front` runs the front process, from the settings on its stdin to the end of its last request."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

from hfx.front.app import App
from hfx.front.background import Background
from hfx.front.batches import BATCH_PATHS
from hfx.front.connection import ClientConnection
from hfx.front.dialect_server import DialectServer
from hfx.front.dialects import DIALECTS
from hfx.front.file_changes import FileChanges, open_regular
from hfx.front.idle import IdleModels
from hfx.front.metrics import Metrics
from hfx.front.playground import DIALECT as PLAYGROUND
from hfx.front.response import log_line
from hfx.front.settings import MESSAGE_BYTES, Settings, State, Tls
from hfx.front.shadow import Shadow, ShadowedUpstream
from hfx.front.upstream import Upstream
from hfx.memory import keep_little_freed_memory, memory_limit

NEVER_SECONDS = 1 << 30
TICK_SECONDS = 1.0


def main() -> None:
    """Serve until SIGTERM, and then until the requests in progress are answered."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the front forks processes for chats
    settings = Settings.from_json(sys.stdin.read())  # its end comes when Triton is ready
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # clients could make it log without a limit
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # hfx.process raises it
    upstream, idle, sources = Upstream(settings.upstream), None, []
    if settings.shadow:
        shadow = Shadow(settings.shadow, settings.shadow_command)
        upstream = ShadowedUpstream(settings.upstream, shadow)
        sources.append(shadow.samples)
    if settings.commands:
        memory, seconds = settings.memory_budget, settings.load_seconds
        idle = IdleModels(upstream, settings.commands, settings.unload_after, memory, seconds)
        upstream.model_in_use = idle.used
        sources.append(idle.samples)
    limits = settings.limits.within(descriptors, memory_limit())
    spoken = (*DIALECTS, PLAYGROUND) if settings.playground else DIALECTS
    others = BATCH_PATHS if settings.batches else ()
    dialects = DialectServer(spoken, upstream, settings.repository, limits, others, idle)
    app = App(settings, limits, upstream, dialects, Metrics(settings.started, sources), idle)
    config = _config(app, settings, **_tls_options(settings.tls))
    background = None
    if settings.background is not None:
        background = _config(Background(app, settings.background_requests), settings)
    keep_little_freed_memory()
    Server(config, background, settings, app, upstream, idle).run()


def _config(app: Any, settings: Settings, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
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
        timeout_keep_alive=NEVER_SECONDS,  # ClientConnection.check
        **options,
    )


class Server(uvicorn.Server):
    """A uvicorn server that serves `app` on the sockets in `settings`, with a task that runs each second.

    Each second, the server sends a heartbeat to the process that watches it, and ends the connections that have
    exceeded a time limit. The watching process sends the State of the server. `background` is the configuration for
    the requests of batches.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        background: uvicorn.Config | None,
        settings: Settings,
        app: App,
        upstream: Upstream,
        idle: IdleModels | None,
    ) -> None:
        super().__init__(config)
        self._background = background
        self._settings = settings
        self._app = app
        self._upstream = upstream
        self._idle = idle
        tls = settings.tls
        self._certificate = FileChanges([tls.certificate, tls.key] if tls else [])
        self._control = socket.socket(fileno=settings.control)
        self._control.setblocking(False)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving. This replaces uvicorn's own method, which sets no time limit for TLS handshakes."""
        loop, settings, backlog = asyncio.get_running_loop(), self._settings, self.config.backlog
        if self._idle is not None:
            await self._idle.start()
        self.servers = [
            await loop.create_server(
                lambda: ClientConnection(self.config, self.server_state, {}),
                sock=socket.socket(fileno=settings.listener),
                ssl=self.config.ssl,
                backlog=backlog,
                ssl_handshake_timeout=self._app.limits.head_seconds if self.config.ssl else None,
            )
        ]
        if settings.scraper is not None:
            scraper = socket.socket(fileno=settings.scraper)
            connect = partial(self._connection, self.config, "only_scrapes")
            self.servers.append(await loop.create_server(connect, sock=scraper, backlog=backlog))
        if self._background is not None:
            self._background.load()
            connect = partial(self._connection, self._background, "is_background")
            batches = socket.socket(fileno=settings.background)
            self.servers.append(await loop.create_unix_server(connect, sock=batches, backlog=backlog))
        self.started = True
        loop.add_reader(self._control, self._read_state)
        self._tick()

    def _connection(self, config: uvicorn.Config, mark: str) -> ClientConnection:
        """Return a new connection, whose attribute `mark` is true."""
        connection = ClientConnection(config, self.server_state, {})
        setattr(connection, mark, True)
        return connection

    def _read_state(self) -> None:
        message = self._control.recv(MESSAGE_BYTES)
        if message:
            self._app.state = State.from_message(message)
        else:  # the watching process has ended, and this process is about to end too
            asyncio.get_running_loop().remove_reader(self._control)

    def _tick(self) -> None:
        """Do the work of one second, also while draining. The next call is scheduled first, in case the work fails."""
        loop = asyncio.get_running_loop()
        loop.call_later(TICK_SECONDS, self._tick)
        with suppress(OSError):  # the watching process may be stopped, and read nothing
            self._control.send(b".")
        self._reload_files()
        self._app.in_progress.give_back_memory()
        for connection in list(self.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.check(loop.time())

    def _reload_files(self) -> None:
        """Load the API keys and the certificate again if they have changed. An unusable file changes nothing."""
        if message := self._app.keys.reload():
            log_line(message)
        tls, context = self._settings.tls, self.config.ssl
        if tls is not None and context is not None and self._certificate.settled():
            try:
                for file in (tls.certificate, tls.key):
                    open_regular(file).close()
                for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # the first context is only a trial
                    each.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
                message = "New connections get the new certificate."
            except OSError as error:  # also ssl.SSLError
                message = f"The certificate stays as it was, as the new one can't be used: {error}."
                message = self._certificate.failed(message)
            if message:
                log_line(message)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and return when the requests in progress are answered."""
        self._upstream.close()
        await super().shutdown(sockets)
        self._app.large_bodies.close()
        await asyncio.to_thread(self._app.traces.flush)


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    options: dict[str, Any] = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if tls.client_authorities:
        options |= {"ssl_ca_certs": tls.client_authorities, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


if __name__ == "__main__":
    main()
