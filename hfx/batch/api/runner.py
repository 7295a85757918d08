"""Runs the batches: sends their lines to the front chunk by chunk, and publishes the answers as files.

The labels of API keys take turns. In each turn, one batch of the label sends one chunk. If the server does not accept a
line, because its model is busy or the key has used up its limits, the turn ends: the batch pauses, and later continues
after the lines that have been answered. A line whose answer is not a 200 is sent a second time, alone and after the
server has reported that it is healthy, and the second answer counts: a line must not fail because Triton or the front
was killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any

import httpx

from hfx.batch.api.answers import ERROR, OK, OUTPUT, answer_json, answer_line, output_line
from hfx.batch.api.lines import Chunk, Line, LineError, cut, read_chunk
from hfx.batch.api.progress import PAUSE_SECONDS, Busy, Progress, Stopped, TurnOver
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
from hfx.batch.folder import new_file, new_part, open_part
from hfx.errors import HfxError, StorageFull
from hfx.front.keys import LABEL_HEADER
from hfx.front.refusals import dumped
from hfx.front.response import log_line

BUSY = (429, 503)  # statuses which mean that the server has not started work on the line
MOST_TRIES = 3  # further tries of a line during which the server dies each time
BUSY_SECONDS = 30.0  # if no line is accepted for longer, the batch's errors say so
TURN_SECONDS = 5.0  # after this time, a chunk begins no further line while other labels have batches
MESSAGE_LENGTH = 500
NOTICE_SECONDS = 1.0  # within this time, `hfx serve` notices a dead process, and /health reports it
HEALTH_SECONDS = 60.0  # the longest wait for a healthy server; after it, the line is sent anyway
AHEAD = 2  # times `parallel`: lines in progress, or answered and in memory until all earlier lines are answered
REQUEST_SECONDS = 600.0
SPACE_SECONDS = 5.0  # between two tries to write to a full disk
ENDING = ".jsonl"
UNANSWERED = {
    EXPIRED: "This line was not answered within the completion window.",
    CANCELLED: "The batch was cancelled before this line was answered.",
}


class Runner:
    """Runs the batches of `store`. `client` sends requests to the front's socket; `changed` ends a wait for batches."""

    def __init__(self, settings: ApiSettings, store: Store, changed: asyncio.Event, client: httpx.AsyncClient) -> None:
        self._settings, self._store, self._changed, self._client = settings, store, changed, client
        self._progress: dict[str, Progress] = {}  # unfinished batches, by id
        self._last: dict[str, int] = {}  # label -> `order` of the batch that had the label's last turn
        self._free = asyncio.Semaphore(settings.parallel)

    async def run(self) -> None:
        """Run batches until this task is cancelled."""
        while True:
            self._changed.clear()
            batches = [batch for batch in self._store.batches.values() if not batch.is_finished]
            due = [batch for batch in batches if self._due(batch) <= time.monotonic()]
            for label in {batch.owner: None for batch in sorted(due, key=lambda batch: batch.order)}:
                await self._advance(self._next(label, due).id)
            if not due:
                wait = min(map(self._due, batches), default=math.inf) - time.monotonic()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), None if wait == math.inf else max(wait, 0.0))

    def _due(self, batch: Batch) -> float:
        """The time.monotonic() at which the batch continues; 0 for a batch that is not planned, or not in progress."""
        progress = self._progress.get(batch.id)
        if progress is None or batch.status != IN_PROGRESS:
            return 0.0
        return min(progress.due, time.monotonic() + batch.expires_at - time.time())

    def _next(self, label: str, due: Sequence[Batch]) -> Batch:
        """Return the batch of `label` whose turn it is. The batches that are due take turns."""
        batches = sorted((batch for batch in due if batch.owner == label), key=lambda batch: batch.order)
        last = self._last.get(label, 0)
        batch = next((batch for batch in batches if batch.order > last), batches[0])
        self._last[label] = batch.order
        return batch

    def _others_wait(self, batch: Batch) -> bool:
        """Return whether another label has a batch that is due."""
        others = (each for each in self._store.batches.values() if each.owner != batch.owner and not each.is_finished)
        return any(self._due(each) <= time.monotonic() for each in others)

    async def _advance(self, identity: str) -> None:
        """Do one step of a batch. A step that fails because of the disk is tried again; other errors end the batch."""
        try:
            await self._step(self._store.batches[identity])
        except StorageFull as full:
            await self._wait_for_disk(identity, "storage_full", no_room(full)[0])
        except HfxError as failure:
            log_line(failure.message)  # the message has a path, which callers must not see
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
        if batch.id not in self._progress:
            batch = await self._plan(batch)
        if batch.status == VALIDATING:
            self._store.change(batch, IN_PROGRESS)
        elif batch.status == CANCELLING:
            await self._publish(batch, CANCELLED)
        elif batch.status == FINALIZING:
            await self._publish(batch, COMPLETED)
        elif batch.status == IN_PROGRESS and self._is_over(batch):
            await self._publish(batch, EXPIRED)
        elif batch.status == IN_PROGRESS and self._progress[batch.id].missing:
            await self._score(batch, self._progress[batch.id])
        elif batch.status == IN_PROGRESS:
            self._store.change(batch, FINALIZING)

    async def _plan(self, batch: Batch) -> Batch:
        """Cut the input into chunks, and count the answers that an earlier process has written."""
        path = self._store.content(batch.input_file_id)
        chunks, errors = await asyncio.to_thread(cut, path, batch.endpoint, self._settings)
        batch = self._store.batches[batch.id]  # it may have changed meanwhile
        if errors:
            return self._store.change(batch, FAILED, errors=errors)
        done, completed, failed = await asyncio.to_thread(self._count, batch)
        self._progress[batch.id] = Progress(chunks, [chunk for chunk in chunks if chunk.number not in done])
        batch = self._store.batches[batch.id]
        return self._store.change(
            batch, completed=completed, failed=failed, total=sum(chunk.requests for chunk in chunks)
        )

    def _count(self, batch: Batch) -> tuple[set[int], int, int]:
        """Return the numbers of the existing parts, and how many answers and errors they hold. Delete damaged parts."""
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

    async def _score(self, batch: Batch, progress: Progress) -> None:
        """Obtain the answers to the lines of the next chunk, and write them as a part."""
        path, chunk = self._store.content(batch.input_file_id), progress.missing[0]
        lines = await asyncio.to_thread(read_chunk, path, chunk, batch.endpoint, self._settings)
        size = completed = 0
        try:
            with new_part(self._store.parts(batch).part(chunk.number, ENDING)) as file:
                async with aclosing(self._answers(batch, progress, lines)) as answers:
                    async for answer in answers:
                        self._store.reserve(len(answer))
                        size, completed = size + len(answer), completed + answer.startswith(OUTPUT)
                        file.write(answer)
                await asyncio.to_thread(sync, file)
        except BaseException as error:
            self._store.reserve(-size)
            if isinstance(error, TurnOver):
                self._interrupt(batch, progress, error)
            elif not isinstance(error, Stopped):
                raise
            return
        progress.finish(chunk)
        batch = self._store.batches[batch.id]
        failed = batch.failed + len(lines) - completed
        self._store.change_in_memory(batch, completed=batch.completed + completed, failed=failed, errors=())

    def _interrupt(self, batch: Batch, progress: Progress, over: TurnOver) -> None:
        """Record the end of a turn. If the server has been busy for long, report that until the chunk is done."""
        if not isinstance(over, Busy):
            return
        progress.pause(over.pause)
        if time.monotonic() - progress.since > BUSY_SECONDS:
            message = f"The server does not take the line at present, and it is sent again. {over.reason}"
            errors = [LineError("server_busy", message).api_error(over.line.number)]
            self._store.change_in_memory(self._store.batches[batch.id], errors=errors)

    async def _answers(self, batch: Batch, progress: Progress, lines: Sequence[Line]) -> AsyncGenerator[bytes, None]:
        """Yield the output lines for `lines`, in order. At most AHEAD x `parallel` of the lines are in progress.

        Raises TurnOver.
        """
        began = time.monotonic()
        waiting = iter([line for line in lines if line.number not in progress.answers])
        tasks: deque[tuple[Line, asyncio.Task[tuple[int, bytes]]]] = deque()
        try:
            for line in lines:
                if line.number in progress.answers:
                    yield progress.answers[line.number]
                    continue
                is_late = time.monotonic() - began > TURN_SECONDS
                is_over = is_late and not progress.is_full and self._others_wait(batch)
                if is_over and not tasks:
                    raise TurnOver
                ahead = islice(waiting, 0 if is_over else AHEAD * self._settings.parallel - len(tasks))
                tasks.extend((later, asyncio.create_task(self._first_try(batch, progress, later))) for later in ahead)
                status, answer = await tasks.popleft()[1]
                if status != OK:
                    if tasks:
                        await asyncio.wait([task for _, task in tasks])
                    answer = await self._retry_alone(batch, progress, line, status)
                progress.keep(line.number, answer)
                yield answer
        except Busy:
            await _settle(progress, tasks)
            raise
        finally:
            for _, task in tasks:
                task.cancel()
            await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)

    async def _first_try(self, batch: Batch, progress: Progress, line: Line) -> tuple[int, bytes]:
        """Send a line for the first time, and return the status of the answer and the output line for it.

        A line whose answer in an earlier turn was not a 200 is not sent: its status is 0.
        """
        if line.number in progress.tries:
            return 0, b""
        async with self._free:
            status, content = await self._send(batch, line)
        return status, answer_line(batch, line, status, content)

    async def _retry_alone(self, batch: Batch, progress: Progress, line: Line, status: int) -> bytes:
        """Send a line again while no other line is in progress. The `status` of its first answer was not 200."""
        content = None
        progress.tries.setdefault(line.number, 0)
        while progress.tries[line.number] < MOST_TRIES:
            if not 0 < status < 500:  # a process of the server may have died
                await asyncio.sleep(NOTICE_SECONDS)
            await self._await_health(batch)
            status, content = await self._send(batch, line)
            progress.tries[line.number] += 1
            if 0 < status < 500:
                break
        return answer_line(batch, line, status, content)

    async def _send(self, batch: Batch, line: Line) -> tuple[int, Any]:
        """Send a line, and return the status and the JSON of its answer. The status 0 means that the connection broke.

        Raises Busy if the server does not accept the line, and Stopped if the batch is cancelled or expires.
        """
        if self._is_over(batch) or self._store.batches[batch.id].status != IN_PROGRESS:
            raise Stopped
        headers = {"content-type": "application/json", "x-request-id": line.request_id(batch)}
        headers[LABEL_HEADER.decode()] = batch.owner
        body = dumped(line.content(batch))
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                async with self._client.stream("POST", batch.endpoint, content=body, headers=headers) as response:
                    content = await answer_json(response)
        except httpx.ConnectError:
            raise Busy(line, 0.0, "The HTTP port is being started again.") from None
        except (httpx.TransportError, TimeoutError):
            return 0, None
        if response.status_code not in BUSY:
            return response.status_code, content
        after = response.headers.get("retry-after", "")
        reason = f"{response.status_code}: {json.dumps(content)[:MESSAGE_LENGTH]}"
        raise Busy(line, float(after) if after.isdigit() else 0.0, reason)

    async def _await_health(self, batch: Batch) -> None:
        """Wait until the server reports that it is healthy, for at most HEALTH_SECONDS. Raises Stopped."""
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
        """Write the output and error files of a batch, and then its final `status`."""
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
        self._progress.pop(batch.id, None)
        self._store.change(self._store.batches[batch.id], status, errors=(), **changes)

    def _join(self, batch: Batch, status: str) -> dict[str, Any]:
        """Join the parts, in order, into the output file and the error file. Delete a file that is empty.

        Returns the numbers of answers and errors, as changes for the batch's record.
        """
        targets = {kind: self._store.content(_file_id(batch, kind)) for kind in ("output", "error")}
        missing = {chunk.number for chunk in self._progress[batch.id].missing}
        with new_file(targets["output"]) as output, new_file(targets["error"]) as errors:
            counts = {OUTPUT: 0, ERROR: 0}
            for chunk in self._progress[batch.id].chunks:
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
        with open_part(self._store.parts(batch).part(number, ENDING)) as file:
            return file.readlines()

    def _unanswered(self, batch: Batch, chunk: Chunk, status: str) -> list[bytes]:
        """The error lines for a chunk that was not computed."""
        path = self._store.content(batch.input_file_id)
        error = {"code": f"batch_{status}", "message": UNANSWERED[status]}
        lines = read_chunk(path, chunk, batch.endpoint, self._settings)
        return [output_line(ERROR, batch, line, None, error) for line in lines]


def _file_id(batch: Batch, kind: str) -> str:
    """Return the id of the `kind` of file of a batch. The id is the same each time the file is written."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"


async def _settle(progress: Progress, tasks: Iterable[tuple[Line, asyncio.Task[tuple[int, bytes]]]]) -> None:
    """Wait for the lines in progress, and keep their answers with the status 200. Exceptions stay in their tasks."""
    for line, task in tasks:
        await asyncio.wait([task])
        if task.exception() is None and task.result()[0] == OK:
            progress.keep(line.number, task.result()[1])
