"""Requests as transformers' pipelines get them, and keyword arguments of pipelines that do not change hfx's answers.

Hugging Face's API and SageMaker's toolkit pass `parameters` to a pipeline unchanged. The arguments in the tables are
accepted with the values that describe what hfx does anyway: padding has no effect, and texts that are too long are cut.
With `truncation: false`, a request with such a text is refused.
Source: the pipelines of transformers 4.57.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hfx.client.calls import AnswerSettings, Call, LongTexts
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.entities import search
from hfx.front.fields import Fields, check_count
from hfx.front.refusals import invalid
from hfx.metadata import INT32_MAX
from hfx.names import LONG, Task
from hfx.python_backends.tasks.question_answering import MOST_TOP_K

Result = TypeVar("Result")
Values = Mapping[str, tuple[Any, ...]]
TOP = {"inputs", "parameters", "options", "stream"}
ALL_LABELS = INT32_MAX  # as `top_k`
COUNTS = ("batch_size", "num_workers")  # these change only the speed
QUESTION_COUNTS = ("max_question_len",)  # the pipeline, too, ignores this with a fast tokenizer
CUTTING, WHOLE = (True, "longest_first", "only_first"), (False, "do_not_truncate")  # values of `truncation`
CUT: Values = {"truncation": (*CUTTING, *WHOLE)}
PADDED: Values = {"padding": (True, False, "longest", "max_length", "do_not_pad"), "return_tensors": (False,)}
ARGUMENTS: Mapping[Task, Values] = {
    Task.TEXT_CLASSIFICATION: {**CUT, **PADDED},
    Task.TOKEN_CLASSIFICATION: {**CUT, **PADDED, "is_split_into_words": (False,)},
    Task.QUESTION_ANSWERING: {**PADDED, "truncation": (True, "only_second"), "align_to_words": (True,)},
    Task.FILL_MASK: {**CUT, **PADDED, "tokenizer_kwargs": ({}, {"truncation": True})},
    Task.FEATURE_EXTRACTION: {**CUT, **PADDED, "tokenize_kwargs": ({}, {"truncation": True})},
    Task.ZERO_SHOT_CLASSIFICATION: {**CUT, **PADDED},
    Task.TEXT_RANKING: {**CUT, **PADDED},
}
# Arguments that must have the values with which the model was exported, and their names in the tokenizing step's
# settings.
EXPORTED: Mapping[Task, Mapping[str, str]] = {
    **{task: {"max_length": "max_length"} for task in ARGUMENTS},
    Task.QUESTION_ANSWERING: {"max_seq_len": "max_length"},
    Task.ZERO_SHOT_CLASSIFICATION: {"max_length": "max_length", "hypothesis_template": "hypothesis_template"},
}
# All arguments of the pipelines and of GLiNER. If the model's task does not have such an argument, the refusal has no
# "did you mean", because the caller has not misspelled it.
OTHERS = frozenset(
    {
        "aggregation_strategy", "candidate_labels", "delimiter", "doc_stride", "flat_ner", "function_to_apply",
        "grouped_entities", "handle_impossible_answer", "ignore_labels", "ignore_subwords", "labels", "max_answer_len",
        "max_new_tokens", "multi_class", "multi_label", "nested", "normalize", "offset_mapping", "return_all_scores",
        "return_full_text", "return_text", "return_type", "stride", "targets", "temperature", "threshold", "top_k",
        "top_p",
        *COUNTS, *QUESTION_COUNTS, *(name for table in (*ARGUMENTS.values(), *EXPORTED.values()) for name in table),
    }
)  # fmt: skip
# Arguments of the pipelines that generate. A text that is too long is cut only if `truncation` is sent: see
# `truncates`.
GENERATING: Values = {
    "padding": PADDED["padding"],
    "return_tensors": (False,),
    "return_text": (True,),
    "return_type": (),
    "handle_long_generation": (),
    "prefix": ("",),
    "skip_special_tokens": (True,),
    "continue_final_message": (False,),
    "tokenizer_encode_kwargs": ({}, {"truncation": True}),
    "tools": ([],),
    "documents": ([],),
}


@dataclass(frozen=True)
class Inputs:
    """A request to `model` as a pipeline gets it: a single input or a list of inputs, and the parameters."""

    request: DialectRequest
    model: ServedModel
    inputs: Any
    parameters: Fields

    @property
    def is_list(self) -> bool:
        """Whether the inputs are a list. The answers are then a list, too."""
        return isinstance(self.inputs, list)

    @property
    def texts(self) -> list[str]:
        """The inputs as a list of texts. Raises Refusal (400, 413) if they are none."""
        return Fields(inputs=self.inputs).texts("inputs")

    @property
    def reading(self) -> LongTexts:
        """The settings of long texts. A caller who sends `truncation` and none of them wants them cut."""
        settings: LongTexts = {}
        if "stride" in self.parameters:
            settings["stride"] = self.parameters.number("stride", 0, low=0)
        if "long" in self.parameters:
            settings["long"] = self.parameters.text("long")
        cut = self.parameters.get("truncation") in CUTTING and self.model.task is Task.TOKEN_CLASSIFICATION
        cut = cut and LONG in self.model.metadata.input_types
        return settings or ({"long": "truncate"} if cut else {})

    @property
    def search_parameters(self) -> tuple[str, ...]:
        """The parameters that name the entities to find. Two of them have the names of tensors, or those of gliner."""
        named = "candidate_labels" if "candidate_labels" in self.parameters else "labels"
        nesting = "nested" if "nested" in self.parameters else "flat_ner"
        return (named, nesting, "threshold", "multi_label") if self.model.metadata.needs_labels else ()

    @property
    def search(self) -> dict[str, Any]:
        """The arguments of `calls.label_tokens`. Raises Refusal (400), also if labels are missing."""
        if not self.search_parameters:
            return {**self.reading}
        return search(self.request, self.parameters, self.search_parameters[0], "threshold") | {**self.reading}

    @property
    def questions(self) -> list[tuple[str, str]]:
        """The inputs as pairs of a question and a context. Raises Refusal (400, 413) if they are none."""
        pairs = self.inputs if self.is_list and self.inputs else [self.inputs]
        check_count(len(pairs), "inputs")
        return [_question(pair) for pair in pairs]

    async def results(self, call: Callable[[str], Call[Result]]) -> list[Result]:
        """Return the result of `call` for each text in the inputs."""
        return await self.request.rows(self.model, call, self.texts)

    def check_parameters(self, *known: str) -> None:
        """Raise Refusal (400) for a parameter that is not `known`, unless it has no effect."""
        task, parameters, exported = self.model.task, self.parameters, EXPORTED[self.model.task]
        counts = (*COUNTS, *QUESTION_COUNTS) if task is Task.QUESTION_ANSWERING else COUNTS
        check_counts(parameters, counts)
        parameters.refuse_unsupported(ARGUMENTS[task])
        if parameters.get("truncation") in WHOLE:
            self.request.inference.uncut = "truncation"
        for name in [name for name in exported if name in parameters]:
            value = self.request.files.text_settings(self.model).get(exported[name])
            if parameters[name] != value:
                fix = "Leave it out."
                if value is not None:
                    fix = f"Send {value!r} (the model was exported with it), or leave it out."
                raise parameters.refusal(name, fix)
        taken = {*known, *counts, *ARGUMENTS[task], *exported}
        for name in parameters:
            if name in OTHERS and name not in taken:
                raise invalid(f"{name} is no parameter of this {task} model. Leave it out.", name)
        Fields({name: value for name, value in parameters.items() if name not in taken}).refuse_unknown(known)

    def check_equal(self, name: str, value: Any, reason: str = "the model was exported with it") -> None:
        """Raise Refusal (400) if the parameter `name` is another than `value`."""
        if self.parameters.get(name) not in (None, value):
            raise self.parameters.refusal(name, f"Send {value!r} ({reason}), or leave it out.")


def _question(pair: Any) -> tuple[str, str]:
    fields = Fields(pair) if isinstance(pair, dict) else Fields()
    if fields.keys() != {"question", "context"}:
        raise Fields(inputs=pair).refusal("inputs", "Send a question and a context.")
    return fields.text("question"), fields.text("context")


def inputs_of(request: DialectRequest, model: ServedModel, fields: Fields) -> Inputs:
    """Return the inputs and parameters in `fields`; for feature-extraction, other fields are parameters, too."""
    request.name_texts("inputs")
    fields.refuse_unknown(TOP | fields.keys() if model.task is Task.FEATURE_EXTRACTION else TOP)
    beside = {name: value for name, value in fields.items() if name not in TOP}
    sent = {**beside, **fields.object("parameters")}
    present = Fields({name: value for name, value in sent.items() if value is not None})
    return Inputs(request, model, fields.get("inputs"), present)


def check_counts(parameters: Fields, names: Sequence[str] = COUNTS) -> None:
    """Raise Refusal (400) if a parameter in `names` is not a whole number."""
    for name in names:
        parameters.number(name, 0, low=0)


def answer_settings(parameters: Fields) -> AnswerSettings:
    """Return the settings of question answering. Raises Refusal (400)."""
    settings: AnswerSettings = {}
    if (top_k := parameters.number("top_k", 1, high=MOST_TOP_K)) > 1:  # older models lack this setting
        settings["top_k"] = top_k
    if "max_answer_len" in parameters:
        settings["max_answer_len"] = parameters.number("max_answer_len", 1)
    if "doc_stride" in parameters:
        settings["doc_stride"] = parameters.number("doc_stride", 0, low=0)
    if "handle_impossible_answer" in parameters:
        settings["handle_impossible_answer"] = parameters.flag("handle_impossible_answer")
    return settings


def truncates(parameters: Fields) -> bool:
    """Return whether a generator's `truncation` cuts long texts. Raises Refusal (400)."""
    allowed = {True: True, "longest_first": True, "only_first": True, False: False, "do_not_truncate": False}
    value = parameters.get("truncation", False)
    if not isinstance(value, bool | str) or value not in allowed:
        raise parameters.refusal("truncation", "Send true or false, or leave it out.")
    return allowed[value]
