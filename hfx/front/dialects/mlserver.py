"""MLServer's Hugging Face runtime: the V2 protocol with that server's own habits.

Its requests go to Triton's path, /v2/models/NAME/infer, and are known by a shape of one dimension, which no model of
hfx has: inputs are called as the arguments of a pipeline, the declared shape is [1] whatever number of texts there is,
and each answer is a JSON text in the one output. Source: the example of MLServer's Hugging Face runtime, 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Route
from hfx.front.dialects.huggingface import ANSWERS, Inputs
from hfx.front.fields import Fields, check_task, flag, json_object, refuse_unknown, shown, text, texts
from hfx.front.refusals import Refusal, dumped, error_object
from hfx.front.schemas import INFER
from hfx.names import GENERATION_TASKS, TEXT_INPUT, Task

FLAT_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*-?\d+\s*\]')
TEXT_NAMES = ("args", "text_inputs", "inputs", "sequences")
ENVELOPE = {"content_type", "headers"}  # parameters that describe the request
TASKS = (
    Task.TEXT_CLASSIFICATION,
    Task.TOKEN_CLASSIFICATION,
    Task.QUESTION_ANSWERING,
    Task.FEATURE_EXTRACTION,
    Task.ZERO_SHOT_CLASSIFICATION,
    *GENERATION_TASKS,
)


async def infer(request: DialectRequest) -> bytes:
    """POST /v2/models/NAME/infer, with the inputs of a pipeline."""
    fields = json_object(request.content)
    refuse_unknown(fields, {"id", "inputs", "outputs", "parameters"})
    model = await request.inference.catalog.model(request.model)
    inputs = _inputs(fields)
    if TEXT_INPUT in inputs:
        message = f"The input {TEXT_INPUT} has one dimension. Send the shape [n, 1]: n rows of one text."
        raise Refusal(400, message, param=TEXT_INPUT)
    check_task(model, *TASKS)
    answers = await _answers(request, model, inputs, _parameters(fields, inputs))
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


async def _answers(
    request: DialectRequest, model: ServedModel, inputs: Values, parameters: dict[str, Any]
) -> Sequence[Any]:
    """Those of Hugging Face's API, in the forms of a pipeline that MLServer calls. Raises Refusal."""
    task, best_only, sources = model.task, "top_k" not in parameters, _sources(model, inputs, parameters)
    if task is Task.TEXT_CLASSIFICATION and best_only:
        parameters["top_k"] = 1
    if task in GENERATION_TASKS:
        has_prompt = flag(parameters, "return_full_text", True)
        parameters["return_full_text"] = has_prompt and task is Task.TEXT_GENERATION
    answers: Sequence[Any] = await ANSWERS[task](Inputs(request, model, sources, parameters))
    if task is Task.TEXT_CLASSIFICATION and best_only:
        return [row[0] for row in answers]
    if task is Task.ZERO_SHOT_CLASSIFICATION:
        return [_ranked(source, row) for source, row in zip(sources, answers, strict=True)]
    return answers


def _sources(model: ServedModel, inputs: Values, parameters: dict[str, Any]) -> list[Any]:
    """The texts, or the questions with their contexts; candidate labels may be an input. Raises Refusal (400)."""
    if model.task is Task.QUESTION_ANSWERING:
        questions, contexts = texts(inputs.get("question"), "question"), texts(inputs.get("context"), "context")
        if inputs.keys() != {"question", "context"} or len(questions) != len(contexts):
            raise Refusal(400, f"The inputs are {', '.join(inputs)}. Send as many of question as of context.")
        return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]
    if model.task is Task.ZERO_SHOT_CLASSIFICATION and "candidate_labels" in inputs:
        parameters["candidate_labels"] = inputs.pop("candidate_labels")
    if len(inputs) != 1 or not inputs.keys() <= set(TEXT_NAMES):
        sent = ", ".join(inputs or parameters)
        raise Refusal(400, f"The inputs are {sent}. Send the texts as {' or '.join(TEXT_NAMES)}.")
    [values] = inputs.values()
    return texts(values, "inputs")


def _ranked(source: str, row: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Candidate labels as the pipeline of zero-shot classification has them."""
    return {"sequence": source, "labels": [each["label"] for each in row], "scores": [each["score"] for each in row]}


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
