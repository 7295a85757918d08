"""`hfx infer` without a server: options and entries become tensors, output tensors become values and lines."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from hfx.answering import Request, plain_values
from hfx.cli import main
from hfx.cli.infer_options import EncoderOptions, GenerationOptions, request_of, settings
from hfx.cli.reading import Entry
from hfx.client import ModelMetadata, TensorMetadata
from hfx.errors import UsageError
from hfx.exporter.generation.folders import INPUTS as GENERATOR_INPUTS
from hfx.names import Task
from hfx.python_backends.engine.generation_settings import ALIASES
from hfx.tasks import TASKS

TENSORS = [
    *(TensorMetadata(name, "BYTES", (-1, 1)) for name in ("question", "context", "query")),
    TensorMetadata("candidate_labels", "BYTES", (-1, -1)),
    *(TensorMetadata(name, "BOOL", (-1, 1)) for name in ("multi_label", "raw_scores", "nested")),
    TensorMetadata("threshold", "FP32", (-1, 1)),
    *(TensorMetadata(each.name, each.data_type[5:].replace("STRING", "BYTES"), (-1, *each.dims))
      for each in GENERATOR_INPUTS),
]  # fmt: skip
MODEL = ModelMetadata("m", tuple(TENSORS), ())


def chosen(task: Task, **given: Any) -> Request:
    mine = {field.name for field in fields(EncoderOptions)}
    return settings(
        task,
        EncoderOptions(**{name: value for name, value in given.items() if name in mine}),
        GenerationOptions(**{name: value for name, value in given.items() if name not in mine}),
    )


def asked(task: Task, content: Any, **given: Any) -> Request:
    return request_of(task, Entry("", content), chosen(task, **given), MODEL)


@pytest.mark.parametrize(
    ("task", "given", "request_"),
    [
        (Task.TEXT_CLASSIFICATION, {}, {"text_input": ["t"]}),
        (Task.TEXT_CLASSIFICATION, {"top_k": 2}, {"text_input": ["t"], "top_k": [2]}),
        (Task.QUESTION_ANSWERING, {"context": "c"}, {"question": ["t"], "context": ["c"]}),
        (Task.TEXT_RANKING, {"query": "q", "raw_scores": True},
         {"text_input": ["t"], "query": ["q"], "raw_scores": [True]}),
        (
            Task.ZERO_SHOT_CLASSIFICATION,
            {"candidate_labels": "a, b,", "multi_label": True},
            {"text_input": ["t"], "candidate_labels": ["a", "b"], "multi_label": [True]},
        ),
        (
            Task.TOKEN_CLASSIFICATION,
            {"candidate_labels": "a,b", "threshold": 0.3, "nested": True, "multi_label": False},
            {"text_input": ["t"], "candidate_labels": ["a", "b"], "threshold": [0.3], "nested": [True],
             "multi_label": [False]},
        ),
        (
            Task.SUMMARIZATION,
            {"max_tokens": 9, "early_stopping": "never", "length_penalty": 2.0, "long": "chunk", "target_lang": "de"},
            {"text_input": ["t"], "max_tokens": [9], "early_stopping": ["never"], "length_penalty": [2.0],
             "long": ["chunk"], "target_lang": ["de"]},
        ),
        (
            Task.TEXT2TEXT_GENERATION,
            {"top_k": 0, "do_sample": False, "seed": 0, "stop_words": ["a", "b"], "min_p": 0.0},
            {"text_input": ["t"], "top_k": [0], "do_sample": [False], "seed": [0], "stop_words": ["a", "b"],
             "min_p": [0.0]},
        ),
    ],
)  # fmt: skip
def test_a_text_and_options_become_the_tensors_of_the_task(
    task: Task, given: dict[str, Any], request_: dict[str, Any]
) -> None:
    assert asked(task, "t", **given) == request_


def test_every_option_of_generators_is_named_like_its_tensor() -> None:
    tensors = {each.name for each in GENERATOR_INPUTS}
    assert {field.name for field in fields(GenerationOptions)} - tensors == {"num_return_sequences"}


def test_every_setting_of_generators_is_an_option() -> None:
    options = {field.name for group in (EncoderOptions, GenerationOptions) for field in fields(group)}
    others = {"text_input", "stream", "timeout_ms", "return_num_input_tokens", "return_num_output_tokens"}
    assert {each.name for each in GENERATOR_INPUTS} - options <= {*others, *ALIASES}


@pytest.mark.parametrize(
    ("task", "given", "option"),
    [
        (Task.TEXT_CLASSIFICATION, {"candidate_labels": "a"}, "--labels"),
        (Task.TOKEN_CLASSIFICATION, {"top_k": 1}, "--top-k"),
        (Task.TEXT_CLASSIFICATION, {"query": "q"}, "--query"),
        (Task.FEATURE_EXTRACTION, {"multi_label": False}, "--multi-label"),
        (Task.TEXT_CLASSIFICATION, {"max_tokens": 5}, "--max-tokens"),
        (Task.FEATURE_EXTRACTION, {"stop_words": ["x"]}, "--stop"),
        (Task.TEXT_CLASSIFICATION, {"target_lang": "fr"}, "--target-lang"),
        (Task.TEXT2TEXT_GENERATION, {"multi_label": True}, "--multi-label"),
    ],
)
def test_an_option_of_another_task_is_refused(task: Task, given: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        chosen(task, **given)


@pytest.mark.parametrize(
    ("task", "option"),
    [
        (Task.QUESTION_ANSWERING, "--context"),
        (Task.ZERO_SHOT_CLASSIFICATION, "--labels"),
        (Task.TOKEN_CLASSIFICATION, "--labels"),  # of a model that takes labels, as MODEL does
    ],
)
def test_a_missing_option_of_the_task_is_named(task: Task, option: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(task, "t")
    assert option in caught.value.fix


@pytest.mark.parametrize(
    ("task", "content", "options", "request_"),
    [
        (Task.SUMMARIZATION, {"text_input": "t", "max_tokens": 5}, {"max_tokens": 9, "num_beams": 2},
         {"text_input": ["t"], "max_tokens": [5], "num_beams": [2]}),
        (Task.QUESTION_ANSWERING, {"question": "q"}, {"context": "c"}, {"question": ["q"], "context": ["c"]}),
        (Task.QUESTION_ANSWERING, {"question": "q", "context": "d"}, {"context": "c"},
         {"question": ["q"], "context": ["d"]}),
        (Task.TEXT_GENERATION, {"text_input": ["t"], "seed": 2**64 - 1, "stop_words": "x", "top_k": None}, {},
         {"text_input": ["t"], "seed": [2**64 - 1], "stop_words": ["x"]}),
        (Task.TEXT_GENERATION, {"text_input": "t", "stop_words": ["x", "y"]}, {},
         {"text_input": ["t"], "stop_words": ["x", "y"]}),
    ],
)  # fmt: skip
def test_an_object_has_its_own_values_alone_or_in_lists_and_the_options_for_the_rest(
    task: Task, content: dict[str, Any], options: dict[str, Any], request_: dict[str, Any]
) -> None:
    assert asked(task, content, **options) == request_


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "needs the input text_input"),
        ({"text_input": None}, "needs the input text_input"),
        ({"text_input": 1}, "text_input"),
        ({"text_input": ["a", "b"]}, "2 values of text_input"),
        ({"text_input": []}, "0 values of text_input"),
        ({"text_input": "\ud800"}, "text_input"),
        ({"text_input": "t", "max_token": 1}, "max_token"),
        ({"text_input": "t", "max_tokens": "9"}, "max_tokens"),
        ({"text_input": "t", "temperature": "hot"}, "'hot'"),
        ({"text_input": "t", "stop_words": ["a", 1]}, "stop_words"),
        ({"text_input": "t", "num_return_sequences": 2}, "num_return_sequences"),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(content: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(Task.TEXT_GENERATION, content)
    assert said in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    "options",
    [
        "t --repository r", "t --local --url 127.0.0.1:1", "t --url ftp://x:1", "t --timeout 0", "t --max-in-flight 0",
        "t --stream --idle-timeout -1", "t --idle-timeout 5", "t --stream --max-in-flight 2", "t --retries -1",
        "t --header nothing", "t --header :value", "t --token-file /nowhere", "t --token-file /dev/null",
        "t --tls-ca /nowhere --url grpcs://127.0.0.1:1", "t --local --header a:b", "t --local --max-in-flight 2",
        "", "t --jsonl", "t --input /dev/null", "--jsonl --input /nowhere", "--input /",
        "--jsonl --stream", "--jsonl --json", "t --log-probs", "t --logprobs 2", "t --stream --prompt-logprobs 2",
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "m", *options.split()]) == 2
    assert capsys.readouterr().err.startswith("Error: ")


def tensor(value: Any, kind: Any = np.float32) -> Any:
    return np.array([value], kind)


ONE = {"text_output": "x", "output_tokens": 1, "output_log_probs": [-0.5]}
TWO = {"label": ["a", "b"], "score": [0.5, 0.5], "truncated_tokens": 0}


@pytest.mark.parametrize(
    ("outputs", "values"),
    [
        (
            {"label": tensor(b"a", np.object_), "score": tensor(0.5), "truncated_tokens": tensor(3, np.int32)},
            {"label": ["a"], "score": [0.5], "truncated_tokens": 3},  # lists even of one
        ),
        (
            {"answer": tensor("né".encode(), np.object_), "score": tensor(0.25), "start": tensor(1, np.int32)},
            {"answer": "né", "score": 0.25, "start": 1},
        ),
        ({"entities": tensor(b'[{"word": "x"}]', np.object_)}, {"entities": [{"word": "x"}]}),
        ({"entities": "[]"}, {"entities": []}),
        (TWO, TWO),
        (ONE, ONE),
        ({"text_output": "x", "output_log_probs": np.empty(0, np.float32)}, {"text_output": "x"}),
        ({"embedding": np.array([np.nan, np.inf, 1], np.float32)}, {"embedding": [None, None, 1.0]}),  # as JSON has it
    ],
)
def test_tensors_become_plain_values(outputs: dict[str, Any], values: dict[str, Any]) -> None:
    assert plain_values(outputs) == values


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
        (Task.TEXT_RANKING, {"score": 0.25}, ["0.2500"]),
        (Task.SUMMARIZATION, {"text_output": "in\nshort"}, ["in\nshort"]),
        (Task.TEXT_GENERATION, {"text_output": ["one", "two"]}, ["one", "two"]),
    ],
)
def test_each_task_prints_its_result_as_readable_lines(task: Task, result: dict[str, Any], lines: list[str]) -> None:
    assert TASKS[task].lines(result) == lines
