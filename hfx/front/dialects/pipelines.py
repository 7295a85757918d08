"""Keyword arguments of transformers' pipelines that do not change hfx's answers, by task.

Hugging Face's API and SageMaker's toolkit pass `parameters` to a pipeline unchanged. The arguments in the tables are
accepted with the values that describe what hfx does anyway: texts that are too long are cut, and padding has no effect.
Source: the pipelines of transformers 4.57.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hfx.client.calls import AnswerSettings
from hfx.front.fields import Fields, flag, refuse_unknown, refuse_unsupported, shown, whole_number
from hfx.front.refusals import Refusal
from hfx.metadata import INT32_MAX
from hfx.names import Task
from hfx.python_backends.tasks.question_answering import MOST_TOP_K

Values = Mapping[str, tuple[Any, ...]]
COUNTS = ("batch_size", "num_workers")  # these change only the speed
QUESTION_COUNTS = ("max_question_len",)  # the pipeline, too, ignores this with a fast tokenizer
CUT: Values = {"truncation": (True, "longest_first", "only_first")}
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
# All arguments of the pipelines. If the model's task does not have such an argument, the refusal has no "did you mean",
# because the caller has not misspelled it.
OTHERS = frozenset(
    {
        "aggregation_strategy", "candidate_labels", "delimiter", "doc_stride", "function_to_apply", "grouped_entities",
        "handle_impossible_answer", "ignore_labels", "ignore_subwords", "max_answer_len", "max_new_tokens",
        "multi_class", "multi_label", "normalize", "offset_mapping", "return_all_scores", "return_full_text",
        "return_text", "return_type", "stride", "targets", "temperature", "top_k", "top_p",
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


def take_arguments(task: Task, parameters: Fields, known: Collection[str], exported: Mapping[str, Any]) -> None:
    """Raise Refusal (400) for an argument that is not `known`, unless it has no effect.

    `exported` are the settings of the model's tokenizing step.
    """
    counts = (*COUNTS, *QUESTION_COUNTS) if task is Task.QUESTION_ANSWERING else COUNTS
    check_counts(parameters, counts)
    refuse_unsupported(parameters, ARGUMENTS[task])
    for name, setting in EXPORTED[task].items():
        if name in parameters and parameters[name] != exported.get(setting):
            fix = f"Send {exported.get(setting)!r} (the model was exported with it), or leave it out."
            raise Refusal(400, f"{name} is {shown(parameters[name])}. {fix}", param=name)
    taken = {*known, *counts, *ARGUMENTS[task], *EXPORTED[task]}
    for name in parameters:
        if name in OTHERS and name not in taken:
            raise Refusal(400, f"{name} is no parameter of this {task} model. Leave it out.", param=name)
    rest = {name: value for name, value in parameters.items() if name not in taken}
    refuse_unknown(rest, known)


def check_counts(parameters: Fields, names: Sequence[str] = COUNTS) -> None:
    """Raise Refusal (400) if a parameter in `names` is not a whole number."""
    for name in names:
        if name in parameters:
            whole_number(parameters, name, 0, INT32_MAX, 0)


def answer_settings(parameters: Fields) -> AnswerSettings:
    """Return the settings of question answering. Raises Refusal (400)."""
    settings: AnswerSettings = {}
    if (top_k := whole_number(parameters, "top_k", 1, MOST_TOP_K, 1)) > 1:  # older models lack this setting
        settings["top_k"] = top_k
    if "max_answer_len" in parameters:
        settings["max_answer_len"] = whole_number(parameters, "max_answer_len", 1, INT32_MAX, 1)
    if "doc_stride" in parameters:
        settings["doc_stride"] = whole_number(parameters, "doc_stride", 0, INT32_MAX, 0)
    if "handle_impossible_answer" in parameters:
        settings["handle_impossible_answer"] = flag(parameters, "handle_impossible_answer")
    return settings


def truncates(value: Any) -> bool:
    """Return whether a generator's `truncation` cuts long texts. Raises Refusal (400)."""
    allowed = {True: True, "longest_first": True, "only_first": True, False: False, "do_not_truncate": False}
    if not isinstance(value, bool | str) or value not in allowed:
        raise Refusal(400, f"truncation is {shown(value)}. Send true or false, or leave it out.", param="truncation")
    return allowed[value]
