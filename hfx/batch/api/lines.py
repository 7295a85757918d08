"""The lines of a batch's input file: checking the lines, and grouping them into chunks. Each chunk becomes one part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import Batch
from hfx.batch.folder import open_file, storage
from hfx.batch.rows import row_seed
from hfx.front.dialects import DIALECTS
from hfx.front.guard import check_json
from hfx.front.refusals import Refusal
from hfx.strict_json import no_constant, without_duplicates

CHUNK = 32  # lines per chunk: at most this many are computed again after a kill
MOST_ERRORS = 100  # the most errors that a failed batch lists
ID_LENGTH = 512  # characters of a custom_id
MEMBERS = ("custom_id", "method", "url", "body")
ENDPOINTS = [
    route.pattern
    for dialect in DIALECTS
    for route in dialect.routes
    if dialect.has_batches and route.method == "POST" and route.is_own is None
]


class LineError(Exception):
    """An entry of a batch's `errors`: OpenAI's `code`, the message, and the line's wrong member as `param`."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def api_error(self, line: int | None) -> dict[str, Any]:
        """The error as JSON. `line` is the line's number, from 1; None if the error is about the file or the batch."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": line}


@dataclass(frozen=True)
class Line:
    """A request of a batch. `number` is the line's number in the file, from 1; `body` is the body of the request."""

    number: int
    custom_id: str
    body: dict[str, Any]

    def request_id(self, batch: Batch) -> str:
        """The id of the request, which is the same for every try."""
        return f"batch_req_{batch.id.removeprefix('batch_')}_{self.number}"

    def content(self, batch: Batch) -> dict[str, Any]:
        """The body to send.

        A text generation without a seed gets one that is derived from the batch's id and `custom_id`.
        """
        if not batch.endpoint.endswith("completions") or self.body.get("seed") is not None:
            return self.body
        return {**self.body, "seed": row_seed(0, batch.id, self.custom_id)}


@dataclass(frozen=True)
class Chunk:
    """A group of `requests` consecutive requests. The first is in line `first`, which begins at the byte `offset`."""

    number: int
    offset: int
    first: int
    requests: int


def is_endpoint(path: str) -> bool:
    """Return whether `path` is a route of the front that batches support."""
    return path.isascii() and any(regex.fullmatch(path.encode()) for regex in ENDPOINTS)


def parse_line(text: bytes, number: int, endpoint: str) -> Line:
    """Check line `number` of a batch for `endpoint`, and return its request. Raises LineError."""
    values = _object(text)
    for name in (name for name in MEMBERS if values.get(name) is None):
        raise LineError("missing_required_parameter", f"The line has no {name}.", name)
    if unknown := [name for name in values if name not in MEMBERS]:
        raise LineError("unknown_parameter", f"A line has no member {unknown[0][:100]!r}.", unknown[0][:100])
    custom_id, body = values["custom_id"], values["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= ID_LENGTH:
        raise LineError("invalid_custom_id", f"custom_id is not a text of 1 to {ID_LENGTH} characters.", "custom_id")
    if values["method"] != "POST":
        raise LineError("invalid_method", "method is not POST.", "method")
    if values["url"] != endpoint:
        raise LineError("mismatched_endpoint", f"url is not the batch's endpoint, {endpoint}.", "url")
    if not isinstance(body, dict):
        raise LineError("invalid_request", "body is not an object.", "body")
    if body.get("stream"):
        raise LineError("invalid_request", "An answer of a batch is not a stream. Leave stream out.", "body.stream")
    return Line(number, custom_id, body)


def _object(text: bytes) -> dict[str, Any]:
    try:
        check_json(text)
        values = json.loads(text.decode(), parse_constant=no_constant, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise LineError("invalid_json_line", f"The line is not JSON: {error}.") from None
    except Refusal as refusal:
        raise LineError("invalid_json_line", refusal.message) from None
    if not isinstance(values, dict):
        raise LineError("invalid_json_line", "The line is not a JSON object.")
    return values


def cut(path: Path, endpoint: str, settings: ApiSettings) -> tuple[list[Chunk], list[dict[str, Any]]]:
    """Return the chunks of the file at `path`, and the batch's `errors`. If there are errors, the batch fails.

    Reading stops after MOST_ERRORS errors, at a line that is too large, and when there are too many lines.
    """
    chunks: list[Chunk] = []
    errors: list[dict[str, Any]] = []
    ids: set[str] = set()
    waiting: list[tuple[int, int]] = []  # (offset, number) of each line of the next chunk
    with storage(path), open_file(path) as file:
        for number, offset, text in _texts(file, settings.line):
            try:
                if len(text) > settings.line:
                    raise LineError("line_too_large", f"The line is larger than {settings.line} bytes.")
                line = parse_line(text, number, endpoint)
                if line.custom_id in ids:
                    raise LineError("duplicate_custom_id", "Another line has this custom_id.", "custom_id")
            except LineError as error:
                errors.append(error.api_error(number))
                if len(errors) >= MOST_ERRORS or error.code == "line_too_large":
                    break
                continue
            ids.add(line.custom_id)
            if len(ids) > settings.lines:
                message = f"The file has more than {settings.lines} requests. Send them as several batches."
                errors.append(LineError("too_many_requests", message).api_error(None))
                break
            waiting.append((offset, number))
            if len(waiting) == CHUNK:
                chunks.append(Chunk(len(chunks), *waiting[0], len(waiting)))
                waiting = []
    if waiting:
        chunks.append(Chunk(len(chunks), *waiting[0], len(waiting)))
    if not errors and not chunks:
        errors.append(LineError("empty_file", "The file has no requests. Write one into each line.").api_error(None))
    return chunks, errors


def read_chunk(path: Path, chunk: Chunk, endpoint: str, settings: ApiSettings) -> list[Line]:
    """Return the requests of a chunk of the file at `path`, which `cut` has checked."""
    lines: list[Line] = []
    with storage(path), open_file(path) as file:
        file.seek(chunk.offset)
        for number, _, text in _texts(file, settings.line, chunk.first):
            lines.append(parse_line(text, number, endpoint))
            if len(lines) == chunk.requests:
                break
    return lines


def _texts(file: BinaryIO, most: int, number: int = 1) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, offset, text) of each line that is not blank.

    Cut a line longer than `most` bytes, and end there.
    """
    offset = file.tell()
    while text := file.readline(most + 2):
        if text.strip():
            yield number, offset, text.rstrip(b"\r\n")
        offset += len(text)
        number += 1
        if not text.endswith(b"\n"):
            return


def with_date(content: Any, created: int) -> Any:
    """Return `content` with the batch's creation time, so that a recomputed answer has the same bytes."""
    with suppress(AttributeError):
        if type(content.get("created")) is int:
            return {**content, "created": created}
    return content
