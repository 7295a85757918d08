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
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from hfx.batch.api.lines import ERROR, OK, OUTPUT, Line, LineError, cut, read_chunk
from hfx.batch.api.progress import PAUSE_SECONDS, Busy, Progress, TurnOver
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
)
from hfx.batch.folder import Folder, new_file, new_part, open_part, storage
from hfx.batch.plan import Plan, PlannedChunk, count_rows, read_plan, write_plan
from hfx.errors import HfxError, InputChanged, JobError, StorageFull
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
REQUEST_SECONDS = 600.0
SPACE_SECONDS = 5.0  # between two tries to write to a full disk
ANSWER_BYTES = 64 << 20
ENDING = ".jsonl"
UNANSWERED = {
    EXPIRED: "This line was not answered within the completion window.",
    CANCELLED: "The batch was cancelled before this line was answered.",
}
ENDS = {CANCELLING: CANCELLED, FINALIZING: COMPLETED}  # the last status after a status


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
        """Return the time.monotonic() at which the batch continues; 0 if it is not planned, or not in progress."""
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

    async def _advance(self, identity: str) -> None:
        """Do one step of a batch. A step that fails because of the disk is tried again; other errors end the batch."""
        try:
            batch = self._store.batches[identity]
            with storage(self._store.parts(batch).path):
                await self._step(batch)
        except StorageFull as full:
            await self._wait_for_disk(identity, "storage_full", no_room(full)[0])
        except HfxError as failure:
            log_line(failure.message)  # the message has a path, which callers must not see
            if isinstance(failure, InputChanged):
                await self._fail(identity, "The input file of the batch was changed.")
            elif isinstance(failure.__cause__, FileNotFoundError):
                await self._fail(identity, "A file of the batch is not there any more.")
            else:
                await self._wait_for_disk(identity, "storage_error", "The server can't read or write its files.")
        except Exception as error:
            traceback.print_exc()
            await self._fail(identity, str(error))

    async def _wait_for_disk(self, identity: str, code: str, message: str) -> None:
        error = LineError(code, f"{message} The batch goes on when it can.")
        self._store.change_in_memory(self._store.batches[identity], errors=[error.api_error()])
        await asyncio.sleep(SPACE_SECONDS)

    async def _fail(self, identity: str, message: str) -> None:
        errors = [LineError("server_error", message).api_error()]
        with suppress(HfxError):
            self._store.change(self._store.batches[identity], FAILED, errors=errors)
        await asyncio.sleep(PAUSE_SECONDS)

    async def _step(self, batch: Batch) -> None:
        if batch.id not in self._progress:
            batch = await self._begin(batch)
        is_over = batch.status == IN_PROGRESS and time.time() >= batch.expires_at
        if batch.status == VALIDATING:
            self._store.change(batch, IN_PROGRESS)
        elif batch.status in ENDS or is_over:
            await self._publish(batch, self._progress[batch.id], ENDS.get(batch.status, EXPIRED))
        elif batch.status == IN_PROGRESS and self._progress[batch.id].missing:
            await self._score(batch, self._progress[batch.id])
        elif batch.status == IN_PROGRESS:
            self._store.change(batch, FINALIZING)

    async def _begin(self, batch: Batch) -> Batch:
        """Read the plan of a batch, or make it, and count the answers that an earlier process has written."""
        chunks, errors = await asyncio.to_thread(self._planned, batch)
        batch = self._store.batches[batch.id]  # it may have changed meanwhile
        if errors:
            return self._store.change(batch, FAILED, errors=errors)
        plan = Plan(self._store.parts(batch), chunks)
        completed, failed = await asyncio.to_thread(_count, plan.folder)
        self._progress[batch.id] = Progress(plan, plan.missing())
        batch = self._store.batches[batch.id]
        return self._store.change(batch, completed=completed, failed=failed, total=count_rows(chunks))

    def _planned(self, batch: Batch) -> tuple[Sequence[PlannedChunk], Sequence[Any]]:
        """Return the chunks of a batch, or its errors."""
        folder = self._store.parts(batch)
        with suppress(JobError):  # the file is not cut yet, or earlier versions have not written the plan
            return read_plan(folder), ()
        chunks, errors = cut(self._store.content(batch.input_file_id), batch.endpoint, self._settings)
        return chunks if errors else write_plan(folder, chunks), errors

    # Lines

    async def _score(self, batch: Batch, progress: Progress) -> None:
        """Obtain the answers to the lines of the next chunk, and write them as a part, unless the turn ends before."""
        chunk = progress.missing[0]
        lines = await asyncio.to_thread(self._lines, batch, chunk)
        try:
            await self._answer(batch, progress, lines)
        except Busy as busy:
            self._pause(batch, progress, busy)
            return
        except TurnOver:
            return
        size = sum(size for _, size in progress.places.values())
        self._store.reserve(size)
        try:
            part = progress.plan.folder.part(chunk.number, ENDING)
            completed = await asyncio.to_thread(_write_part, part, progress.kept())
        except BaseException:
            self._store.reserve(-size)
            raise
        progress.finish()
        batch = self._store.batches[batch.id]
        failed = batch.failed + len(lines) - completed
        self._store.change_in_memory(batch, completed=batch.completed + completed, failed=failed, errors=())

    def _lines(self, batch: Batch, chunk: PlannedChunk) -> list[Line]:
        return read_chunk(self._store.content(batch.input_file_id), chunk, batch.endpoint)

    def _pause(self, batch: Batch, progress: Progress, busy: Busy) -> None:
        """Record that the server is busy. If it has been busy for long, report that until the chunk is done."""
        progress.pause(busy.pause)
        if time.monotonic() - progress.since > BUSY_SECONDS:
            message = f"The server does not take the line at present, and it is sent again. {busy.reason}"
            errors = [LineError("server_busy", message).api_error(busy.line.number)]
            self._store.change_in_memory(self._store.batches[batch.id], errors=errors)

    async def _answer(self, batch: Batch, progress: Progress, lines: Sequence[Line]) -> None:
        """Add the answers to `lines` to those of `progress`.

        All lines are sent once, up to `parallel` at a time. Then the lines without a 200 are sent again, one by one.
        Raises TurnOver; the answers until then are kept.
        """
        began = time.monotonic()
        statuses: dict[int, int] = {}
        ended: list[Exception] = []

        def is_over() -> bool:
            now, batches = time.monotonic(), self._store.batches.values()
            others = (each for each in batches if each.owner != batch.owner and not each.is_finished)
            return bool(ended) or (now - began > TURN_SECONDS and any(self._due(other) <= now for other in others))

        async def first_try(line: Line) -> None:
            async with self._free:
                if is_over():
                    return
                try:
                    status, content = await self._send(batch, line)
                    if status == OK:
                        progress.keep(line.number, line.answered(batch, status, content))
                    else:
                        statuses[line.number], progress.tries[line.number] = status, 0
                except Exception as error:
                    ended.append(error)

        tried = {*progress.places, *progress.tries}
        await asyncio.gather(*(first_try(line) for line in lines if line.number not in tried))
        if ended:
            raise ended[0]
        for line in (line for line in lines if line.number not in progress.places):
            if is_over() or line.number not in progress.tries:
                raise TurnOver
            answer = await self._retry_alone(batch, progress, line, statuses.get(line.number, 0))
            progress.keep(line.number, answer)

    async def _retry_alone(self, batch: Batch, progress: Progress, line: Line, status: int) -> bytes:
        """Send a line again while no other line is in progress. The `status` of its first answer was not 200."""
        content = None
        while progress.tries[line.number] < MOST_TRIES:
            if not 0 < status < 500:  # a process of the server may have died
                await asyncio.sleep(NOTICE_SECONDS)
            await self._await_health(batch)
            status, content = await self._send(batch, line)
            progress.tries[line.number] += 1
            if 0 < status < 500:
                break
        return line.answered(batch, status, content)

    async def _send(self, batch: Batch, line: Line) -> tuple[int, Any]:
        """Send a line, and return the status and the JSON of its answer. The status 0 means that the connection broke.

        Raises Busy if the server does not accept the line, and TurnOver if the batch is cancelled or expires.
        """
        self._check(batch)
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
        """Wait until the server reports that it is healthy, for at most HEALTH_SECONDS. Raises TurnOver."""
        deadline = time.monotonic() + HEALTH_SECONDS
        while time.monotonic() < deadline:
            self._check(batch)
            with suppress(httpx.TransportError):
                if (await self._client.get("/health")).status_code == OK:
                    return
            await asyncio.sleep(PAUSE_SECONDS)

    def _check(self, batch: Batch) -> None:
        if time.time() >= batch.expires_at or self._store.batches[batch.id].status != IN_PROGRESS:
            raise TurnOver

    # Files

    async def _publish(self, batch: Batch, progress: Progress, status: str) -> None:
        """Write the output and error files of a batch, and then its final `status`."""
        size = sum(path.stat().st_size for path in progress.plan.folder.parts.glob(f"[!.]*{ENDING}"))
        self._store.reserve(size)
        try:
            changes = await asyncio.to_thread(self._join, batch, progress, status)
        finally:
            self._store.reserve(-size)
        for kind in ("output", "error"):
            path = self._store.content(identity := _file_id(batch, kind))
            if path.exists():
                filename, length = f"{batch.id}_{kind}{ENDING}", path.stat().st_size
                file = StoredFile(identity, batch.owner, filename, "batch_output", length, time.time_ns())
                self._store.add_file(file, length)
                changes[f"{kind}_file_id"] = identity
        self._progress.pop(batch.id, None)
        self._store.change(self._store.batches[batch.id], status, errors=(), **changes)

    def _join(self, batch: Batch, progress: Progress, status: str) -> dict[str, Any]:
        """Join the parts, in order, into the output file and the error file. Delete a file that is empty.

        Lines without an answer become errors. Returns the numbers of answers and errors, as changes for the batch's
        record. Raises ValueError for a damaged part.
        """
        targets = [self._store.content(_file_id(batch, kind)) for kind in ("output", "error")]
        missing = {chunk.number for chunk in progress.missing}
        counts = Counter[bytes]()
        with new_file(targets[0]) as output, new_file(targets[1]) as errors:
            for chunk in progress.plan.chunks:
                if chunk.number in missing:
                    reason = f"batch_{status}", UNANSWERED[status]
                    answers = [line.refused(batch, *reason) for line in self._lines(batch, chunk)]
                else:
                    answers = _part_lines(progress.plan.folder, chunk.number)
                for answer in answers:
                    counts[answer[:1]] += 1
                    (output if answer.startswith(OUTPUT) else errors).write(answer[1:])
        for path in targets:
            if not path.stat().st_size:
                path.unlink()
        return {"completed": counts[OUTPUT], "failed": counts[ERROR]}


def _count(folder: Folder) -> tuple[int, int]:
    """Return how many answers and errors the parts in `folder` have. Delete damaged parts."""
    counts = Counter[bytes]()
    for number in folder.done():
        try:
            counts.update(line[:1] for line in _part_lines(folder, number))
        except ValueError:
            folder.part(number, ENDING).unlink()
    return counts[OUTPUT], counts[ERROR]


def _part_lines(folder: Folder, number: int) -> list[bytes]:
    """Return the lines of a part. Raises ValueError for a damaged part."""
    with open_part(folder.part(number, ENDING)) as file:
        return file.readlines()


def _write_part(path: Path, answers: Iterable[bytes]) -> int:
    """Write a part, and return how many of its lines go to the output file."""
    completed = 0
    with new_part(path) as file:
        for answer in answers:
            completed += answer.startswith(OUTPUT)
            file.write(answer)
    return completed


async def answer_json(response: httpx.Response) -> Any:
    """Return the JSON of an answer, or None if the answer is not JSON or is larger than ANSWER_BYTES."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > ANSWER_BYTES:
            return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _file_id(batch: Batch, kind: str) -> str:
    """Return the id of the `kind` of file of a batch. The id is the same each time the file is written."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"
