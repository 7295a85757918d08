"""The output lines of a batch: for each input line, the answer of the front or an error."""

from __future__ import annotations

import json
from typing import Any

import httpx

from hfx.batch.api.lines import Line, with_date
from hfx.batch.api.store import Batch
from hfx.front.refusals import dumped

OK = 200
ANSWER_BYTES = 64 << 20
OUTPUT, ERROR = b"+", b"-"  # the first byte of a line in a part: the file to which the rest of the line goes


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


def answer_line(batch: Batch, line: Line, status: int, content: Any) -> bytes:
    """Return the output line for an answer, preceded by OUTPUT or ERROR."""
    if not status or content is None:
        message = "The server did not answer this line in several tries." if not status else "The answer is not JSON."
        return output_line(ERROR, batch, line, None, {"code": "server_error", "message": message})
    body = with_date(content, batch.created_at)
    response = {"status_code": status, "request_id": line.request_id(batch), "body": body}
    return output_line(OUTPUT if status == OK else ERROR, batch, line, response, None)


def output_line(mark: bytes, batch: Batch, line: Line, response: Any, error: Any) -> bytes:
    """Return a line for the output file or the error file, preceded by its `mark`."""
    values = {"id": line.request_id(batch), "custom_id": line.custom_id, "response": response, "error": error}
    return mark + dumped(values) + b"\n"
