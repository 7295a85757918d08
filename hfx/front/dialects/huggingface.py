"""Hugging Face's inference API: `{"inputs": …, "parameters": {…}}` to a model, for each of hfx's tasks.

Answers have the structure of the pipelines behind Inference Endpoints. Streams are text-generation-inference's, and so
is the default of `return_full_text`, false. Source: the schemas of @huggingface/tasks, 2026, from which
huggingface_hub's InferenceClient is generated.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from hfx.client import calls
from hfx.client.calls import Call
from hfx.client.results import Answer, Generation, Token
from hfx.client.settings import GenerationSettings
from hfx.front import schemas
from hfx.front.answers import (
    cosines,
    details,
    entities,
    fills,
    finish_reason,
    labels,
    normalized,
    ranking,
    stream_tokens,
    text_field,
    vector_json,
)
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Events, Route, event
from hfx.front.dialects import generation_parameters, pipelines
from hfx.front.dialects.generation_parameters import Parameters
from hfx.front.dialects.tei import pair_labels, vectors_of
from hfx.front.fields import (
    Fields,
    check_count,
    check_generator,
    check_task,
    flag,
    json_object,
    prompt_of,
    refuse_unknown,
    shown,
    text,
    texts,
    whole_number,
)
from hfx.front.inference import in_order
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import body
from hfx.front.structured_output import GRAMMAR
from hfx.metadata import INT32_MAX
from hfx.names import GENERATION_TASKS, TEXT_INPUT, TOKENIZE_SUFFIX, Kind, Task
from hfx.python_backends.tasks import PROMPTS, TASKS

Result = TypeVar("Result")
TOP = {"inputs", "parameters", "options", "stream"}
GENERATED_TEXT = "generated_text"
ERROR_TYPES = {400: "validation", 429: "overloaded"}


@dataclass(frozen=True)
class Inputs:
    """A request to `model`: a single input or a list of inputs, and the parameters."""

    request: DialectRequest
    model: ServedModel
    inputs: Any
    parameters: Fields

    @property
    def is_list(self) -> bool:
        """Whether the inputs are a list. The answers are then a list, too."""
        return isinstance(self.inputs, list)

    def check_parameters(self, *known: str) -> None:
        """Raise Refusal (400) for a parameter that is not `known`, unless it has no effect."""
        task, has_exported = self.model.task, self.parameters.keys() & pipelines.EXPORTED[self.model.task].keys()
        exported = self.request.files.settings(self.model, TOKENIZE_SUFFIX) if has_exported else {}
        pipelines.take_arguments(task, self.parameters, known, exported)

    async def settings(self, parameters: Parameters, prompt: str) -> GenerationSettings:
        """Return the settings for a prompt."""
        return await generation_parameters.for_prompt(self.request, self.model, parameters, prompt)

    async def results(self, call: Callable[[str], Call[Result]]) -> list[Result]:
        """Return the result of `call` for each input. Raises Refusal (400, 413) if an input is not a text."""
        return await self.request.inference.rows(self.model, [call(one) for one in texts(self.inputs, "inputs")])


async def infer(request: DialectRequest) -> bytes | Events:
    """POST /models/NAME, and POST / if only one model is served."""
    fields = json_object(request.content)
    catalog = request.inference.catalog
    model = await (catalog.model(request.model_name) if request.model_name else catalog.only())
    inputs = inputs_of(request, model, fields)
    if flag(fields, "stream"):
        check_generator(model)
        return stream(inputs)
    return dumped(await ANSWERS[model.task](inputs))


def inputs_of(request: DialectRequest, model: ServedModel, fields: Fields) -> Inputs:
    """Return the inputs and parameters in `fields`; for feature-extraction, other fields are parameters, too."""
    request.inference.names[TEXT_INPUT] = "inputs"
    beside: Fields = {}
    if model.task is Task.FEATURE_EXTRACTION:
        beside = {name: value for name, value in fields.items() if name not in TOP}
    refuse_unknown(fields, {*TOP, *beside})
    parameters = json_object(fields.get("parameters") or {}, "parameters")
    present = {name: value for name, value in {**beside, **parameters}.items() if value is not None}
    return Inputs(request, model, fields.get("inputs"), present)


async def sentence_similarity(request: DialectRequest) -> bytes:
    """POST /models/NAME/pipeline/sentence-similarity: return the cosines of a sentence with other sentences."""
    fields = json_object(request.content)
    model = await request.inference.catalog.model(request.model_name)
    return dumped(await _similarities(request, model, fields.get("inputs")))


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    kind = ERROR_TYPES.get(refusal.status, "generation" if refusal.status >= 500 else "")
    return refusal.status, {"error": refusal.message, **({"error_type": kind} if kind else {})}


async def _classify(inputs: Inputs) -> Any:
    inputs.check_parameters("top_k", "function_to_apply", "return_all_scores")
    if "function_to_apply" in inputs.parameters:
        function = inputs.request.files.settings(inputs.model)["activation"]
        _check_equal(inputs.parameters, "function_to_apply", function, "the model was exported with it")
    every = INT32_MAX if flag(inputs.parameters, "return_all_scores", True) else 1
    top_k = whole_number(inputs.parameters, "top_k", 1, INT32_MAX, every)
    return [labels(result) for result in await inputs.results(calls.classify(inputs.model.name, top_k))]


async def _label_tokens(inputs: Inputs) -> Any:
    inputs.check_parameters("aggregation_strategy", "ignore_labels", "grouped_entities")
    aggregation = inputs.request.files.settings(inputs.model)["aggregation"]
    _check_equal(inputs.parameters, "aggregation_strategy", aggregation, "the model was exported with it")
    if "grouped_entities" in inputs.parameters:
        grouped = "simple" if flag(inputs.parameters, "grouped_entities") else "none"
        if grouped != aggregation:
            message = f"grouped_entities stands for aggregation_strategy {grouped}. The model was exported with"
            raise Refusal(400, f"{message} {aggregation}: leave it out.", param="grouped_entities")
    _check_equal(inputs.parameters, "ignore_labels", ["O"], "models leave out that one")
    results = await inputs.results(calls.label_tokens(inputs.model.name))
    rows = [entities(result, aggregation) for result in results]
    return rows if inputs.is_list else rows[0]


async def _fill_masks(inputs: Inputs) -> Any:
    """Return the answers. As in the pipeline, the answer to a list of one text is that to the text."""
    inputs.check_parameters("top_k", "targets")
    targets = inputs.parameters.get("targets")
    top_k = whole_number(inputs.parameters, "top_k", 1, INT32_MAX, 5)
    call = calls.fill_mask(inputs.model.name, top_k, None if targets is None else texts(targets, "targets"))
    rows = [fills(result) for result in await inputs.results(call)]
    return rows[0] if len(rows) == 1 else rows


async def _answer_questions(inputs: Inputs) -> Any:
    """Return the answers. As in the pipeline, a single answer is an object, and several are a list."""
    inputs.check_parameters(*TASKS[Task.QUESTION_ANSWERING].options)
    pairs = inputs.inputs if isinstance(inputs.inputs, list) and inputs.inputs else [inputs.inputs]
    check_count(len(pairs), "inputs")
    call = calls.answer(inputs.model.name, **pipelines.answer_settings(inputs.parameters))
    results = await inputs.request.inference.rows(inputs.model, [call(_pair(pair)) for pair in pairs])
    rows = [_answers(result) for result in results]
    return rows if inputs.is_list else rows[0]


def _answers(result: Answer) -> dict[str, Any] | list[dict[str, Any]]:
    rows = [
        {"score": each.score, "start": each.start, "end": each.end, "answer": each.answer}
        for each in (result, *result.others)
    ]
    return rows if len(rows) > 1 else rows[0]


async def _embed(inputs: Inputs) -> Any:
    if isinstance(inputs.inputs, dict):
        return await _similarities(inputs.request, inputs.model, inputs.inputs)
    inputs.check_parameters("normalize", "truncate", "truncation_direction", "dimensions", "encoding_format", *PROMPTS)
    sources = texts(inputs.inputs, "inputs")
    rows = await vectors_of(inputs.request, inputs.model, inputs.parameters, sources, cuts=True)
    if flag(inputs.parameters, "normalize"):
        rows = normalized(rows)
    encoding = inputs.parameters.get("encoding_format", "float")
    vectors = [vector_json(row, encoding) for row in rows]
    return vectors if inputs.is_list else vectors[0]


async def _zero_shot(inputs: Inputs) -> Any:
    inputs.check_parameters("candidate_labels", "multi_label")
    candidates = texts(inputs.parameters.get("candidate_labels"), "candidate_labels")
    call = calls.zero_shot(inputs.model.name, candidates, flag(inputs.parameters, "multi_label"), None)
    rows = [labels(result) for result in await inputs.results(call)]
    return rows if inputs.is_list else rows[0]


async def _rank(inputs: Inputs) -> Any:
    inputs.check_parameters(*PROMPTS)
    fields = inputs.inputs
    if not isinstance(fields, dict):
        raise Refusal(400, f"inputs is {shown(fields)}. Send a query and texts.", param="inputs")
    refuse_unknown(fields, {"query", "texts", "return_documents"})
    sources = texts(fields.get("texts"), "texts")
    inputs.request.inference.names[TEXT_INPUT] = "texts"
    if inputs.model.kind is Kind.PAIR_CLASSIFIER:
        pairs = [(text(fields.get("query"), "query"), source) for source in sources]
        options = prompt_of(inputs.parameters)
        return await pair_labels(inputs.request, inputs.model, pairs, raw=False, softmax=False, **options)
    call = calls.rank(inputs.model.name, text(fields.get("query"), "query"), None, **prompt_of(inputs.parameters))
    ranks = await inputs.request.inference.rows(inputs.model, [call(item) for item in enumerate(sources)])
    return ranking(ranks, sources if flag(fields, "return_documents") else None)


async def generate(inputs: Inputs) -> list[dict[str, Any]]:
    """Generate a text for each input.

    A text has the field of its task, and `generated_text`, which InferenceClient.text_generation reads for any model.
    """
    parameters = generation_parameters.read(inputs.request, inputs.model, inputs.parameters)
    prompts = texts(inputs.inputs, "inputs")
    settings = [await inputs.settings(parameters, prompt) for prompt in prompts]
    infer = inputs.request.inference.generate
    results = await in_order([infer(inputs.model, *each) for each in zip(prompts, settings, strict=True)])
    names = (text_field(inputs.model.task), GENERATED_TEXT)
    written = [
        prompt + result.text if parameters.has_prompt else result.text
        for prompt, result in zip(prompts, results, strict=True)
    ]
    return [
        {**dict.fromkeys(names, text), **_details(result, parameters)}
        for text, result in zip(written, results, strict=True)
    ]


def _details(result: Generation, parameters: Parameters) -> dict[str, Any]:
    """Return the `details` of a text if the request has them."""
    if not parameters.has_details:
        return {}
    settings = parameters.settings
    ending = _ending(result.finish_reason, result.output_tokens, result.tokens, settings)
    return {"details": {**ending, **details(result.tokens, settings.logprobs or 0)}}


def _ending(reason: str, count: int, tokens: Sequence[Token], settings: GenerationSettings) -> dict[str, Any]:
    # Without tokens, such as for beams, the end token is assumed: TGI's clients know no other name of this end.
    has_cause = tokens or settings.stop_words
    reason = finish_reason(reason, tokens) if has_cause or reason != "stop" else "eos_token"
    return {"finish_reason": reason, "generated_tokens": count, "seed": settings.seed}


ANSWERS: Mapping[Task, Callable[[Inputs], Awaitable[Any]]] = {
    Task.TEXT_CLASSIFICATION: _classify,
    Task.TOKEN_CLASSIFICATION: _label_tokens,
    Task.QUESTION_ANSWERING: _answer_questions,
    Task.FILL_MASK: _fill_masks,
    Task.FEATURE_EXTRACTION: _embed,
    Task.ZERO_SHOT_CLASSIFICATION: _zero_shot,
    Task.TEXT_RANKING: _rank,
    **dict.fromkeys(GENERATION_TASKS, generate),
}


async def stream(inputs: Inputs) -> Events:
    """Yield the pieces of a text as text-generation-inference's events. The last event has the whole text."""
    parameters = generation_parameters.read(inputs.request, inputs.model, inputs.parameters)
    prompt = text(inputs.inputs, "inputs")
    settings = await inputs.settings(parameters, prompt)
    whole = prompt if parameters.has_prompt else ""
    async with aclosing(inputs.request.inference.pieces(inputs.model, prompt, settings)) as pieces:
        async for piece in pieces:
            whole += piece.text
            rows = stream_tokens(piece, settings.logprobs or 0)
            for number, row in enumerate(rows, 1):
                ending: dict[str, Any] = {"generated_text": None, "details": None}
                if piece.finish_reason and number == len(rows):
                    facts = _ending(piece.finish_reason, piece.output_tokens, piece.tokens, settings)
                    ending = {"generated_text": whole, "details": {**facts, "input_length": piece.input_tokens}}
                yield event({"index": piece.output_tokens - len(rows) + number, **row, **ending})


