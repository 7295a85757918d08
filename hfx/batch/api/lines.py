"""The lines of a batch: checking them, cutting the input file into chunks, and the output line for each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import Batch
from hfx.batch.folder import open_file, storage
from hfx.batch.plan import PlannedChunk
from hfx.batch.rows import row_seed
from hfx.front.dialects import DIALECTS
from hfx.front.guard import check_json
from hfx.front.refusals import Refusal, dumped
from hfx.rows import Chunk
from hfx.rows.row import input_changed
from hfx.strict_json import no_constant, without_duplicates

OK = 200
CHUNK = 32  # lines per chunk: at most this many are computed again after a kill
MOST_ERRORS = 100  # the most errors that a failed batch lists
ID_LENGTH = 512  # characters of a custom_id
MEMBERS = ("custom_id", "method", "url", "body")
OUTPUT, ERROR = b"+", b"-"  # the first byte of a line in a part: the file to which the rest of the line goes
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

    def api_error(self, line: int | None = None) -> dict[str, Any]:
        """Return the error as JSON. `line` is the line's number, from 1, unless the error is about no single line."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": line}


@dataclass(frozen=True)
class Line:
    """A request of a batch. `number` is the line's number in the file, from 1; `body` is the body of the request."""

    number: int
    custom_id: str
    body: dict[str, Any]

    def request_id(self, batch: Batch) -> str:
        """Return the id of the request, which is the same for every try."""
        return f"batch_req_{batch.id.removeprefix('batch_')}_{self.number}"

    def content(self, batch: Batch) -> dict[str, Any]:
        """Return the body to send.

        A text generation without a seed gets one that is derived from the batch's id and `custom_id`.
        """
        if not batch.endpoint.endswith(("completions", "responses")) or self.body.get("seed") is not None:
            return self.body
        return {**self.body, "seed": row_seed(0, batch.id, self.custom_id)}

    def answered(self, batch: Batch, status: int, content: Any) -> bytes:
        """Return the output line for the JSON `content` of an answer, preceded by OUTPUT or ERROR.

        The `status` is 0 if there was no answer, and `content` is None if the answer was not JSON. Answers have the
        batch's creation time, so that an answer that is computed again has the same bytes.
        """
        if not status:
            return self.refused(batch, "server_error", "The server did not answer this line in several tries.")
        if content is None:
            return self.refused(batch, "server_error", "The answer is not JSON.")
        for name in ("created", "created_at"):
            if isinstance(content, dict) and type(content.get(name)) is int:
                content = {**content, name: batch.created_at}
        response = {"status_code": status, "request_id": self.request_id(batch), "body": content}
        return (OUTPUT if status == OK else ERROR) + self._output(batch, response, None)

    def refused(self, batch: Batch, code: str, message: str) -> bytes:
        """Return the output line for a line without an answer, preceded by ERROR."""
        return ERROR + self._output(batch, None, {"code": code, "message": message})

    def _output(self, batch: Batch, response: Any, error: Any) -> bytes:
        values = {"id": self.request_id(batch), "custom_id": self.custom_id, "response": response, "error": error}
        return dumped(values) + b"\n"


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


def cut(path: Path, endpoint: str, settings: ApiSettings) -> tuple[list[PlannedChunk], list[dict[str, Any]]]:
    """Return the chunks of the file at `path`, and the batch's `errors`. If there are errors, the batch fails.

    Reading stops after MOST_ERRORS errors, at a line that is too large, and when there are too many lines.
    """
    chunks: list[PlannedChunk] = []
    errors: list[dict[str, Any]] = []
    ids: set[str] = set()
    line, digest = 1, hashlib.sha256()  # of the next chunk

    def end_chunk() -> None:
        first, start = CHUNK * len(chunks) + 1, chunks[-1].extent.end if chunks else 0
        extent = Chunk(first, len(ids) - first + 1, line, start, file.tell(), digest.hexdigest())
        chunks.append(PlannedChunk(len(chunks), 0, first, extent))

    with storage(path), open_file(path) as file:
        for number, text in enumerate(iter(lambda: file.readline(settings.line + 2), b""), 1):
            digest.update(text)
            try:
                ids |= _new_id(text.rstrip(b"\r\n"), number, endpoint, settings, ids)
            except LineError as error:
                errors.append(error.api_error(None if error.code == "too_many_requests" else number))
                if len(errors) >= MOST_ERRORS or error.code in ("line_too_large", "too_many_requests"):
                    break
            if len(ids) == CHUNK * (len(chunks) + 1):
                end_chunk()
                line, digest = number + 1, hashlib.sha256()
            if not text.endswith(b"\n"):
                break
        if len(ids) > CHUNK * len(chunks):
            end_chunk()
    if not errors and not chunks:
        errors.append(LineError("empty_file", "The file has no requests. Write one into each line.").api_error())
    return chunks, errors


def _new_id(text: bytes, number: int, endpoint: str, settings: ApiSettings, ids: Set[str]) -> set[str]:
    """Return the custom_id of a line, unless it is blank. `ids` are those of the lines before. Raises LineError."""
    if not text.strip():
        return set()
    if len(text) > settings.line:
        raise LineError("line_too_large", f"The line is larger than {settings.line} bytes.")
    custom_id = parse_line(text, number, endpoint).custom_id
    if custom_id in ids:
        raise LineError("duplicate_custom_id", "Another line has this custom_id.", "custom_id")
    if len(ids) == settings.lines:
        message = f"The file has more than {settings.lines} requests. Send them as several batches."
        raise LineError("too_many_requests", message)
    return {custom_id}


def read_chunk(path: Path, chunk: PlannedChunk, endpoint: str) -> list[Line]:
    """Return the requests of a chunk of the file at `path`, which `cut` has checked. Raises InputChanged."""
    extent = chunk.extent
    with storage(path), open_file(path) as file:
        file.seek(extent.start)
        content = file.read(extent.end - extent.start)
    if hashlib.sha256(content).hexdigest() != extent.sha256:
        raise input_changed(path.name)
    texts = enumerate(content.split(b"\n"), extent.line)
    return [parse_line(text.rstrip(b"\r"), number, endpoint) for number, text in texts if text.strip()]
