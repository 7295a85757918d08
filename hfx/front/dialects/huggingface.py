"""Hugging Face's inference API: `{"inputs": …, "parameters": {…}}` to a model, for each of hfx's tasks.

Answers have the structure of the pipelines behind Inference Endpoints. Streams are text-generation-inference's, and so
is the default of `return_full_text`, false. Source: the schemas of @huggingface/tasks, 2026, from which
huggingface_hub's InferenceClient is generated.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from hfx.client import calls, results
from hfx.front import ranking, vectors
from hfx.front.dialect import Dialect, DialectRequest, Route
from hfx.front.dialects import generated_texts, pipelines
from hfx.front.fields import Fields
from hfx.front.refusals import Refusal, invalid
from hfx.front.schemas import body
from hfx.names import GENERATION_TASKS, Task

ANSWER = ("score", "start", "end", "answer")  # fields of an answer to a question
ERROR_TYPES = {400: "validation", 429: "overloaded"}


async def infer(request: DialectRequest) -> Any:
    """POST /models/NAME, and POST / if only one model is served."""
    fields = request.fields()
    model = await request.model()
    inputs = pipelines.inputs_of(request, model, fields)
    if fields.flag("stream"):
        model.check_task(*GENERATION_TASKS)
        return generated_texts.stream(inputs)
    return await ANSWERS[model.task](inputs)


async def sentence_similarity(request: DialectRequest) -> list[float]:
    """POST /models/NAME/pipeline/sentence-similarity: return the cosines of a sentence with other sentences."""
    fields = request.fields()
    return await _similarities(pipelines.Inputs(request, await request.model(), fields.get("inputs"), Fields()))


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    kind = ERROR_TYPES.get(refusal.status, "generation" if refusal.status >= 500 else "")
    return refusal.status, {"error": refusal.message, **({"error_type": kind} if kind else {})}


async def _classify(inputs: pipelines.Inputs) -> Any:
    inputs.check_parameters("top_k", "function_to_apply", "return_all_scores", "long", "stride")
    if "function_to_apply" in inputs.parameters:
        inputs.check_equal("function_to_apply", inputs.request.files.settings(inputs.model)["activation"])
    most = pipelines.ALL_LABELS if inputs.parameters.flag("return_all_scores", True) else 1
    call = calls.classify(inputs.model.name, inputs.parameters.number("top_k", most), **inputs.reading)
    return [_labels(result) for result in await inputs.results(call)]


def _labels(result: results.Classification) -> list[dict[str, Any]]:
    """Return the labels of a text, best first."""
    return [{"label": each.label, "score": each.score} for each in result.predictions]


async def _label_tokens(inputs: pipelines.Inputs) -> Any:
    known = ("aggregation_strategy", "ignore_labels", "grouped_entities", "long", "stride")
    inputs.check_parameters(*known, *inputs.search_parameters)
    # A model that needs labels joins the words of an entity by itself.
    aggregation = inputs.request.files.settings(inputs.model).get("aggregation", "simple")
    inputs.check_equal("aggregation_strategy", aggregation)
    if "grouped_entities" in inputs.parameters:
        grouped = "simple" if inputs.parameters.flag("grouped_entities") else "none"
        if grouped != aggregation:
            message = f"grouped_entities stands for aggregation_strategy {grouped}. The model was exported with"
            raise invalid(f"{message} {aggregation}: leave it out.", "grouped_entities")
    inputs.check_equal("ignore_labels", ["O"], "models leave out that one")
    label = "entity" if aggregation == "none" else "entity_group"
    rows = [
        [
            {label: each.entity, "score": each.score, "word": each.word, "start": each.start, "end": each.end}
            for each in result.entities
        ]
        for result in await inputs.results(calls.label_tokens(inputs.model.name, **inputs.search))
    ]
    return rows if inputs.is_list else rows[0]


async def _fill_masks(inputs: pipelines.Inputs) -> Any:
    """Return the answers. As in the pipeline, the answer to a list of one text is that to the text."""
    inputs.check_parameters("top_k", "targets")
    targets = None if inputs.parameters.get("targets") is None else inputs.parameters.texts("targets")
    call = calls.fill_mask(inputs.model.name, inputs.parameters.number("top_k", 5), targets)
    answers = await inputs.results(call)
    return _only([_only([[asdict(fill) for fill in mask] for mask in answer.masks]) for answer in answers])


def _only(rows: list[Any]) -> Any:
    """Return the only row, or the list of several rows."""
    return rows[0] if len(rows) == 1 else rows


async def _answer_questions(inputs: pipelines.Inputs) -> Any:
    """Return the answers. As in the pipeline, a single answer is an object, and several are a list."""
    inputs.check_parameters("top_k", "max_answer_len", "doc_stride", "handle_impossible_answer")
    questions = inputs.questions
    call = calls.answer(inputs.model.name, **pipelines.answer_settings(inputs.parameters))
    answers = await inputs.request.rows(inputs.model, call, questions)
    rows = [
        _only([{name: getattr(each, name) for name in ANSWER} for each in (answer, *answer.others)])
        for answer in answers
    ]
    return rows if inputs.is_list else rows[0]


async def _embed(inputs: pipelines.Inputs) -> Any:
    if isinstance(inputs.inputs, dict):
        return await _similarities(inputs)
    inputs.check_parameters(
        "normalize", "truncate", "truncation_direction", "dimensions", "encoding_format", "prompt_name", "prompt"
    )
    rows = await vectors.embed(inputs.request, inputs.model, inputs.parameters, inputs.texts, truncate=True)
    if inputs.parameters.flag("normalize"):
        rows = vectors.normalized(rows)
    encoding = inputs.parameters.get("encoding_format", "float")
    answers = [vectors.vector_json(row, encoding) for row in rows]
    return answers if inputs.is_list else answers[0]


async def _similarities(inputs: pipelines.Inputs) -> list[float]:
    inputs.model.check_task(Task.FEATURE_EXTRACTION)
    fields = Fields(inputs.inputs) if isinstance(inputs.inputs, dict) else Fields()
    if fields.keys() != {"source_sentence", "sentences"}:
        raise Fields(inputs=inputs.inputs).refusal("inputs", "Send a source_sentence and sentences.")
    sentences = fields.texts("sentences")
    texts = [fields.text("source_sentence"), *sentences]
    return vectors.cosines(await vectors.embed(inputs.request, inputs.model, Fields(), texts, truncate=True))


async def _zero_shot(inputs: pipelines.Inputs) -> Any:
    inputs.check_parameters("candidate_labels", "multi_label")
    candidates = inputs.parameters.texts("candidate_labels")
    call = calls.zero_shot(inputs.model.name, candidates, inputs.parameters.flag("multi_label"), None)
    rows = [_labels(result) for result in await inputs.results(call)]
    return rows if inputs.is_list else rows[0]


async def _rank(inputs: pipelines.Inputs) -> Any:
    inputs.check_parameters("prompt_name", "prompt")
    if not isinstance(inputs.inputs, dict):
        raise Fields(inputs=inputs.inputs).refusal("inputs", "Send a query and texts.")
    fields = Fields(inputs.inputs)
    fields.refuse_unknown({"query", "texts", "return_documents"})
    texts, query = fields.texts("texts"), fields.text("query")
    inputs.request.name_texts("texts")
    request, model, prompt = inputs.request, inputs.model, inputs.parameters.prompt()
    if model.is_pair_classifier:
        pairs = [(query, text) for text in texts]
        return await ranking.pair_labels(request, model, pairs, raw=False, softmax=False, **prompt)
    ranks = await request.rows(model, calls.rank(model.name, query, None, **prompt), enumerate(texts))
    return ranking.listed(ranks, texts if fields.flag("return_documents") else None)


ANSWERS: Mapping[Task, Callable[[pipelines.Inputs], Awaitable[Any]]] = {
    Task.TEXT_CLASSIFICATION: _classify,
    Task.TOKEN_CLASSIFICATION: _label_tokens,
    Task.QUESTION_ANSWERING: _answer_questions,
    Task.FILL_MASK: _fill_masks,
    Task.FEATURE_EXTRACTION: _embed,
    Task.ZERO_SHOT_CLASSIFICATION: _zero_shot,
    Task.TEXT_RANKING: _rank,
    **dict.fromkeys(GENERATION_TASKS, generated_texts.generate),
}
# The parameters of all tasks. A model takes those of its own task.
PARAMETERS: Mapping[str, Any] = {
    "top_k": int,
    "function_to_apply": str,
    "aggregation_strategy": str,
    "stride": int,
    "targets": str | list[str],
    "max_answer_len": int,
    "doc_stride": int,
    "handle_impossible_answer": bool,
    "candidate_labels": list[str],
    "labels": list[str],
    "threshold": float,
    "flat_ner": bool,
    "nested": bool,
    "multi_label": bool,
    "normalize": bool,
    "truncate": bool,
    "encoding_format": {"enum": ["float", "base64"]},
}
ANY_TASK = body(
    "inputs",
    inputs=str | dict | list[Any],
    parameters=body("", **{**PARAMETERS, **generated_texts.PARAMETERS}),
    stream=bool,
    options=dict,
)
SENTENCES = body("inputs", inputs=body("source_sentence sentences", source_sentence=str, sentences=list[str]))
VECTORS = body("inputs", inputs=str | list[str], normalize=bool, truncate=bool, parameters=dict)
BELOW = "/models/{model}"
ROUTES = (
    Route("POST", "/", infer, "The answer of the model, where one is served alone.", ANY_TASK),
    Route("POST", BELOW, infer, "The answer of a model; a stream on request.", ANY_TASK),
    Route("POST", f"{BELOW}/pipeline/feature-extraction", infer, "The vectors of texts.", VECTORS),
    Route("POST", f"{BELOW}/pipeline/sentence-similarity", sentence_similarity, "Cosines of sentences.", SENTENCES),
)
DIALECT = Dialect("huggingface", ROUTES, error, "Hugging Face", paths=re.compile(rb"/models/.*"))
