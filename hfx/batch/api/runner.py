"""Works on the batches: their lines are sent to the front chunk by chunk, and their answers published as files.

Of several batches each has a chunk in turn. An answer that is not a 200 counts when it came twice, the second time to
the line alone and from a server that says it is healthy: what a kill of Triton or the front breaks is sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any

import httpx

from hfx.batch.api.lines import Chunk, Line, LineError, cut, read_chunk, with_date
from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    Batch,
    Store,
    StoredFile,
    no_room,
    sync,
)
from hfx.batch.folder import check_sum, new_file, new_part, open_file, storage
from hfx.errors import HfxError, StorageFull
from hfx.front.keys import LABEL_HEADER
from hfx.front.refusals import dumped
from hfx.front.response import log_line

OK = 200
BUSY = (429, 503)  # the server says that it has not worked on the line
MOST_TRIES = 3  # of a line that ends its server each time
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0  # between two tries: doubled
SHOWN_SECONDS = 30.0  # after which a batch says why a line waits
MESSAGE_LENGTH = 500
NOTICE_SECONDS = 1.0  # in which `hfx serve` notices that a process has died: /health says so from then on
HEALTH_SECONDS = 60.0  # after which a line is sent to a server that is not healthy
ANSWER_BYTES = 64 << 20
AHEAD = 2  # lines that are in progress, or wait in memory for those before them, for each that may be in progress
REQUEST_SECONDS = 600.0
SPACE_SECONDS = 5.0  # between two tries to write what there was no room for
OUTPUT, ENDING = b"+", ".jsonl"  # how the lines of a part begin that go into the output; others are errors
ERROR = b"-"
UNDONE = {
    EXPIRED: "This line was not answered within the completion window.",
    CANCELLED: "The batch was cancelled before this line was answered.",
}


class Stopped(Exception):
    """The batch has been cancelled, or its time is over."""


class Runner:
    """Works on the batches of `store` through `client`, at the front's socket; woken by `changed`."""

    def __init__(self, settings: ApiSettings, store: Store, changed: asyncio.Event, client: httpx.AsyncClient) -> None:
        self._settings, self._store, self._changed, self._client = settings, store, changed, client
        self._chunks: dict[str, list[Chunk]] = {}  # of the batches that are not finished
        self._missing: dict[str, list[Chunk]] = {}  # those without a part
        self._free = asyncio.Semaphore(settings.parallel)

    async def run(self) -> None:
        """Work until this is cancelled."""
        while True:
            self._changed.clear()
            batches = [batch for batch in self._store.batches.values() if not batch.is_finished]
            for batch in sorted(batches, key=lambda batch: batch.order):
                await self._advance(batch.id)
            if not batches:
                await self._changed.wait()

    async def _advance(self, identity: str) -> None:
        """One step of a batch; what the disk refuses is done later, all else that is not expected ends the batch."""
        try:
            await self._step(self._store.batches[identity])
        except StorageFull as full:
            await self._wait_for_disk(identity, "storage_full", no_room(full)[0])
        except HfxError as failure:
            log_line(failure.message)  # with a path, which is not for callers
            if isinstance(failure.__cause__, FileNotFoundError):
                await self._fail(identity, "A file of the batch is not there any more.")
            else:
                await self._wait_for_disk(identity, "storage_error", "The server can't read or write its files.")
        except Exception as error:
            traceback.print_exc()
            await self._fail(identity, str(error))

    async def _wait_for_disk(self, identity: str, code: str, message: str) -> None:
        error = LineError(code, f"{message} The batch goes on when it can.")
        self._store.show(self._store.batches[identity], errors=[error.shown(None)])
        await asyncio.sleep(SPACE_SECONDS)

    async def _fail(self, identity: str, message: str) -> None:
        errors = [LineError("server_error", message).shown(None)]
        with suppress(HfxError):
            self._store.change(self._store.batches[identity], FAILED, errors=errors)
        await asyncio.sleep(PAUSE_SECONDS)

    async def _step(self, batch: Batch) -> None:
        if batch.id not in self._chunks:
            batch = await self._plan(batch)
        if batch.status == VALIDATING:
            self._store.change(batch, IN_PROGRESS)
        elif batch.status == CANCELLING:
            await self._publish(batch, CANCELLED)
        elif batch.status == FINALIZING:
            await self._publish(batch, COMPLETED)
        elif batch.status == IN_PROGRESS and self._is_over(batch):
            await self._publish(batch, EXPIRED)
        elif batch.status == IN_PROGRESS and self._missing[batch.id]:
            await self._score(batch, self._missing[batch.id][0])
        elif batch.status == IN_PROGRESS:
            self._store.change(batch, FINALIZING)

    async def _plan(self, batch: Batch) -> Batch:
        """Cut the input into chunks; of a batch that was begun before, count the answers that there are."""
        path = self._store.content(batch.input_file_id)
        chunks, errors = await asyncio.to_thread(cut, path, batch.endpoint, self._settings)
        batch = self._store.batches[batch.id]  # as it is by now
        if errors:
            return self._store.change(batch, FAILED, errors=errors)
        done, completed, failed = await asyncio.to_thread(self._count, batch)
        self._chunks[batch.id] = chunks
        self._missing[batch.id] = [chunk for chunk in chunks if chunk.number not in done]
        batch = self._store.batches[batch.id]
        return self._store.change(
            batch, completed=completed, failed=failed, total=sum(chunk.requests for chunk in chunks)
        )

    def _count(self, batch: Batch) -> tuple[set[int], int, int]:
        """The numbers of the parts, and the answers and errors in them; a damaged one is deleted."""
        folder, done = self._store.parts(batch), set()
        completed = failed = 0
        for number in sorted(folder.done()):
            try:
                lines = self._part(batch, number)
            except ValueError:
                folder.part(number, ENDING).unlink()
                continue
            done.add(number)
            answered = sum(line.startswith(OUTPUT) for line in lines)
            completed, failed = completed + answered, failed + len(lines) - answered
        return done, completed, failed

    # Lines

    async def _score(self, batch: Batch, chunk: Chunk) -> None:
        """Answer the lines of a chunk, and write them as a part."""
        path = self._store.content(batch.input_file_id)
        lines = await asyncio.to_thread(read_chunk, path, chunk, batch.endpoint, self._settings)
        size = completed = 0
        try:
            with new_part(self._store.parts(batch).part(chunk.number, ENDING)) as file:
                async with aclosing(self._answers(batch, lines)) as answers:
                    async for answer in answers:
                        self._store.reserve(len(answer))
                        size, completed = size + len(answer), completed + answer.startswith(OUTPUT)
                        file.write(answer)
                await asyncio.to_thread(sync, file)
        except BaseException as error:
            self._store.reserve(-size)
            if isinstance(error, Stopped):
                return
            raise
        self._missing[batch.id].remove(chunk)
        batch = self._store.batches[batch.id]
        failed = batch.failed + len(lines) - completed
        self._store.show(batch, completed=batch.completed + completed, failed=failed, errors=())

    async def _answers(self, batch: Batch, lines: Sequence[Line]) -> AsyncGenerator[bytes, None]:
        """The answers of lines, in order; few of them are in memory."""
        waiting = iter(lines)
        tasks: deque[asyncio.Task[tuple[int, bytes]]] = deque()
        try:
            for line in lines:
                ahead = islice(waiting, AHEAD * self._settings.parallel - len(tasks))
                tasks.extend(asyncio.create_task(self._first(batch, each)) for each in ahead)
                status, answer = await tasks.popleft()
                if status != OK:
                    if tasks:
                        await asyncio.wait(tasks)
                    answer = await self._alone(batch, line, status)
                yield answer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, batch: Batch, line: Line) -> tuple[int, bytes]:
        """The status of the first answer to a line, and the line of the output for it."""
        async with self._free:
            status, content = await self._sent(batch, line)
        return status, _answered(batch, line, status, content)

    async def _alone(self, batch: Batch, line: Line, status: int) -> bytes:
        """The answer of a line whose first one had another `status` than 200."""
        for _ in range(MOST_TRIES):
            if not 0 < status < 500:  # a process may have died, which is noticed within that time
                await asyncio.sleep(NOTICE_SECONDS)
            await self._await_health(batch)
            status, content = await self._sent(batch, line)
            if 0 < status < 500:
                break
        return _answered(batch, line, status, content)

    async def _sent(self, batch: Batch, line: Line) -> tuple[int, Any]:
        """The status and JSON of the answer to a line, sent until the server takes it; 0: it ended meanwhile.

        Raises Stopped.
        """
        headers = {"content-type": "application/json", "x-request-id": line.request_id(batch)}
        headers[LABEL_HEADER.decode()] = batch.owner
        body, pause, began = dumped(line.content(batch)), PAUSE_SECONDS, time.monotonic()
        while True:
            if self._is_over(batch) or self._store.batches[batch.id].status != IN_PROGRESS:
                raise Stopped
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    async with self._client.stream("POST", batch.endpoint, content=body, headers=headers) as response:
                        content = await _json(response)
                if response.status_code not in BUSY:
                    return response.status_code, content
                if time.monotonic() - began > SHOWN_SECONDS:
                    self._show_busy(line, batch, response.status_code, content)
            except httpx.ConnectError:
                pass  # the front is being started again
            except (httpx.TransportError, TimeoutError):
                return 0, None
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    def _show_busy(self, line: Line, batch: Batch, status: int, content: Any) -> None:
        """Have the batch say why a line waits, until its chunk is done."""
        reason = json.dumps(content)[:MESSAGE_LENGTH]
        message = f"The server does not take the line at present, and it is sent again. {status}: {reason}"
        self._store.show(self._store.batches[batch.id], errors=[LineError("server_busy", message).shown(line.number)])

    async def _await_health(self, batch: Batch) -> None:
        """Return when the server says that it is healthy, or has not for long. Raises Stopped."""
        deadline = time.monotonic() + HEALTH_SECONDS
        while time.monotonic() < deadline:
            if self._is_over(batch) or self._store.batches[batch.id].status != IN_PROGRESS:
                raise Stopped
            with suppress(httpx.TransportError):
                if (await self._client.get("/health")).status_code == OK:
                    return
            await asyncio.sleep(PAUSE_SECONDS)

    @staticmethod
    def _is_over(batch: Batch) -> bool:
        return time.time() >= batch.expires_at

    # Files

    async def _publish(self, batch: Batch, status: str) -> None:
        """Write the files of a batch, which then has the final `status`."""
        size = sum(path.stat().st_size for path in self._store.parts(batch).parts.glob(f"[!.]*{ENDING}"))
        self._store.reserve(size)
        try:
            changes = await asyncio.to_thread(self._join, batch, status)
        finally:
            self._store.reserve(-size)
        for name, kind in (("output_file_id", "output"), ("error_file_id", "error")):
            identity = _file_id(batch, kind)
            path = self._store.content(identity)
            if not path.exists():
                continue
            length = path.stat().st_size
            filename = f"{batch.id}_{kind}{ENDING}"
            file = StoredFile(identity, batch.owner, filename, "batch_output", length, time.time_ns())
            self._store.add_file(file, length)
            changes[name] = identity
        self._chunks.pop(batch.id, None)
        self._missing.pop(batch.id, None)
        self._store.change(self._store.batches[batch.id], status, errors=(), **changes)

    def _join(self, batch: Batch, status: str) -> dict[str, Any]:
        """Copy the parts, in order, into the files of the output and of errors; an empty one is none."""
        targets = {kind: self._store.content(_file_id(batch, kind)) for kind in ("output", "error")}
        missing = {chunk.number for chunk in self._missing[batch.id]}
        with new_file(targets["output"]) as output, new_file(targets["error"]) as errors:
            counts = {OUTPUT: 0, ERROR: 0}
            for chunk in self._chunks[batch.id]:
                is_missing = chunk.number in missing
                lines = self._undone(batch, chunk, status) if is_missing else self._part(batch, chunk.number)
                for line in lines:
                    counts[line[:1]] += 1
                    (output if line.startswith(OUTPUT) else errors).write(line[1:])
        for path in targets.values():
            if not path.stat().st_size:
                path.unlink()
        return {"completed": counts[OUTPUT], "failed": counts[ERROR]}

    def _part(self, batch: Batch, number: int) -> list[bytes]:
        """The lines of a part. Raises ValueError for one that is not as it was written."""
        path = self._store.parts(batch).part(number, ENDING)
        with storage(path), open_file(path) as file:
            check_sum(path, file)
            return file.readlines()

    def _undone(self, batch: Batch, chunk: Chunk, status: str) -> list[bytes]:
        """The lines of a chunk that was not computed, as errors."""
        path = self._store.content(batch.input_file_id)
        error = {"code": f"batch_{status}", "message": UNDONE[status]}
        lines = read_chunk(path, chunk, batch.endpoint, self._settings)
        return [_line(ERROR, batch, line, None, error) for line in lines]


def _file_id(batch: Batch, kind: str) -> str:
    """The id of a file of a batch: the same when it is written again."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"


async def _json(response: httpx.Response) -> Any:
    """The content of an answer; None where it is no JSON, or has more than ANSWER_BYTES."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > ANSWER_BYTES:
            return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _answered(batch: Batch, line: Line, status: int, content: Any) -> bytes:
    """The line of an answer, with its mark."""
    if not status or content is None:
        message = (
            "The server has not answered this line, and was asked several times."
            if not status
            else "The answer is not JSON."
        )
        return _line(ERROR, batch, line, None, {"code": "server_error", "message": message})
    body = with_date(content, batch.created_at)
    response = {"status_code": status, "request_id": line.request_id(batch), "body": body}
    return _line(OUTPUT if status == OK else ERROR, batch, line, response, None)


def _line(mark: bytes, batch: Batch, line: Line, response: Any, error: Any) -> bytes:
    values = {"id": line.request_id(batch), "custom_id": line.custom_id, "response": response, "error": error}
    return mark + dumped(values) + b"\n"
