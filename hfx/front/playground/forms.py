"""GET /models: the served models, and the fields of a request to each, which the playground makes its form of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Refusal, dumped
from hfx.names import ADD_SPECIAL_TOKENS, GENERATION_TASKS, LOGPROBS, LONG, RETURN_LOG_PROBS, SEED, Task
from hfx.python_backends.engine.generation_settings import CHUNKS, SETTINGS, TRANSLATION, Setting, of_scope

Kind = Literal["text", "line", "lines", "integer", "number", "choice"]
KINDS: Mapping[str, Kind] = {"INT32": "integer", "UINT64": "integer", "FP32": "number", "BOOL": "choice"}
LANGUAGES = of_scope(TRANSLATION)
COMMON = ("max_tokens", "temperature", "top_p", "num_beams", *LANGUAGES)  # the others are folded away
UNSHOWN = (RETURN_LOG_PROBS, LOGPROBS, ADD_SPECIAL_TOKENS)  # the page shows texts, not their tokens


@dataclass(frozen=True)
class FormField:
    """A field of a request to POST /models/NAME; `path` is its place in the JSON, such as inputs.question.

    `kind`: a text of several lines, of one line, a list with an item in each line, a number, or one of `choices`.
    `value` is what the form begins with, `default` what holds for a field that is not sent. `allowed` is what the
    server takes.
    """

    path: str
    label: str
    kind: Kind
    help: str = ""
    value: Any = None
    default: Any = None
    allowed: str = ""
    choices: tuple[Any, ...] = ()
    is_required: bool = False
    is_common: bool = True


def _text(value: str) -> FormField:
    return FormField("inputs", "Text", "text", value=value, is_required=True)


DOCUMENT = (
    "Anna went to Oslo by train. The journey took two hours longer than planned, because snow had blocked the line. "
    "In the evening she walked through a garden, and wrote to her friends that the town was lovely all the same."
)
QUESTION = FormField("inputs.question", "Question", "line", value="Where did Anna go?", is_required=True)
CONTEXT = FormField("inputs.context", "Context", "text", value=DOCUMENT, is_required=True)
TEXTS = FormField(
    "inputs",
    "Texts",
    "lines",
    "One in each line; several are compared.",
    "What a lovely garden!\nThe flowers are beautiful.\nThe train is late.",
    is_required=True,
)
LABELS = FormField(
    "parameters.candidate_labels",
    "Candidate labels",
    "lines",
    "One in each line.",
    "travel\ngardening\nsports",
    is_required=True,
)
MULTI_LABEL = FormField(
    "parameters.multi_label",
    "multi_label",
    "choice",
    "each label is judged by itself",
    default=False,
    choices=(True, False),
)
QUERY = FormField("inputs.query", "Query", "line", value="How did she travel?", is_required=True)
RANKED = FormField(
    "inputs.texts",
    "Texts",
    "lines",
    "One in each line.",
    "Anna went to Oslo by train.\nThe garden was lovely.\nSnow had blocked the line.",
    is_required=True,
)
TOP_K = FormField("parameters.top_k", "top_k", "integer", "the best labels only", 10, "all", "a whole number from 1")
INPUTS: Mapping[Task, tuple[FormField, ...]] = {
    Task.TEXT_CLASSIFICATION: (_text("What a lovely garden!"), TOP_K),
    Task.TOKEN_CLASSIFICATION: (_text("Anna met Erik in Oslo, and they travelled to Berlin."),),
    Task.QUESTION_ANSWERING: (QUESTION, CONTEXT),
    Task.FEATURE_EXTRACTION: (TEXTS,),
    Task.ZERO_SHOT_CLASSIFICATION: (_text("Anna went to Oslo by train."), LABELS, MULTI_LABEL),
    Task.TEXT_RANKING: (QUERY, RANKED),
    Task.TEXT_GENERATION: (_text("Once upon a time"),),
    Task.SUMMARIZATION: (_text(DOCUMENT),),
    Task.TEXT2TEXT_GENERATION: (_text(DOCUMENT),),
    Task.TRANSLATION: (_text("What a lovely garden!"),),
}


async def list_models(request: DialectRequest) -> bytes:
    """GET /models."""
    models = await request.inference.catalog.models()
    return dumped({"models": [described(model, request.files) for model in models]})


def described(model: ServedModel, files: ModelFiles) -> dict[str, Any]:
    """A model: name, task, checkpoint and precision (null where the repository does not say), chat, and its fields."""
    manifest: Mapping[str, Any] = {}
    with suppress(Refusal):
        manifest = files.manifest(model)
    fields = (*INPUTS.get(model.task, ()), *_settings(model, files))
    return {
        "name": model.name,
        "task": model.task,
        "source": manifest.get("source", {}).get("id"),
        "precision": manifest.get("precision"),
        "has_chat": _has_chat(model, files),
        "fields": [asdict(field) for field in fields],
    }


def _has_chat(model: ServedModel, files: ModelFiles) -> bool:
    with suppress(Refusal):
        return model.task in GENERATION_TASKS and files.chat(model) is not None
    return False


def _settings(model: ServedModel, files: ModelFiles) -> tuple[FormField, ...]:
    """The settings that a generator can honour, with its own defaults; all of them where its files can't be read."""
    if model.task not in GENERATION_TASKS:
        return ()
    configuration: Mapping[str, Any] = {}
    with suppress(Refusal):
        configuration = files.generation(model)
    served = [setting for setting in SETTINGS.values() if setting.dtype and setting.name not in UNSHOWN]
    return tuple(
        _setting_field(setting, configuration) for setting in served if _is_honoured(setting.name, configuration)
    )


def _is_honoured(name: str, configuration: Mapping[str, Any]) -> bool:
    if name in LANGUAGES:
        return bool(configuration.get("languages"))
    return name not in of_scope(CHUNKS) or configuration.get("max_source") is not None


def _setting_field(setting: Setting, configuration: Mapping[str, Any]) -> FormField:
    choices = _choices(setting, configuration)
    return FormField(
        f"parameters.{setting.name}",
        setting.name,
        "lines" if setting.is_list else "choice" if choices else KINDS.get(setting.dtype, "line"),
        f"{setting.text}; one in each line" if setting.is_list else setting.text,
        default=_default(setting, configuration),
        allowed=setting.allowed,
        choices=choices,
        is_common=setting.name in COMMON,
    )


def _default(setting: Setting, configuration: Mapping[str, Any]) -> Any:
    if setting.name == SEED:
        return None  # drawn for each request
    if setting.name == LONG and configuration:
        return configuration["defaults"].get(LONG, "truncate" if configuration["max_source"] is not None else "error")
    return configuration.get("defaults", {}).get(setting.name, setting.default)


def _choices(setting: Setting, configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    if setting.name in LANGUAGES:
        return tuple(sorted(configuration["languages"]["ids"]))
    has_chunks = configuration.get("max_source") is not None
    return tuple(choice for choice in setting.choices if choice != "chunk" or has_chunks)
