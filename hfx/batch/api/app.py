"""The ASGI application for /v1/files and /v1/batches. The front has already checked the caller's API key."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from hfx.batch.api.lines import is_endpoint
from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import CANCELLING, UNFINISHED, Batch, Store, StoredFile, no_room, sync
from hfx.batch.api.uploads import Form
from hfx.batch.folder import new_file, storage
from hfx.errors import HfxError, StorageFull
from hfx.front.dialect import parsed
from hfx.front.fields import json_object, refuse_unknown, text
from hfx.front.guard import Disconnected, Receive, check_json, read_body
from hfx.front.keys import LABEL_HEADER
from hfx.front.refusals import Refusal, dumped, json_head, wrong_method
from hfx.front.response import Send, log_line

BATCH, OUTPUT = "batch", "batch_output"  # purposes
REQUIRED = ("input_file_id", "endpoint", "completion_window")  # fields of a new batch
BODY_BYTES = 1 << 16  # the largest body of a request that is not an upload
PIECE_BYTES = 1 << 18
QUERY_FIELDS = 100
WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_SECONDS = 30 * 86_400
PAIRS, KEY_LENGTH, VALUE_LENGTH = 16, 64, 512  # limits of metadata: pairs, and characters of names and values
FILES_LIMIT, BATCHES_LIMIT = (10_000, 10_000), (100, 20)  # records per page: (maximum, default)
NO_ROOM = 507
PATH = re.compile(r"/v1/(files|batches)(?:/([A-Za-z0-9_-]+)(?:/(content|cancel))?)?")
Record = TypeVar("Record", StoredFile, Batch)


@dataclass(frozen=True)
class Request:
    """A request for the file or batch `id` (empty: the list). `owner` is the label of the caller's API key."""

    owner: str
    id: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    receive: Receive


class Api:
    """The routes. `store` holds files and batches; `changed` wakes the runner after a batch is added or cancelled."""

    def __init__(self, settings: ApiSettings, store: Store, changed: asyncio.Event) -> None:
        self._settings, self._store, self._changed = settings, store, changed
        self._handlers: dict[tuple[str, ...], Callable[[Request], Any]] = {
            ("POST", "files", ""): self._upload,
            ("GET", "files", ""): self._list_files,
            ("GET", "files", "ID"): lambda request: self._file(request).api_object(),
            ("DELETE", "files", "ID"): self._delete_file,
            ("GET", "files", "content"): lambda request: store.content(self._file(request).id),
            ("POST", "batches", ""): self._create,
            ("GET", "batches", ""): lambda request: _page(request, store.batches.values(), BATCHES_LIMIT),
            ("GET", "batches", "ID"): lambda request: self._batch(request).api_object(),
            ("POST", "batches", "cancel"): self._cancel,
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            answer = await self._answer(scope, receive)
            await (_send_file(send, answer) if isinstance(answer, Path) else _send(send, 200, answer))
        except Disconnected:
            return
        except Refusal as refusal:
            await _send(send, *error(refusal))
        except StorageFull as full:
            await _send(send, *error(Refusal(NO_ROOM, " ".join(no_room(full)), reason="storage_full")))
        except HfxError as failure:
            log_line(failure.message)  # the message has a path, which callers must not see
            await _send(send, *error(Refusal(500, "The server can't read or write its files. Its own lines say why.")))

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> Any:
        found = PATH.fullmatch(scope["path"])
        kind, identity, part = (found[1], found[2] or "", found[3] or "") if found else ("", "", "")
        part = part or ("ID" if identity else "")
        methods = [method for method, *rest in self._handlers if rest == [kind, part]]
        if not methods:
            raise Refusal(404, "There is nothing at this path.", reason="unknown_url")
        if scope["method"] not in methods:
            raise wrong_method(methods)
        headers = dict(scope["headers"])
        label = headers.get(LABEL_HEADER, b"").decode()
        try:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=QUERY_FIELDS))
        except ValueError:
            raise Refusal(400, f"The URL has more than {QUERY_FIELDS} parameters.") from None
        answer = self._handlers[scope["method"], kind, part](Request(label, identity, query, headers, receive))
        return await answer if isawaitable(answer) else answer

    # Files

    async def _upload(self, request: Request) -> Any:
        identity, order = f"file-{secrets.token_hex(12)}", time.time_ns()
        size = 0

        def write(data: bytes) -> None:
            nonlocal size
            if size + len(data) > self._settings.file:
                raise Refusal(413, f"The file is larger than {self._settings.file} bytes.", param="file")
            self._store.reserve(len(data))
            size += len(data)
            file.write(data)

        form = Form(request.headers, write)
        try:
            with new_file(self._store.content(identity)) as file:
                async for piece in _pieces(request.receive):
                    form.feed(piece)
                form.finish()
                if form.fields.get("purpose") != BATCH:
                    raise Refusal(400, f"purpose is not {BATCH}, the only one that is served here.", param="purpose")
                refuse_unknown(form.fields, ("purpose",))
                await asyncio.to_thread(sync, file)
            stored = StoredFile(identity, request.owner, form.filename, BATCH, size, order)
            self._store.add_file(stored)
        except BaseException:
            with suppress(OSError):  # the disk may be too full for the file's record
                self._store.content(identity).unlink(missing_ok=True)
            self._store.reserve(-size)
            raise
        return stored.api_object()

    def _list_files(self, request: Request) -> Any:
        purpose = request.query.get("purpose")
        chosen = (file for file in self._store.files.values() if purpose in (None, file.purpose))
        return _page(request, chosen, FILES_LIMIT, ("purpose",))

    def _delete_file(self, request: Request) -> Any:
        file = self._file(request)
        if any(batch.input_file_id == file.id for batch in self._store.batches.values() if not batch.is_finished):
            message = "The file is the input of a batch that is in progress. Cancel the batch, or wait for its end."
            raise Refusal(409, message, reason="file_in_use")
        self._store.delete_file(file)
        return {"id": file.id, "object": "file", "deleted": True}

    def _file(self, request: Request) -> StoredFile:
        return _own(self._store.files, request.owner, request.id, "file", "id")

    # Batches

    async def _create(self, request: Request) -> Any:
        body = await read_body(request.receive, request.headers, BODY_BYTES, lambda size: None)
        check_json(body)
        fields = json_object(parsed(body))
        refuse_unknown(fields, (*REQUIRED, "metadata"))
        identity, endpoint, window = (text(fields.get(name), name) for name in REQUIRED)
        if not is_endpoint(endpoint):
            message = (
                "endpoint is not a path that batches are for: /v1/chat/completions, /v1/completions, /v1/embeddings"
            )
            raise Refusal(400, f"{message}, /rerank, /predict and others of docs/batch-api.md.", param="endpoint")
        file = _own(self._store.files, request.owner, identity, "file", "input_file_id")
        if file.purpose != BATCH:
            raise Refusal(400, f"The purpose of {file.id} is not {BATCH}.", param="input_file_id")
        order = time.time_ns()
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            owner=request.owner,
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=window,
            expires_at=order // 10**9 + _seconds(window),
            order=order,
            metadata=_metadata(fields.get("metadata")),
        )
        self._store.add_batch(batch)
        self._changed.set()
        return batch.api_object()

    async def _cancel(self, request: Request) -> Any:
        await read_body(request.receive, {}, BODY_BYTES, lambda size: None)
        batch = self._batch(request)
        if batch.status not in UNFINISHED:
            raise Refusal(409, f"The batch is {batch.status}, and can't be cancelled.", reason="batch_finished")
        if batch.status != CANCELLING:
            batch = self._store.change(batch, CANCELLING)
            self._changed.set()
        return batch.api_object()

    def _batch(self, request: Request) -> Batch:
        return _own(self._store.batches, request.owner, request.id, "batch", "id")


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body of a refusal, as OpenAI's API has them."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    shape = {"message": refusal.message, "type": kind, "param": refusal.param or None, "code": refusal.reason or None}
    return refusal.status, {"error": shape}


