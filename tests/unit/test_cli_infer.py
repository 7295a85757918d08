"""`hfx infer`: options to tensors, output tensors to values and lines; no server needed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.cli.answers import answer_lines, plain_values
from hfx.cli.infer import Choices, request_of
from hfx.errors import UsageError
from hfx.names import Task

NONE = Choices(labels=None, context=None, top_k=None, multi_label=None)


def choices(**given: Any) -> Choices:
    return Choices(**{"labels": None, "context": None, "top_k": None, "multi_label": None, **given})


@pytest.mark.parametrize(
    ("task", "given", "request_"),
    [
        (Task.TEXT_CLASSIFICATION, {}, {"text_input": ["t"]}),
        (Task.TEXT_CLASSIFICATION, {"top_k": 2}, {"text_input": ["t"], "top_k": [2]}),
        (Task.TOKEN_CLASSIFICATION, {}, {"text_input": ["t"]}),
        (Task.FEATURE_EXTRACTION, {}, {"text_input": ["t"]}),
        (Task.QUESTION_ANSWERING, {"context": "c"}, {"question": ["t"], "context": ["c"]}),
        (
            Task.ZERO_SHOT_CLASSIFICATION,
            {"labels": ["a", "b"], "multi_label": True},
            {"text_input": ["t"], "candidate_labels": ["a", "b"], "multi_label": [True]},
        ),
        (Task.TEXT_GENERATION, {}, {"text_input": ["t"]}),
        (
            Task.SUMMARIZATION,
            {"max_tokens": 9, "num_beams": 4, "early_stopping": "never", "length_penalty": 2.0, "long": "chunk"},
            {
                "text_input": ["t"],
                "max_tokens": [9],
                "num_beams": [4],
                "early_stopping": ["never"],
                "length_penalty": [2.0],
                "long": ["chunk"],
            },
        ),
        (
            Task.TEXT2TEXT_GENERATION,
            {"top_k": 0, "do_sample": False, "seed": 0, "stop_words": ["a", "b"], "min_p": 0.0},
            {
                "text_input": ["t"],
                "top_k": [0],
                "do_sample": [False],
                "seed": [0],
                "stop_words": ["a", "b"],
                "min_p": [0.0],
            },
        ),
    ],
)
def test_a_text_and_options_become_tensors(task: Task, given: dict[str, Any], request_: dict[str, Any]) -> None:
    assert request_of(task, "t", choices(**given)) == request_


@pytest.mark.parametrize(
    ("task", "given", "option"),
    [
        (Task.TEXT_CLASSIFICATION, {"labels": ["a"]}, "--labels"),
        (Task.TEXT_CLASSIFICATION, {"context": "c"}, "--context"),
        (Task.TOKEN_CLASSIFICATION, {"top_k": 1}, "--top-k"),
        (Task.FEATURE_EXTRACTION, {"multi_label": False}, "--multi-label"),
        (Task.QUESTION_ANSWERING, {"context": "c", "top_k": 1}, "--top-k"),
        (Task.TEXT_CLASSIFICATION, {"max_tokens": 5}, "--max-tokens"),
        (Task.TEXT_CLASSIFICATION, {"do_sample": False}, "--sample"),
        (Task.FEATURE_EXTRACTION, {"stop_words": ["x"]}, "--stop"),
        (Task.ZERO_SHOT_CLASSIFICATION, {"return_log_probs": True}, "--log-probs"),
        (Task.SUMMARIZATION, {"labels": ["a"]}, "--labels"),
        (Task.TEXT_GENERATION, {"context": "c"}, "--context"),
        (Task.TEXT2TEXT_GENERATION, {"multi_label": True}, "--multi-label"),
    ],
)
def test_an_option_of_another_task_is_refused(task: Task, given: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        request_of(task, "t", choices(**given))


@pytest.mark.parametrize(
    ("task", "option"), [(Task.QUESTION_ANSWERING, "--context"), (Task.ZERO_SHOT_CLASSIFICATION, "--labels")]
)
def test_an_option_that_the_task_needs_is_asked_for(task: Task, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_of(task, "t", NONE)
    assert option in caught.value.fix


@pytest.mark.parametrize(
    "words",
    [
        ["infer", "m", "t", "--repository", "r"],
        ["infer", "m", "t", "--local", "--url", "127.0.0.1:1"],
        ["infer", "m", "t", "--url", "http://x:1"],
        ["infer", "m", "t", "--timeout", "0"],
    ],
)
def test_options_that_contradict_each_other_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("Error: ")


def test_classification_values_are_lists_even_of_one() -> None:
    outputs = {
        "label": np.array([b"a"], np.object_),
        "score": np.array([0.5], np.float32),
        "truncated_tokens": np.array([3], np.int32),
    }
    assert plain_values(outputs) == {"label": ["a"], "score": [0.5], "truncated_tokens": 3}


def test_values_of_one_are_single_elsewhere() -> None:
    outputs = {name: np.array([value], np.int32) for name, value in (("start", 1), ("end", 4))}
    outputs |= {"answer": np.array(["né".encode()], np.object_), "score": np.array([0.25], np.float32)}
    assert plain_values(outputs) == {"start": 1, "end": 4, "answer": "né", "score": 0.25}


def test_entities_are_the_list_that_their_json_stands_for() -> None:
    assert plain_values({"entities": np.array([b'[{"word": "x"}]'], np.object_)}) == {"entities": [{"word": "x"}]}
    assert plain_values({"entities": "[]"}) == {"entities": []}


def test_plain_values_of_another_source_stay_as_they_are() -> None:
    values = {"label": ["a", "b"], "score": [0.5, 0.5], "truncated_tokens": 0}
    assert plain_values(values) == values


def test_log_probabilities_are_a_list_even_of_one() -> None:
    values = plain_values({"text_output": "x", "output_tokens": 1, "output_log_probs": [-0.5]})
    assert values == {"text_output": "x", "output_tokens": 1, "output_log_probs": [-0.5]}


def test_a_number_that_json_lacks_is_null() -> None:
    values = plain_values({"embedding": np.array([np.nan, np.inf, 1], np.float32)})
    assert json.loads(json.dumps(values, allow_nan=False)) == {"embedding": [None, None, 1.0]}


@pytest.mark.parametrize(
    ("task", "result", "lines"),
    [
        (Task.TEXT_CLASSIFICATION, {"label": ["a", "b"], "score": [0.75, 0.25]}, ["a 0.7500\tb 0.2500"]),
        (Task.TOKEN_CLASSIFICATION, {"entities": []}, ["(no entities)"]),
        (
            Task.TOKEN_CLASSIFICATION,
            {"entities": [{"entity": "PER", "word": "Zoë", "score": 0.5, "start": 0, "end": 3}]},
            ["PER\tZoë\t0.5000\t0-3"],
        ),
        (Task.QUESTION_ANSWERING, {"answer": "x", "score": 0.5, "start": 2, "end": 3}, ["x\t0.5000\t2-3"]),
        (Task.FEATURE_EXTRACTION, {"embedding": [1.0, None]}, ["1.0000 ?"]),
        (Task.SUMMARIZATION, {"text_output": "in\nshort"}, ["in\nshort"]),
        (Task.TEXT_GENERATION, {"text_output": ["one", "two"]}, ["one", "two"]),
    ],
)
def test_people_get_lines(task: Task, result: dict[str, Any], lines: list[str]) -> None:
    assert answer_lines(task, result) == lines
