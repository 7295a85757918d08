"""Generated texts as text-generation-inference and Hugging Face's API write them: whole, with details, or in events."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from hfx.client.results import Piece, Token
from hfx.client.settings import GenerationSettings
from hfx.front.dialect import Events
from hfx.front.dialects import generation_parameters
from hfx.front.dialects.generation_parameters import PREFILL
from hfx.front.dialects.pipelines import Inputs
from hfx.front.fields import Fields
from hfx.front.refusals import invalid
from hfx.front.schemas import GENERATION, body
from hfx.front.structured_output import GRAMMAR
from hfx.names import Task

# The field with the generated text, for the tasks that do not use `generated_text`.
TEXT_FIELDS = {Task.SUMMARIZATION: "summary_text", Task.TRANSLATION: "translation_text"}


async def generate(inputs: Inputs) -> list[dict[str, Any]]:
    """Generate a text for each input.

    A text has the field of its task, and `generated_text`, which InferenceClient.text_generation reads for any model.
    """
    parameters, prompts = generation_parameters.read(inputs), inputs.texts
    settings = [await generation_parameters.for_prompt(inputs, parameters, prompt) for prompt in prompts]
    results = await inputs.request.generate(inputs.model, zip(prompts, settings, strict=True))
    names = (TEXT_FIELDS.get(inputs.model.task, "generated_text"), "generated_text")
    rows = []
    for prompt, result in zip(prompts, results, strict=True):
        text = prompt + result.text if parameters.has_prompt else result.text
        row: dict[str, Any] = dict.fromkeys(names, text)
        if parameters.has_details:
            ending = _ending(result.finish_reason, result.output_tokens, result.tokens, parameters.settings)
            tokens = details(result.tokens, parameters.settings.logprobs or 0)
            row["details"] = {**ending, **tokens, "prefill": _prefill(result.prompt_tokens)}
        rows.append(row)
    return rows


async def stream(inputs: Inputs) -> Events:
    """Yield the pieces of a text as events. The last event has the whole text."""
    parameters, prompt = generation_parameters.read(inputs), Fields(inputs=inputs.inputs).text("inputs")
    settings = await generation_parameters.for_prompt(inputs, parameters, prompt)
    if settings.prompt_logprobs is not None:
        raise invalid("The events of a stream have no place for decoder_input_details. Leave it out.", PREFILL)
    whole = prompt if parameters.has_prompt else ""
    async with aclosing(inputs.request.pieces(inputs.model, [(prompt, settings)])) as pieces:
        async for _, piece in pieces:
            whole += piece.text
            rows = stream_tokens(piece, settings.logprobs or 0)
            for number, row in enumerate(rows, 1):
                ending: dict[str, Any] = {"generated_text": None, "details": None}
                if piece.finish_reason and number == len(rows):
                    facts = _ending(piece.finish_reason, piece.output_tokens, piece.tokens, settings)
                    ending = {"generated_text": whole, "details": {**facts, "input_length": piece.input_tokens}}
                yield {"index": piece.output_tokens - len(rows) + number, **row, **ending}


def _ending(reason: str, count: int, tokens: Sequence[Token], settings: GenerationSettings) -> dict[str, Any]:
    # Without tokens, such as for beams, the end token is assumed: TGI's clients know no other name of this end.
    has_cause = tokens or settings.stop_words
    reason = finish_reason(reason, tokens) if has_cause or reason != "stop" else "eos_token"
    return {"finish_reason": reason, "generated_tokens": count, "seed": settings.seed}


def details(tokens: Sequence[Token], alternatives: int) -> dict[str, Any]:
    """Return the tokens as text-generation-inference has them in the details of a text."""
    top = {"top_tokens": [_top(token) for token in tokens]} if alternatives else {}
    return {"tokens": [_tgi_token(token, token.text) for token in tokens], **top}


def _prefill(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Return the tokens of a prompt as text-generation-inference has them. The first has no log-probability."""
    rows = [{"id": token.id, "text": token.text, "logprob": token.logprob} for token in tokens]
    return [*({**row, "logprob": None} for row in rows[:1]), *rows[1:]]


def finish_reason(reason: str, tokens: Sequence[Token]) -> str:
    """Return text-generation-inference's name for the reason why a text of `tokens` ended."""
    if reason != "stop" or not tokens:
        return reason
    return "eos_token" if tokens[-1].special else "stop_sequence"


def stream_tokens(piece: Piece, alternatives: int) -> list[dict[str, Any]]:
    """Return the fields of one text-generation-inference event for each token of a piece.

    The texts of the events together are the text of the piece and the names of special tokens. A piece without tokens
    has one event.
    """
    if not piece.tokens:
        return [{"token": {"id": None, "text": piece.text, "logprob": None, "special": False}}]
    return [
        {"token": _tgi_token(token, text), **({"top_tokens": _top(token)} if alternatives else {})}
        for token, text in zip(piece.tokens, _divided(piece.text, piece.tokens), strict=True)
    ]


def _divided(text: str, tokens: Sequence[Token]) -> list[str]:
    """Divide `text` among the tokens. The last token that is not special gets the rest of the text."""
    last = max((at for at, token in enumerate(tokens) if not token.special), default=len(tokens) - 1)
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    parts = []
    for at, token in enumerate(tokens):
        own = "" if token.special else utf8.decode(token.raw)
        part = text if at == last else own if text.startswith(own) else ""
        text = text[len(part) :]
        parts.append(part or (token.text if token.special else ""))
    return parts


def _top(token: Token) -> list[dict[str, Any]]:
    return [_tgi_token(each, each.text) for each in token.top]


def _tgi_token(token: Token, text: str) -> dict[str, Any]:
    return {"id": token.id, "text": text, "logprob": token.logprob, "special": token.special and text == token.text}


PARAMETERS: Mapping[str, Any] = {
    **GENERATION,
    "return_full_text": bool,
    "details": bool,
    "top_n_tokens": int,
    "max_length": int,
    "min_length": int,
    "grammar": GRAMMAR,
}
BODY = body("inputs", inputs=str, parameters=body("", **PARAMETERS))