def _own(records: Mapping[str, Record], owner: str, identity: str, kind: str, param: str) -> Record:
    """Return the record `identity` of `owner`. Raises Refusal (404), also for a record of another owner."""
    record = records.get(identity)
    if record is None or record.owner != owner:
        raise Refusal(404, f"There is no {kind} {identity[:100]!r}.", param=param, reason=f"{kind}_not_found")
    return record


def _page(request: Request, records: Iterable[Record], limits: tuple[int, int], filters: tuple[str, ...] = ()) -> Any:
    """Return the page of the owner's `records` that the query's `after`, `limit` and `order` select.

    `limits` are the largest and the default `limit`; `filters` are further query parameters that the list accepts.
    Raises Refusal (400).
    """
    most, default = limits
    if unknown := next((name for name in request.query if name not in ("after", "limit", "order", *filters)), None):
        raise Refusal(400, f"{unknown[:100]} is not a parameter of this list.", param=unknown)
    limit, direction = request.query.get("limit", str(default)), request.query.get("order", "desc")
    if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= most:
        raise Refusal(400, f"limit is not a number from 1 to {most}.", param="limit")
    if direction not in ("asc", "desc"):
        raise Refusal(400, "order is neither asc nor desc.", param="order")
    own = [record for record in records if record.owner == request.owner]
    own.sort(key=lambda record: (record.order, record.id), reverse=direction == "desc")
    if after := request.query.get("after"):
        place = next((place for place, record in enumerate(own) if record.id == after), None)
        if place is None:
            raise Refusal(400, "after names nothing of this list.", param="after")
        own = own[place + 1 :]
    data = [record.api_object() for record in own[: int(limit)]]
    ids = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ids, "has_more": len(own) > len(data)}


def _seconds(window: str) -> int:
    """Return the seconds of a completion_window such as "24h". Raises Refusal (400)."""
    found = WINDOW.fullmatch(window)
    seconds = int(found[1]) * SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MOST_SECONDS:
        message = "completion_window is not a time such as 24h: a number of s, m, h or d, of up to 30 days."
        raise Refusal(400, message, param="completion_window")
    return seconds


def _metadata(value: Any) -> dict[str, str] | None:
    """Return the metadata of a batch after checking it. Raises Refusal (400)."""
    if value is None:
        return None
    is_valid = isinstance(value, dict) and len(value) <= PAIRS
    if not is_valid or any(
        len(name) > KEY_LENGTH or not isinstance(text, str) or len(text) > VALUE_LENGTH for name, text in value.items()
    ):
        message = f"metadata is not up to {PAIRS} texts of {VALUE_LENGTH} characters, with names of {KEY_LENGTH}."
        raise Refusal(400, message, param="metadata")
    return dict(value)


async def _pieces(receive: Receive) -> Any:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more = message["more_body"]
        yield message["body"]


async def _send(send: Send, status: int, content: Any) -> None:
    body = dumped(content)
    await send({"type": "http.response.start", "status": status, "headers": json_head(body)})
    await send({"type": "http.response.body", "body": body})


async def _send_file(send: Send, path: Path) -> None:
    """Stream a file. A file that is deleted during the transfer is still sent to its end."""
    with storage(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece := file.read(PIECE_BYTES):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
