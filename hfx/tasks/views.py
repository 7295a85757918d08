"""Each task's view: how its answers are shown, the columns of its batch jobs, and the form of its requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfx import names
from hfx.names import Task
from hfx.python_backends import tasks
from hfx.tasks.task import (
    Answer,
    Cell,
    Column,
    FormField,
    TaskView,
    json_output,
    output,
    shown_score,
    text_field,
)

DOCUMENT = (
    "Anna went to Oslo by train. The journey took two hours longer than planned, because snow had blocked the line. "
    "In the evening she walked through a garden, and wrote to her friends that the town was lovely all the same."
)

# Text classification and zero-shot classification: labels and their scores

PROBABILITY = "probability_"


def _label_lines(answer: Answer) -> list[str]:
    """Return all labels with their scores, on one line."""
    pairs = zip(answer[names.LABEL], answer[names.SCORE], strict=True)
    return ["\t".join(f"{label} {shown_score(score)}" for label, score in pairs)]


def _label_columns(labels: Sequence[str]) -> tuple[Column, ...]:
    """Return the best label, its score, and a column for each label."""
    return (
        Column(names.LABEL, "text", lambda answer: answer[names.LABEL][0]),
        Column(names.SCORE, "number", lambda answer: answer[names.SCORE][0]),
        *(_probability(label) for label in labels),
    )


def _probability(label: str) -> Column:
    def cell(answer: Answer) -> Cell:
        score: float = answer[names.SCORE][answer[names.LABEL].index(label)]
        return score

    return Column(PROBABILITY + label, "number", cell)


NUMBER_OF_LABELS = FormField(
    "parameters.top_k", "top_k", "integer", "number of labels", None, "all", "a whole number from 1"
)
CANDIDATES = FormField(
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

# Token classification: the entities of a text; the fields of a search are for models that take them

SEARCH = (
    replace(CANDIDATES, label="Labels", value="person\nplace\norganization"),
    FormField("parameters.threshold", "threshold", "number", "least score", default=0.5, allowed="a number above 0"),
    replace(MULTI_LABEL, path="parameters.nested", label="nested", help="an entity may be inside another"),
    replace(MULTI_LABEL, help="an entity may have several labels"),
)


def _entity_line(entity: Mapping[str, Any]) -> str:
    """An entity, its words, its score and its place in the text."""
    where = f"{entity['start']}-{entity['end']}"
    return f"{entity['entity']}\t{entity['word']}\t{shown_score(entity['score'])}\t{where}"


# Feature extraction: the vector of a text

SHOWN_NUMBERS = 4  # of a vector
EMBEDDED = FormField(
    "inputs",
    "Texts",
    "lines",
    "One in each line; several are compared.",
    "What a lovely garden!\nThe flowers are beautiful.\nThe train is late.",
    is_required=True,
)


def _vector_lines(answer: Answer) -> list[str]:
    """Return the first numbers of a text's vector, or the number and length of the vectors of tokens."""
    vector = answer[names.EMBEDDING]
    if vector and isinstance(vector[0], list):
        return [f"{len(vector)} vectors of {len(vector[0])} numbers (--json prints all)"]
    shown = " ".join(shown_score(number) for number in vector[:SHOWN_NUMBERS])
    more = f" … ({len(vector)} numbers; --json prints all)" if len(vector) > SHOWN_NUMBERS else ""
    return [f"{shown}{more}"]


# Question answering: the part of a context that answers a question


NUMBER_OF_ANSWERS = FormField("parameters.top_k", "top_k", "integer", "number of answers", 1, 1, "from 1 to 100")
MAX_ANSWER_LEN = FormField(
    "parameters.max_answer_len",
    "max_answer_len",
    "integer",
    "most tokens of an answer",
    15,
    15,
    "a whole number from 1",
)
NO_ANSWER = replace(
    MULTI_LABEL,
    path="parameters.handle_impossible_answer",
    label="handle_impossible_answer",
    help="the answer may be empty",
)


def _answer_lines(answer: Answer) -> list[str]:
    """Return each answer with its score and its place, on a line of its own."""
    return [_answer_line(each) for each in answer.get(names.ANSWERS, [answer])]


def _answer_line(answer: Mapping[str, Any]) -> str:
    where = f"{answer[names.START]}-{answer[names.END]}"
    return f"{answer[names.ANSWER] or '(no answer)'}\t{shown_score(answer[names.SCORE])}\t{where}"


# Text ranking: the score of a text for a query, or a pair's score for each label

RANKED = FormField(
    "inputs.texts",
    "Texts",
    "lines",
    "One in each line.",
    "Anna went to Oslo by train.\nThe garden was lovely.\nSnow had blocked the line.",
    is_required=True,
)


def _score_lines(answer: Answer) -> list[str]:
    """Return the scores on one line."""
    scores = answer[names.SCORE]
    return ["\t".join(map(shown_score, scores if isinstance(scores, list) else [scores]))]


# Fill-mask: the tokens that fit in place of each mask of a text

