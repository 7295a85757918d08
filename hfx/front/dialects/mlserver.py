"""MLServer's Hugging Face runtime: the V2 protocol with that server's own habits.

Its requests go to Triton's path, /v2/models/NAME/infer, and are known by a shape of one dimension, which no model of
hfx has: inputs are called as the arguments of a pipeline, the declared shape is [1] whatever number of texts there is,
and each answer is a JSON text in the one output. Source: the example of MLServer's Hugging Face runtime, 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from hfx.client import calls
from hfx.client.calls import Call
from hfx.front.answers import entities, labels, text_field
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Route
from hfx.front.fields import (
    Fields,
    check_dimensions,
    check_task,
    embedding_options,
    flag,
    generation_settings,
    json_object,
    refuse_unknown,
    shown,
    text,
    texts,
    whole_number,
)
from hfx.front.inference import in_order
from hfx.front.refusals import Refusal, dumped, error_object
from hfx.front.schemas import INFER
from hfx.metadata import INT32_MAX
from hfx.names import DIMENSIONS, GENERATION_TASKS, TEXT_INPUT, Task
from hfx.python_backends.tasks import PROMPTS

FLAT_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*-?\d+\s*\]')
TEXT_NAMES = ("args", "text_inputs", "inputs", "sequences")
ENVELOPE = {"content_type", "headers"}  # parameters that describe the request


async def infer(request: DialectRequest) -> bytes:
    """POST /v2/models/NAME/infer, with the inputs of a pipeline."""
    fields = json_object(request.content)
    refuse_unknown(fields, {"id", "inputs", "outputs", "parameters"})
    model = await request.inference.catalog.model(request.model)
    inputs = _inputs(fields)
    if TEXT_INPUT in inputs:
        message = f"The input {TEXT_INPUT} has one dimension. Send the shape [n, 1]: n rows of one text."
        raise Refusal(400, message, param=TEXT_INPUT)
    check_task(model, *ANSWERS)
    parameters = _parameters(fields, inputs)
    answers = await ANSWERS[model.task](request, model, inputs, parameters)
    output = {
        "name": "output",
        "shape": [len(answers), 1],
        "datatype": "BYTES",
        "parameters": {"content_type": "hg_jsonlist"},
        "data": [json.dumps(answer) for answer in answers],
    }
    return dumped(
        {"model_name": model.name, "id": str(fields.get("id") or request.id), "parameters": {}, "outputs": [output]}
    )


def is_own(body: bytes) -> bool:
    """Whether an infer request's JSON has an input whose shape is that of this dialect."""
    return FLAT_SHAPE.search(body) is not None


Values = dict[str, list[Any]]


