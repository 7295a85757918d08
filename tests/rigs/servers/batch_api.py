"""Batches of OpenAI's Batch API on disk that have not begun, and an application in place of the front."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx

from hfx.batch.api.lines import CHUNK
from hfx.batch.api.runner import Runner
from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import Batch, Store, StoredFile

MIB = 1 << 20
LINES = CHUNK + 8  # of `content`
COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"


def settings_of(folder: Path, **changes: Any) -> ApiSettings:
    """Return the settings for `folder`, with `changes`."""
    defaults = {"disk": 64 * MIB, "file": MIB, "lines": 200, "line": 1 << 16, "parallel": 4}
    return ApiSettings(folder=str(folder), **{**defaults, **changes})


def line(number: int, body: Any, url: str = COMPLETIONS, **changes: Any) -> bytes:
    """Return a line of an input file."""
    values = {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body, **changes}
    return json.dumps(values).encode() + b"\n"


def content(url: str = COMPLETIONS) -> bytes:
    """Return an input file of LINES lines."""
    return b"".join(line(number, {"prompt": f"{number}"}, url) for number in range(LINES))


def parsed(text: bytes) -> list[dict[str, Any]]:
    """Return the JSON of each line."""
    return [json.loads(each) for each in text.splitlines()]


def begun(folder: Path, content: bytes, endpoint: str = COMPLETIONS, seconds: int = 3600, owner: str = "") -> Batch:
    """Create a batch for a file with `content`, in the folder of a process that does not run."""
    store = Store(folder, 64 * MIB)
    order = time.time_ns()
    store.content("file-input").write_bytes(content)
    store.add_file(StoredFile("file-input", owner, "in.jsonl", "batch", len(content), order))
    expires_at = order // 10**9 + seconds
    batch = Batch("batch_0123456789abcdef", owner, endpoint, "file-input", f"{seconds}s", expires_at, order)
    store.add_batch(batch)
    return batch


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a request with its body and the `status` in it; the creation time differs each time."""
    body, more = b"", scope["method"] == "POST"
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    asked = json.loads(body or b"{}")
    ids = dict(scope["headers"]).get(b"x-request-id", b"").decode()
    content = {"id": f"cmpl-{ids}", "created": time.time_ns(), "asked": asked}
    await send({"type": "http.response.start", "status": asked.get("status", 200), "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def work(settings: ApiSettings, store: Store | None = None, app: Any = echo) -> Store:
    """Process the batches of a folder until none is left; `app` answers in place of the front."""
    store = store or Store(Path(settings.folder), settings.disk)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        running = asyncio.create_task(Runner(settings, store, asyncio.Event(), client).run())
        try:
            while any(not batch.is_finished for batch in store.batches.values()):
                await asyncio.sleep(0.005)
        finally:
            running.cancel()
    return store


def results(folder: Path) -> dict[str, bytes]:
    """Return the contents of a batch's result files, by the ends of their names."""
    store = Store(folder, 64 * MIB)
    return {
        file.filename.rpartition("_")[2]: store.content(file.id).read_bytes()
        for file in store.files.values()
        if file.purpose == "batch_output"
    }
