"""Runs the batches: sends their lines to the front chunk by chunk, and publishes the answers as files.

Batches take turns, a chunk each. A line whose answer is not a 200 is sent a second time, alone and after the server has
reported that it is healthy, and the second answer counts: a line must not fail because Triton or the front was killed.
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
BUSY = (429, 503)  # statuses of a server that has not started work on the line
MOST_TRIES = 3  # of a line whose server dies each time
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0  # between two tries, doubled each time
BUSY_SECONDS = 30.0  # a line that waits longer for a busy server is reported in the batch's errors
MESSAGE_LENGTH = 500
NOTICE_SECONDS = 1.0  # within which `hfx serve` notices a dead process, and /health reports it
HEALTH_SECONDS = 60.0  # the longest wait for a healthy server; then the line is sent anyway
ANSWER_BYTES = 64 << 20
AHEAD = 2  # x `parallel` lines are in progress, or answered and in memory until the lines before them are
REQUEST_SECONDS = 600.0
SPACE_SECONDS = 5.0  # between two tries to write to a full disk
ENDING = ".jsonl"
OUTPUT, ERROR = b"+", b"-"  # the first byte of a part's line: the file that the rest of it goes to
UNANSWERED = {
    EXPIRED: "This line was not answered within the completion window.",
    CANCELLED: "The batch was cancelled before this line was answered.",
}


class Stopped(Exception):
    """The batch was cancelled, or its completion window is over."""


class Runner:
    """Runs the batches of `store`. `client` sends requests to the front's socket; `changed` ends a wait for batches."""

    def __init__(self, settings: ApiSettings, store: Store, changed: asyncio.Event, client: httpx.AsyncClient) -> None:
        self._settings, self._store, self._changed, self._client = settings, store, changed, client
        self._chunks: dict[str, list[Chunk]] = {}  # of each unfinished batch, by its id
        self._missing: dict[str, list[Chunk]] = {}  # those that have no part yet
        self._free = asyncio.Semaphore(settings.parallel)

    async def run(self) -> None:
        """Run batches until this task is cancelled."""
        while True:
            self._changed.clear()
            batches = [batch for batch in self._store.batches.values() if not batch.is_finished]
            for batch in sorted(batches, key=lambda batch: batch.order):
                await self._advance(batch.id)
            if not batches:
                await self._changed.wait()

    async def _advance(self, identity: str) -> None:
        """Do one step of a batch. A step that the disk refuses is tried again later; other errors end the batch."""
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
        self._store.change_in_memory(self._store.batches[identity], errors=[error.api_error(None)])
        await asyncio.sleep(SPACE_SECONDS)

    async def _fail(self, identity: str, message: str) -> None:
        errors = [LineError("server_error", message).api_error(None)]
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
        """Cut the input into chunks, and count the answers that an earlier process has written."""
        path = self._store.content(batch.input_file_id)
        chunks, errors = await asyncio.to_thread(cut, path, batch.endpoint, self._settings)
        batch = self._store.batches[batch.id]  # which may have changed meanwhile
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
        """The numbers of the existing parts, and how many answers and errors they hold. A damaged part is deleted."""
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
        """Get the answers to the lines of a chunk, and write them as a part."""
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
        self._store.change_in_memory(batch, completed=batch.completed + completed, failed=failed, errors=())

    async def _answers(self, batch: Batch, lines: Sequence[Line]) -> AsyncGenerator[bytes, None]:
        """The output lines for `lines`, in order. At most AHEAD x `parallel` of them are in memory."""
        waiting = iter(lines)
        tasks: deque[asyncio.Task[tuple[int, bytes]]] = deque()
        try:
            for line in lines:
                ahead = islice(waiting, AHEAD * self._settings.parallel - len(tasks))
                tasks.extend(asyncio.create_task(self._first_try(batch, later)) for later in ahead)
                status, answer = await tasks.popleft()
                if status != OK:
                    if tasks:
                        await asyncio.wait(tasks)
                    answer = await self._retry_alone(batch, line, status)
                yield answer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first_try(self, batch: Batch, line: Line) -> tuple[int, bytes]:
        """Send a line for the first time: the status of the answer, and the output line for it."""
        async with self._free:
            status, content = await self._send(batch, line)
        return status, _answer_line(batch, line, status, content)

    async def _retry_alone(self, batch: Batch, line: Line, status: int) -> bytes:
        """Send a line again while no other is in progress, as its first answer had a `status` other than 200."""
        for _ in range(MOST_TRIES):
            if not 0 < status < 500:  # a process may have died
                await asyncio.sleep(NOTICE_SECONDS)
            await self._await_health(batch)
            status, content = await self._send(batch, line)
            if 0 < status < 500:
                break
        return _answer_line(batch, line, status, content)

    async def _send(self, batch: Batch, line: Line) -> tuple[int, Any]:
        """Send a line until the server accepts it: the status and JSON of its answer; status 0: the connection broke.

        Raises Stopped when the batch is cancelled or expires.
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
                if time.monotonic() - began > BUSY_SECONDS:
                    self._show_busy(line, batch, response.status_code, content)
            except httpx.ConnectError:
                pass  # the front is being started again
            except (httpx.TransportError, TimeoutError):
                return 0, None
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    def _show_busy(self, line: Line, batch: Batch, status: int, content: Any) -> None:
        """Report in the batch's errors, until its chunk is done, that the server is busy."""
        reason = json.dumps(content)[:MESSAGE_LENGTH]
        message = f"The server does not take the line at present, and it is sent again. {status}: {reason}"
        errors = [LineError("server_busy", message).api_error(line.number)]
        self._store.change_in_memory(self._store.batches[batch.id], errors=errors)

    async def _await_health(self, batch: Batch) -> None:
        """Wait until the server reports that it is healthy, for HEALTH_SECONDS at most. Raises Stopped."""
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
        """Write the output and error files of a batch, then its final `status`."""
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
        """Join the parts, in order, into the output file and the error file; an empty file is deleted.

        Returns the numbers of answers and errors as changes of the batch.
        """
        targets = {kind: self._store.content(_file_id(batch, kind)) for kind in ("output", "error")}
        missing = {chunk.number for chunk in self._missing[batch.id]}
        with new_file(targets["output"]) as output, new_file(targets["error"]) as errors:
            counts = {OUTPUT: 0, ERROR: 0}
            for chunk in self._chunks[batch.id]:
                is_missing = chunk.number in missing
                lines = self._unanswered(batch, chunk, status) if is_missing else self._part(batch, chunk.number)
                for line in lines:
                    counts[line[:1]] += 1
                    (output if line.startswith(OUTPUT) else errors).write(line[1:])
        for path in targets.values():
            if not path.stat().st_size:
                path.unlink()
        return {"completed": counts[OUTPUT], "failed": counts[ERROR]}

    def _part(self, batch: Batch, number: int) -> list[bytes]:
        """The lines of a part. Raises ValueError for a damaged part."""
        path = self._store.parts(batch).part(number, ENDING)
        with storage(path), open_file(path) as file:
            check_sum(path, file)
            return file.readlines()

    def _unanswered(self, batch: Batch, chunk: Chunk, status: str) -> list[bytes]:
        """The error lines for a chunk that was not computed."""
        path = self._store.content(batch.input_file_id)
        error = {"code": f"batch_{status}", "message": UNANSWERED[status]}
        lines = read_chunk(path, chunk, batch.endpoint, self._settings)
        return [_output_line(ERROR, batch, line, None, error) for line in lines]


def _file_id(batch: Batch, kind: str) -> str:
    """The id of the `kind` of file of a batch, the same each time that it is written."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"


async def _json(response: httpx.Response) -> Any:
    """The JSON of an answer; None if it is not JSON, or larger than ANSWER_BYTES."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > ANSWER_BYTES:
            return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _answer_line(batch: Batch, line: Line, status: int, content: Any) -> bytes:
    """The output line for an answer, with OUTPUT or ERROR before it."""
    if not status or content is None:
        message = "The server did not answer this line in several tries." if not status else "The answer is not JSON."
        return _output_line(ERROR, batch, line, None, {"code": "server_error", "message": message})
    body = with_date(content, batch.created_at)
    response = {"status_code": status, "request_id": line.request_id(batch), "body": body}
    return _output_line(OUTPUT if status == OK else ERROR, batch, line, response, None)


def _output_line(mark: bytes, batch: Batch, line: Line, response: Any, error: Any) -> bytes:
    values = {"id": line.request_id(batch), "custom_id": line.custom_id, "response": response, "error": error}
    return mark + dumped(values) + b"\n"