async def _classify(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    refuse_unknown(parameters, {"top_k"})
    top_k = whole_number(parameters, "top_k", 1, INT32_MAX, 1)
    call = calls.classify(model.name, top_k)
    results = await _rows(request, model, inputs, call)
    rows = [labels(result) for result in results]
    return [row[0] for row in rows] if "top_k" not in parameters else rows


async def _zero_shot(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    candidates = texts(inputs.pop("candidate_labels", parameters.get("candidate_labels")), "candidate_labels")
    refuse_unknown(parameters, {"candidate_labels", "multi_label"})
    sources = _texts(inputs)
    call = calls.zero_shot(model.name, candidates, flag(parameters, "multi_label"), None)
    results = await request.inference.rows(model, [call(source) for source in sources])
    return [
        {
            "sequence": source,
            "labels": [each.label for each in result.predictions],
            "scores": [each.score for each in result.predictions],
        }
        for source, result in zip(sources, results, strict=True)
    ]


async def _label_tokens(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    refuse_unknown(parameters, ())
    aggregation = request.files.settings(model)["aggregation"]
    results = await _rows(request, model, inputs, calls.label_tokens(model.name))
    return [entities(result, aggregation) for result in results]


async def _answer(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    refuse_unknown(parameters, ())
    questions, contexts = texts(inputs.get("question"), "question"), texts(inputs.get("context"), "context")
    if inputs.keys() != {"question", "context"} or len(questions) != len(contexts):
        raise Refusal(400, f"The inputs are {', '.join(inputs)}. Send as many of question as of context.")
    call = calls.answer(model.name)
    results = await request.inference.rows(model, [call(pair) for pair in zip(questions, contexts, strict=True)])
    return [{"score": each.score, "start": each.start, "end": each.end, "answer": each.answer} for each in results]


async def _embed(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    refuse_unknown(parameters, {DIMENSIONS, *PROMPTS})
    call = calls.embed(model.name, **embedding_options(model, parameters))
    vectors = [result.vector.tolist() for result in await _rows(request, model, inputs, call)]
    check_dimensions(parameters, len(vectors[0]))
    return vectors


async def _generate(request: DialectRequest, model: ServedModel, inputs: Values, parameters: Fields) -> list[Any]:
    settings = dict(parameters)
    has_prompt = flag(settings, "return_full_text", True) and model.task is Task.TEXT_GENERATION
    settings.pop("return_full_text", None)
    chosen = generation_settings(settings)
    prompts = _texts(inputs)
    results = await in_order([request.inference.generate(model, prompt, chosen) for prompt in prompts])
    name = text_field(model.task)
    return [
        {name: prompt + result.text if has_prompt else result.text}
        for prompt, result in zip(prompts, results, strict=True)
    ]


ANSWERS: Mapping[Task, Callable[[DialectRequest, ServedModel, Values, Fields], Awaitable[list[Any]]]] = {
    Task.TEXT_CLASSIFICATION: _classify,
    Task.TOKEN_CLASSIFICATION: _label_tokens,
    Task.QUESTION_ANSWERING: _answer,
    Task.FEATURE_EXTRACTION: _embed,
    Task.ZERO_SHOT_CLASSIFICATION: _zero_shot,
    **dict.fromkeys(GENERATION_TASKS, _generate),
}


async def _rows(
    request: DialectRequest, model: ServedModel, inputs: Values, call: Callable[[str], Call[Any]]
) -> Sequence[Any]:
    return await request.inference.rows(model, [call(source) for source in _texts(inputs)])


def _inputs(fields: Fields) -> Values:
    """The data of the inputs by name. Raises Refusal (400)."""
    rows = fields.get("inputs")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Refusal(400, f"inputs is {shown(rows)}. Send a list of inputs.", param="inputs")
    named = {text(row.get("name"), "name"): _data(row) for row in rows}
    if len(named) != len(rows):
        raise Refusal(400, "Two inputs have the same name. Send each once.", param="inputs")
    return named


def _data(row: Fields) -> list[Any]:
    data = row.get("data")
    data = data if isinstance(data, list) else [data]
    return [item for part in data for item in (part if isinstance(part, list) else [part])]


def _texts(inputs: Values) -> list[str]:
    """The texts of the only input. Raises Refusal (400)."""
    if len(inputs) != 1 or not inputs.keys() <= set(TEXT_NAMES):
        raise Refusal(400, f"The inputs are {', '.join(inputs)}. Send the texts as {' or '.join(TEXT_NAMES)}.")
    [values] = inputs.values()
    return texts(values, "inputs")


def _parameters(fields: Fields, inputs: Values) -> dict[str, Any]:
    """The arguments beside the texts: the request's parameters, `extra` in them, and inputs of one other value."""
    parameters = dict(json_object(fields.get("parameters") or {}))
    extra = json_object(parameters.pop("extra", None) or {})
    named = {name: value for name, value in (parameters | extra).items() if name not in ENVELOPE}
    for name in [name for name in inputs if name not in (*TEXT_NAMES, "question", "context", "candidate_labels")]:
        values = inputs.pop(name)
        named[name] = values[0] if len(values) == 1 else values
    return named


DIALECT = Dialect(
    "mlserver",
    (Route("POST", "/v2/models/{model}/infer", infer, "A pipeline's answers, for flat shapes.", INFER, is_own),),
    error_object,
)