# The mask tokens of BERT's, RoBERTa's and XLM's tokenizers. A model has one of them; the others are words to it.
MASKED = "[MASK] <mask> <special1>"
BEST_TOKENS = FormField("parameters.top_k", "top_k", "integer", "the best tokens only", 5, 5, "a whole number from 1")
TARGETS = FormField("parameters.targets", "targets", "lines", "these tokens only; one in each line")


def fills(answer: Answer) -> list[list[dict[str, Any]]]:
    """Return, for each mask, a list of objects with score, token, token_str and sequence.

    The answer may have them as the JSON text that the tensor holds.
    """
    value = answer[names.FILLS]
    rows: list[list[dict[str, Any]]] = json.loads(value) if isinstance(value, str) else value
    return rows


def _fill_lines(answer: Answer) -> list[str]:
    """Return the tokens of each mask, one mask on a line."""
    return ["\t".join(f"{each['token_str']} {shown_score(each['score'])}" for each in row) for row in fills(answer)]


# The tasks of generators, which differ by what they were trained for


def _text_lines(answer: Answer) -> list[str]:
    """Return the text, or the texts, each on a line."""
    text = answer[names.TEXT_OUTPUT]
    return text if isinstance(text, list) else [text]


def _generator(column: str, text: str) -> TaskView:
    return TaskView(
        tasks.Task(names.TEXT_OUTPUT, options={names.TOP_K: int, names.LONG: str}),
        lines=_text_lines,
        columns=lambda labels: (Column(column, "text", lambda answer: answer[names.TEXT_OUTPUT]),),
        form=(text_field(text),),
    )


# If only the tensors of a model are known, its task is the first one that they fit.
TASKS: Mapping[Task, TaskView] = {
    Task.ZERO_SHOT_CLASSIFICATION: TaskView(
        tasks.TASKS[Task.ZERO_SHOT_CLASSIFICATION],
        lines=_label_lines,
        columns=_label_columns,
        has_all_labels=True,
        form=(text_field("Anna went to Oslo by train."), CANDIDATES, MULTI_LABEL),
        example="'A goal in the last minute.' --labels sports,food",
    ),
    Task.TEXT_CLASSIFICATION: TaskView(
        tasks.TASKS[Task.TEXT_CLASSIFICATION],
        lines=_label_lines,
        columns=_label_columns,
        has_all_labels=True,
        form=(text_field("What a lovely garden!"), NUMBER_OF_LABELS),
    ),
    Task.TOKEN_CLASSIFICATION: TaskView(
        tasks.TASKS[Task.TOKEN_CLASSIFICATION],
        lines=lambda answer: [_entity_line(entity) for entity in answer[names.ENTITIES]] or ["(no entities)"],
        columns=lambda labels: (json_output(names.ENTITIES),),
        form=(text_field("Anna met Erik in Oslo, and they travelled to Berlin."), *SEARCH),
    ),
    Task.FEATURE_EXTRACTION: TaskView(
        tasks.TASKS[Task.FEATURE_EXTRACTION],
        lines=_vector_lines,
        columns=lambda labels: (output(names.EMBEDDING, "numbers"),),
        form=(EMBEDDED,),
    ),
    Task.QUESTION_ANSWERING: TaskView(
        tasks.TASKS[Task.QUESTION_ANSWERING],
        lines=_answer_lines,
        columns=lambda labels: (
            output(names.ANSWER, "text"),
            output(names.SCORE, "number"),
            output(names.START, "integer"),
            output(names.END, "integer"),
        ),
        form=(
            FormField("inputs.question", "Question", "line", value="Where did Anna go?", is_required=True),
            FormField("inputs.context", "Context", "text", value=DOCUMENT, is_required=True),
            NUMBER_OF_ANSWERS,
            MAX_ANSWER_LEN,
            NO_ANSWER,
        ),
        example="'Who came?' --context 'Ada came.'",
    ),
    Task.TEXT_RANKING: TaskView(
        tasks.TASKS[Task.TEXT_RANKING],
        lines=_score_lines,
        columns=lambda labels: (output(names.SCORE, "number"),),
        form=(FormField("inputs.query", "Query", "line", value="How did she travel?", is_required=True), RANKED),
        example="'A garden.' 'A train.' --query 'Which plants grow here?'",
    ),
    Task.FILL_MASK: TaskView(
        tasks.TASKS[Task.FILL_MASK],
        lines=_fill_lines,
        columns=lambda labels: (json_output(names.FILLS),),
        form=(text_field("Anna went to [MASK] by train."), BEST_TOKENS, TARGETS),
        example="'Anna went to [MASK] by train.'",
        probe=MASKED,
    ),
    Task.TEXT_GENERATION: _generator("generated_text", "Once upon a time"),
    Task.SUMMARIZATION: _generator("summary", DOCUMENT),
    Task.TEXT2TEXT_GENERATION: _generator("generated_text", DOCUMENT),
    Task.TRANSLATION: _generator("translation", "What a lovely garden!"),
}
