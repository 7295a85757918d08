"""MLServer's Hugging Face runtime: the V2 protocol with that server's own conventions.

Its requests go to Triton's path, /v2/models/NAME/infer. Inputs have the names of a pipeline's arguments, and each
element of the pipeline's answer is a JSON text in the only output. Such a request is recognized by a shape of one
dimension, which no model of hfx has, by inputs with a pipeline's names, or by a content type of that runtime's codecs.
Source: the codecs and the runtime of mlserver and mlserver-huggingface 1.7.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hfx.front.dialect import Dialect, DialectRequest, Route, parsed_text
from hfx.front.dialects import huggingface, pipelines
from hfx.front.fields import Fields
from hfx.front.infer_request import CONTENT_TYPE, refuse_coded
from hfx.front.refusals import error_object, invalid
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


async def infer(request: DialectRequest) -> dict[str, Any]:
    """POST /v2/models/NAME/infer with the inputs of a pipeline."""
    fields = request.fields(INFER)
    model = await request.model()
    inputs = _inputs(fields)
    if TEXT_INPUT in inputs:
        message = f"The input {TEXT_INPUT} has one dimension. Send the shape [n, 1]: n rows of one text."
        raise invalid(message, TEXT_INPUT)
    model.check_task(*TASKS)
    parameters = _parameters(fields, inputs)
    # The pipeline gets the only value of `args`, and of some content types, without a list.
    is_single = any(
        row["name"] == "args" or (row.get("parameters") or {}).get(CONTENT_TYPE) in SINGLE_TYPES
        for row in fields["inputs"]
        if row["name"] in inputs
    )
    texts = _texts(model.task, inputs, parameters)
    request.name_texts(next(iter(inputs)))
    answers = await _answers(pipelines.Inputs(request, model, texts, parameters), is_single)
    output = {
        "name": "output",
        "shape": [len(answers), 1],
        "datatype": "BYTES",
        "parameters": {"content_type": "hg_jsonlist"},
        "data": [json.dumps(answer) for answer in answers],
    }
    return {"model_name": model.name, "id": str(fields.get("id") or request.id), "parameters": {}, "outputs": [output]}


def is_own(body: bytes) -> bool:
    """Return whether an infer request's JSON has a shape, an input or a content type of this dialect."""
    if FLAT_SHAPE.search(body):
        return True
    return OWN_NAME.search(body) is None and bool(NAMED.search(body) or TYPED.search(body))


async def _answers(inputs: pipelines.Inputs, is_single: bool) -> Sequence[Any]:
    """Return the answers of Hugging Face's API, in the structure of a pipeline that MLServer calls. Raises Refusal.

    `is_single` is whether the pipeline gets the only value of an input without a list.
    """
    task, parameters, best_only = inputs.model.task, inputs.parameters, "top_k" not in inputs.parameters
    is_single = len(inputs.inputs) == 1 and (is_single or task is Task.QUESTION_ANSWERING)
    if task is Task.TEXT_CLASSIFICATION and best_only:
        parameters["top_k"] = 1
    if task in GENERATION_TASKS:
        has_prompt = parameters.flag("return_full_text", True)
        parameters["return_full_text"] = has_prompt and task is Task.TEXT_GENERATION
    answers: Sequence[Any] = await huggingface.ANSWERS[task](inputs)
    if task is Task.TEXT_CLASSIFICATION and best_only:
        return [row[0] for row in answers]
    if is_single and task in LISTED and isinstance(answers[0], list):
        return answers[0]
    if task is Task.TEXT_GENERATION and not is_single:
        return [[answer] for answer in answers]
    if task is Task.ZERO_SHOT_CLASSIFICATION:
        columns = [{f"{key}s": [each[key] for each in row] for key in ("label", "score")} for row in answers]
        return [{"sequence": text, **row} for text, row in zip(inputs.inputs, columns, strict=True)]
    return answers


def _texts(task: Task, inputs: Fields, parameters: Fields) -> list[Any]:
    """Return the texts, or the questions with their contexts. Raises Refusal (400).

    If an input has candidate labels, it becomes a parameter.
    """
    is_named = len(inputs) == 1 and inputs.keys() <= set(TEXT_NAMES)
    if task is Task.QUESTION_ANSWERING and is_named:
        [values] = inputs.values()
        return list(values)
    if task is Task.QUESTION_ANSWERING:
        questions, contexts = inputs.texts("question"), inputs.texts("context")
        if inputs.keys() != {"question", "context"} or len(questions) != len(contexts):
            raise invalid(f"The inputs are {', '.join(inputs)}. Send as many of question as of context.")
        return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]
    if task in (Task.ZERO_SHOT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION) and "candidate_labels" in inputs:
        parameters["candidate_labels"] = inputs.pop("candidate_labels")
    if len(inputs) != 1 or not inputs.keys() <= set(TEXT_NAMES):
        sent = ", ".join(inputs or parameters)
        raise invalid(f"The inputs are {sent}. Send the texts as args.", next(iter(inputs), ""))
    return inputs.texts(next(iter(inputs)))


def _inputs(fields: Fields) -> Fields:
    """Return the decoded data of the inputs by name, a list of values each. Raises Refusal (400)."""
    rows = fields.get("inputs")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise fields.refusal("inputs", "Send a list of inputs.")
    named = Fields({row.text("name"): _data(row) for row in map(Fields, rows)})
    if len(named) != len(rows):
        raise invalid("Two inputs have the same name. Send each once.", "inputs")
    return named


def _data(row: Fields) -> list[Any]:
    data = row.get("data")
    data = data if isinstance(data, list) else [data]
    values = [item for part in data for item in (part if isinstance(part, list) else [part])]
    parameters = Fields.of(row.get("parameters") or {})
    refuse_coded(row.get("name"), parameters)
    is_json = parameters.get(CONTENT_TYPE) in JSON_TYPES
    return [parsed_text(Fields(data=value).text("data")) for value in values] if is_json else values


def _parameters(fields: Fields, inputs: Fields) -> Fields:
    """Return the arguments besides the texts: the request's parameters, those in `extra`, and all other inputs.

    The other inputs are removed from `inputs`. An input with one value becomes that value, any other a list.
    """
    parameters = Fields.of(fields.get("parameters") or {})
    extra = Fields.of(parameters.pop("extra", None) or {})
    named = Fields({name: value for name, value in (parameters | extra).items() if name not in ENVELOPE})
    for name in [name for name in inputs if name not in (*TEXT_NAMES, "question", "context", "candidate_labels")]:
        values = inputs.pop(name)
        named[name] = values[0] if len(values) == 1 else values
    return named


ROUTE = Route("POST", "/v2/models/{model}/infer", infer, "A pipeline's answers, for flat shapes.", INFER, is_own)
DIALECT = Dialect("mlserver", (ROUTE,), error_object, "MLServer")
