"""A model's output tensors as plain values for JSON, and as lines for people.

One function a task. This file must not know where the values come from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from hfx.names import (
    ANSWER,
    EMBEDDING,
    END,
    ENTITIES,
    GENERATION_TASKS,
    LABEL,
    OUTPUT_LOG_PROBS,
    SCORE,
    START,
    TEXT_OUTPUT,
    Task,
)

SHOWN_NUMBERS = 4


def plain_values(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors without their batch dimension (arrays or lists) as JSON values, under the tensors' names.

    A tensor of one value becomes that value, except where more are usual: labels, their scores, an embedding and
    log-probabilities are lists. `entities` is the list that its JSON text stands for. A number that JSON can't carry
    (NaN) is null. Log-probabilities that nobody asked for, an empty tensor of a server, are left out.
    """
    lists = {LABEL, EMBEDDING, OUTPUT_LOG_PROBS, *([SCORE] if LABEL in outputs else [])}
    values = {name: _plain(name, value, name in lists) for name, value in outputs.items()}
    return {name: value for name, value in values.items() if name != OUTPUT_LOG_PROBS or value}


def _plain(name: str, value: Any, is_list: bool) -> Any:
    value = _json_value(value)
    if not is_list and isinstance(value, list) and len(value) == 1 and not isinstance(value[0], dict):
        value = value[0]
    if is_list and not isinstance(value, list):
        value = [value]
    return json.loads(value) if name == ENTITIES and isinstance(value, str) else value


def _json_value(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a numpy array or number
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer_lines(task: Task, result: Mapping[str, Any]) -> list[str]:
    """RESULT (from `plain_values`) as lines for people; a text without a finding gives one line that says so."""
    if task in GENERATION_TASKS:
        return result[TEXT_OUTPUT] if isinstance(result[TEXT_OUTPUT], list) else [result[TEXT_OUTPUT]]
    if task is Task.TOKEN_CLASSIFICATION:
        return [_entity_line(entity) for entity in result[ENTITIES]] or ["(no entities)"]
    if task is Task.QUESTION_ANSWERING:
        return [f"{result[ANSWER] or '(no answer)'}\t{_score(result[SCORE])}\t{result[START]}-{result[END]}"]
    if task is Task.FEATURE_EXTRACTION:
        return [_vector_line(result[EMBEDDING])]
    pairs = zip(result[LABEL], result[SCORE], strict=True)
    return ["\t".join(f"{label} {_score(score)}" for label, score in pairs)]


def _entity_line(entity: Mapping[str, Any]) -> str:
    where = f"{entity['start']}-{entity['end']}"
    return f"{entity['entity']}\t{entity['word']}\t{_score(entity['score'])}\t{where}"


def _vector_line(vector: list[float]) -> str:
    shown = " ".join(_score(number) for number in vector[:SHOWN_NUMBERS])
    more = f" … ({len(vector)} numbers; --json prints all)" if len(vector) > SHOWN_NUMBERS else ""
    return f"{shown}{more}"


def _score(number: float | None) -> str:
    return "?" if number is None else f"{number:.4f}"