async def _similarities(request: DialectRequest, model: ServedModel, inputs: Any) -> list[float]:
    check_task(model, Task.FEATURE_EXTRACTION)
    if not isinstance(inputs, dict) or inputs.keys() != {"source_sentence", "sentences"}:
        raise Refusal(400, f"inputs is {shown(inputs)}. Send a source_sentence and sentences.", param="inputs")
    sentences = texts(inputs["sentences"], "sentences")
    source = text(inputs["source_sentence"], "source_sentence")
    return cosines(await vectors_of(request, model, {}, [source, *sentences], cuts=True))


def _pair(inputs: Any) -> tuple[str, str]:
    if not isinstance(inputs, dict) or inputs.keys() != {"question", "context"}:
        raise Refusal(400, f"inputs is {shown(inputs)}. Send a question and a context.", param="inputs")
    return text(inputs["question"], "question"), text(inputs["context"], "context")


def _check_equal(parameters: Fields, name: str, value: Any, reason: str) -> None:
    if parameters.get(name) not in (None, value):
        message = f"{name} is {shown(parameters[name])}. Send {value!r} ({reason}), or leave it out."
        raise Refusal(400, message, param=name)


# The parameters of all tasks. A model takes those of its own task.
PARAMETERS: Mapping[str, Any] = {
    "top_k": int,
    "function_to_apply": str,
    "aggregation_strategy": str,
    "targets": str | list[str],
    "max_answer_len": int,
    "doc_stride": int,
    "handle_impossible_answer": bool,
    "candidate_labels": list[str],
    "multi_label": bool,
    "normalize": bool,
    "truncate": bool,
    "encoding_format": {"enum": ["float", "base64"]},
}
WRITING: Mapping[str, Any] = {
    **schemas.GENERATION,
    "return_full_text": bool,
    "details": bool,
    "top_n_tokens": int,
    "max_length": int,
    "min_length": int,
    "grammar": GRAMMAR,
}
GENERATION = body("inputs", inputs=str, parameters=body("", **WRITING))
ANY_TASK = body(
    "inputs",
    inputs=str | dict | list[Any],
    parameters=body("", **{**PARAMETERS, **WRITING}),
    stream=bool,
    options=dict,
)
SENTENCES = body("inputs", inputs=body("source_sentence sentences", source_sentence=str, sentences=list[str]))
VECTORS = body("inputs", inputs=str | list[str], normalize=bool, truncate=bool, parameters=dict)
BELOW = "/models/{model}"
DIALECT = Dialect(
    "huggingface",
    (
        Route("POST", "/", infer, "The answer of the model, where one is served alone.", ANY_TASK),
        Route("POST", BELOW, infer, "The answer of a model; a stream on request.", ANY_TASK),
        Route("POST", f"{BELOW}/pipeline/feature-extraction", infer, "The vectors of texts.", VECTORS),
        Route("POST", f"{BELOW}/pipeline/sentence-similarity", sentence_similarity, "Cosines of sentences.", SENTENCES),
    ),
    error,
    re.compile(rb"/models/.*"),
)
