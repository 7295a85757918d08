"""The objects of OpenAI's Responses API: responses with their message, and the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from hfx.client.results import Generation, Piece, joined
from hfx.front.dialect import Events
from hfx.front.refusals import dumped

ECHOED = ("instructions", "max_output_tokens", "temperature", "text", "top_p")
# Fields of each response, for which hfx has one value.
FIXED: Mapping[str, Any] = {
    **dict.fromkeys(("background", "store"), False),
    **dict.fromkeys(("error", "incomplete_details", "previous_response_id", "usage"), None),
    **dict.fromkeys(("output", "tools"), ()),
    **{"metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "truncation": "disabled"},
}


@dataclass(frozen=True)
class ResponseObjects:
    """Makes the objects of the answer to a request, whose ECHOED fields are in `sent`. `created` is in seconds."""

    id: str
    model: str
    sent: Mapping[str, Any]
    created: int

    def whole(self, result: Generation) -> dict[str, Any]:
        """Return the response with a generated text. It is incomplete if the text ends because of its length."""
        is_cut = result.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        read, written = result.input_tokens, result.output_tokens
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written, **details}
        reason = {"reason": "max_output_tokens"} if is_cut else None
        message = self._message(status, _part(result.text))
        return {**self._begun(status), "output": [message], "usage": usage, "incomplete_details": reason}

    async def events(self, pieces: AsyncGenerator[tuple[int, Piece], None]) -> Events:
        """Yield the events of a stream. The first one follows the first piece, so that refusals have their status."""
        numbers, read = count(), list[Piece]()
        place: dict[str, Any] = {"item_id": self._message_id, "output_index": 0, "content_index": 0}

        def event(kind: str, **content: Any) -> bytes:
            content = {"type": f"response.{kind}", "sequence_number": next(numbers), **content}
            return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), dumped(content))

        async with aclosing(pieces) as arriving:
            async for _, piece in arriving:
                if not read:
                    for kind in ("created", "in_progress"):
                        yield event(kind, response=self._begun("in_progress"))
                    yield event("output_item.added", output_index=0, item=self._message("in_progress"))
                    yield event("content_part.added", **place, part=_part(""))
                read.append(piece)
                if piece.text:
                    yield event("output_text.delta", **place, delta=piece.text, logprobs=[])
        whole = self.whole(joined(read))
        [message] = whole["output"]
        [part] = message["content"]
        yield event("output_text.done", **place, text=part["text"], logprobs=[])
        yield event("content_part.done", **place, part=part)
        yield event("output_item.done", output_index=0, item=message)
        yield event(whole["status"], response=whole)

    @property
    def _message_id(self) -> str:
        return f"msg-{self.id}"

    def _message(self, status: str, *content: Mapping[str, Any]) -> dict[str, Any]:
        head = {"id": self._message_id, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": list(content)}

    def _begun(self, status: str) -> dict[str, Any]:
        """Return the response without its output."""
        echoed = {name: self.sent.get(name) for name in ECHOED}
        head = {"id": f"resp-{self.id}", "object": "response", "created_at": self.created, "status": status}
        return {**head, "model": self.model, **FIXED, **echoed, "text": echoed["text"] or {"format": {"type": "text"}}}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
