"""`python -m hfx.batch.api SETTINGS`: answer requests that the front forwards, and run the batches, until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import uvicorn

from hfx.batch.api.app import Api
from hfx.batch.api.runner import Runner
from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import Store
from hfx.errors import HfxError
from hfx.front.response import log_line

DRAIN_SECONDS = 3  # time for requests in progress to finish


async def main(argument: str) -> None:
    """Serve the API and run the batches until a signal arrives. `argument` is an ApiSettings as JSON."""
    settings = ApiSettings(**json.loads(argument))
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    store, changed = Store(Path(settings.folder), settings.disk), asyncio.Event()
    config = uvicorn.Config(
        Api(settings, store, changed),
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    transport = httpx.AsyncHTTPTransport(uds=settings.front)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        running = asyncio.create_task(Runner(settings, store, changed, client).run())
        await uvicorn.Server(config).serve([socket.socket(fileno=settings.listener)])
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


if __name__ == "__main__":
    import uvloop

    try:
        uvloop.run(main(sys.argv[1]))
    except HfxError as error:
        log_line(f"the process of batches has ended: {error.message}")
        sys.exit(error.exit_code)
