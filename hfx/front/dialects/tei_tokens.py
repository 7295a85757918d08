"""text-embeddings-inference's POST /tokenize: the tokens of texts, with their places."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hfx.front.dialect import DialectRequest
from hfx.front.dialects.tei_requests import TASKS, inputs_of, model_for
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import body

MOST_BYTES = 1 << 17  # of one request, which may have as many tokens, with 65 bytes of the answer for each
DUMPED_TOKENS = 1000
BODY = body("inputs", inputs=str | list[str], add_special_tokens=bool, prompt_name=str)


async def tokenize(request: DialectRequest) -> bytes:
    """POST /tokenize: return the tokens of each input."""
    fields = request.fields(BODY)
    model = await (request.model() if request.model_name else model_for(request, *TASKS))
    texts = inputs_of(fields)
    if sum(len(text.encode()) for text in texts) > MOST_BYTES:
        raise Refusal(413, f"The inputs have more than {MOST_BYTES} bytes. Send fewer, or shorter ones.")
    special = fields.flag("add_special_tokens", True)
    if named := fields.prompt():
        texts = request.files.prompted(model, texts, **named)
    rows = await request.tokenized(model, texts, lambda text, read: (len(read), tokens_json(text, read)), special)
    request.inference.input_tokens = sum(count for count, _ in rows)
    return b"[%b]" % b",".join(row for _, row in rows)


def tokens_json(text: str, encoding: Any) -> bytes:
    """Return the tokens of a text as JSON. It is encoded in pieces, because each encoding blocks the interpreter."""
    rows = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)
    pieces = []
    while tokens := [_token(text, *row) for row in islice(rows, DUMPED_TOKENS)]:
        pieces.append(dumped(tokens)[1:-1])
    return b"[%b]" % b",".join(pieces)


def _token(text: str, token_id: int, token: str, offsets: tuple[int, int], special: int) -> dict[str, Any]:
    start, stop = offsets
    return {
        "id": token_id,
        "text": token if special else text[start:stop],
        "special": bool(special),
        "start": None if special else start,
        "stop": None if special else stop,
    }
