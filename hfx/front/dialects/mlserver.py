"""MLServer's Hugging Face runtime: the V2 protocol with that server's own conventions.

Its requests go to Triton's path, /v2/models/NAME/infer. Inputs have the names of a pipeline's arguments, and each
element of the pipeline's answer is a JSON text in the only output. Such a request is recognized by a shape of one
dimension, which no model of hfx has, by inputs with a pipeline's names, or by a content type of that runtime's codecs.
Source: the codecs and the runtime of mlserver and mlserver-huggingface 1.7.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Route, parsed
from hfx.front.dialects.huggingface import ANSWERS, Inputs
from hfx.front.fields import Fields, check_task, flag, json_object, known_fields, shown, text, texts
from hfx.front.guard import check_json
from hfx.front.infer_request import CONTENT_TYPE, refuse_coded
from hfx.front.refusals import Refusal, dumped, error_object
from hfx.front.schemas import INFER
from hfx.names import GENERATION_TASKS, TEXT_INPUT, Task

FLAT_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*-?\d+\s*\]')
# The last is the name that MLServer's StringRequestCodec gives to its only input.
TEXT_NAMES = ("args", "array_inputs", "text_inputs", "inputs", "sequences", "input-1")
NAMED = re.compile(rb'"name"\s*:\s*"(?:%b)"' % "|".join(TEXT_NAMES).encode())
OWN_NAME = re.compile(rb'"name"\s*:\s*"%b"' % TEXT_INPUT.encode())
TYPED = re.compile(rb'"content_type"\s*:\s*"(?:hf|pd|raw|hg_json|hg_jsonlist)"')
JSON_TYPES = ("hg_json", "hg_jsonlist")  # each value is a JSON text
SINGLE_TYPES = ("raw", "hg_json")
ENVELOPE = {CONTENT_TYPE, "headers"}  # parameters that describe the request
TASKS = (
    Task.TEXT_CLASSIFICATION,
    Task.TOKEN_CLASSIFICATION,
    Task.QUESTION_ANSWERING,
    Task.FILL_MASK,
    Task.FEATURE_EXTRACTION,
    Task.ZERO_SHOT_CLASSIFICATION,
    *GENERATION_TASKS,
)
# Tasks whose pipelines may answer one input with a list.
LISTED = (Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.QUESTION_ANSWERING)


async def infer(request: DialectRequest) -> bytes:
    """POST /v2/models/NAME/infer with the inputs of a pipeline."""
    fields = known_fields(request.content, INFER)
    model = await request.inference.catalog.model(request.model_name)
    inputs = _inputs(fields)
    if TEXT_INPUT in inputs:
        message = f"The input {TEXT_INPUT} has one dimension. Send the shape [n, 1]: n rows of one text."
        raise Refusal(400, message, param=TEXT_INPUT)
    check_task(model, *TASKS)
    answers = await _answers(request, model, inputs, _parameters(fields, inputs), _single(fields))
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
    """Whether an infer request's JSON has a shape, an input or a content type of this dialect."""
    if FLAT_SHAPE.search(body):
        return True
    return OWN_NAME.search(body) is None and bool(NAMED.search(body) or TYPED.search(body))


Values = dict[str, list[Any]]


async def _answers(
    request: DialectRequest, model: ServedModel, inputs: Values, parameters: dict[str, Any], single: set[str]
) -> Sequence[Any]:
    """Return the answers of Hugging Face's API, in the structure of a pipeline that MLServer calls. Raises Refusal."""
    task, best_only, is_single = model.task, "top_k" not in parameters, not single.isdisjoint(inputs)
    sources = _sources(model, inputs, parameters)
    request.inference.names[TEXT_INPUT] = next(iter(inputs))
    is_single = len(sources) == 1 and (is_single or task is Task.QUESTION_ANSWERING)
    if task is Task.TEXT_CLASSIFICATION and best_only:
        parameters["top_k"] = 1
    if task in GENERATION_TASKS:
        has_prompt = flag(parameters, "return_full_text", True)
        parameters["return_full_text"] = has_prompt and task is Task.TEXT_GENERATION
    answers: Sequence[Any] = await ANSWERS[task](Inputs(request, model, sources, parameters))
    if task is Task.TEXT_CLASSIFICATION and best_only:
        return [row[0] for row in answers]
    if is_single and task in LISTED and isinstance(answers[0], list):
        return answers[0]
    if task is Task.TEXT_GENERATION and not is_single:
        return [[answer] for answer in answers]
    if task is Task.ZERO_SHOT_CLASSIFICATION:
        return [_ranked(source, row) for source, row in zip(sources, answers, strict=True)]
    return answers


def _single(fields: Fields) -> set[str]:
    """Return the inputs whose only value the pipeline gets without a list: `args`, and those of some content types."""
    return {
        row["name"]
        for row in fields["inputs"]
        if row["name"] == "args" or (row.get("parameters") or {}).get(CONTENT_TYPE) in SINGLE_TYPES
    }


def _sources(model: ServedModel, inputs: Values, parameters: dict[str, Any]) -> list[Any]:
    """Return the texts, or the questions with their contexts. Raises Refusal (400).

    If an input has candidate labels, it becomes a parameter.
    """
    if model.task is Task.QUESTION_ANSWERING and len(inputs) == 1 and inputs.keys() <= set(TEXT_NAMES):
        return next(iter(inputs.values()))
    if model.task is Task.QUESTION_ANSWERING:
        questions, contexts = texts(inputs.get("question"), "question"), texts(inputs.get("context"), "context")
        if inputs.keys() != {"question", "context"} or len(questions) != len(contexts):
            raise Refusal(400, f"The inputs are {', '.join(inputs)}. Send as many of question as of context.")
        return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]
    if model.task is Task.ZERO_SHOT_CLASSIFICATION and "candidate_labels" in inputs:
        parameters["candidate_labels"] = inputs.pop("candidate_labels")
    if len(inputs) != 1 or not inputs.keys() <= set(TEXT_NAMES):
        sent = ", ".join(inputs or parameters)
        raise Refusal(400, f"The inputs are {sent}. Send the texts as args.", param=next(iter(inputs), ""))
    [(name, values)] = inputs.items()
    return texts(values, name)


def _ranked(source: str, row: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return candidate labels as the pipeline of zero-shot classification returns them."""
    return {"sequence": source, "labels": [each["label"] for each in row], "scores": [each["score"] for each in row]}


def _inputs(fields: Fields) -> Values:
    """Return the decoded data of the inputs by name. Raises Refusal (400)."""
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
    values = [item for part in data for item in (part if isinstance(part, list) else [part])]
    parameters = json_object(row.get("parameters") or {})
    refuse_coded(row.get("name"), parameters)
    return [_json(value) for value in values] if parameters.get(CONTENT_TYPE) in JSON_TYPES else values


def _json(value: Any) -> Any:
    """Return the parsed JSON text `value`. Raises Refusal (400)."""
    encoded = text(value, "data").encode()
    check_json(encoded)
    return parsed(encoded)


def _parameters(fields: Fields, inputs: Values) -> dict[str, Any]:
    """Return the arguments besides the texts: the request's parameters, those in `extra`, and all other inputs.

    The other inputs are removed from `inputs`. An input with one value becomes that value, any other a list.
    """
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
