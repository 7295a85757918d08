"""Keyword arguments of transformers' pipelines, as Hugging Face's API and SageMaker's toolkit send them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.clients.dialect_calls import RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TEXT = "The garden was lovely, but Anna went to Oslo by train."
INPUTS: dict[str, Any] = {
    "sentiment-fp32": TEXT,
    "entities-fp32": TEXT,
    "answers-fp32": {"question": "Where did Anna go?", "context": TEXT},
    "nli-fp32": TEXT,
    "similar-int8": TEXT,
    RANKER: {"query": "Where?", "texts": [TEXT]},
    "stories": TEXT,
}
NEEDED: dict[str, dict[str, Any]] = {"nli-fp32": {"candidate_labels": ["travel", "food"]}, "stories": {"max_tokens": 3}}
COMMON: tuple[dict[str, Any], ...] = ({"padding": True}, {"padding": "max_length"}, {"batch_size": 8, "num_workers": 0})
CUT: tuple[dict[str, Any], ...] = ({"truncation": True}, {"truncation": "longest_first"}, {"max_length": 128})
TAKEN: dict[str, tuple[dict[str, Any], ...]] = {
    "sentiment-fp32": (*COMMON, *CUT, {"return_all_scores": True}, {"top_k": None}, {"function_to_apply": "softmax"}),
    "entities-fp32": (*COMMON, *CUT, {"grouped_entities": True}, {"aggregation_strategy": "simple"}),
    "answers-fp32": (*COMMON, {"max_seq_len": 128, "max_question_len": 64}, {"align_to_words": True}, {"top_k": 1}),
    "nli-fp32": (*COMMON, *CUT[:2], {"hypothesis_template": "This example is {}."}, {"multi_label": False}),
    "similar-int8": (*COMMON, *CUT[:2], {"tokenize_kwargs": {"truncation": True}}),
    RANKER: (*COMMON, *CUT[:2]),
    "stories": (*COMMON, *CUT[:2], {"clean_up_tokenization_spaces": False}, {"return_text": True}, {"use_cache": True}),
}
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("sentiment-fp32", {"truncation": False}, "truncation is false, which is not supported. Send true or"),
    ("sentiment-fp32", {"max_length": 16}, "max_length is 16. Send"),
    ("sentiment-fp32", {"doc_stride": 16}, "doc_stride is no parameter of this text-classification model."),
    ("sentiment-fp32", {"max_question_len": 64}, "max_question_len is no parameter"),
    ("sentiment-fp32", {"batch_size": -1}, "batch_size is -1"),
    ("sentiment-fp32", {"return_all_scores": "yes"}, "return_all_scores"),
    ("entities-fp32", {"stride": 16}, "stride is no parameter"),
    (
        "entities-fp32",
        {"grouped_entities": False},
        "grouped_entities stands for aggregation_strategy none. The model was exported with simple",
    ),
    ("entities-fp32", {"grouped_entities": "yes"}, "grouped_entities is 'yes'"),
    ("answers-fp32", {"max_seq_len": 64}, "max_seq_len is 64. Send 128"),
    ("answers-fp32", {"max_length": 64}, "max_length is no parameter"),
    ("answers-fp32", {"align_to_words": False}, "align_to_words is false"),
    ("nli-fp32", {"hypothesis_template": "It is {}."}, "hypothesis_template is 'It is {}.'"),
    ("nli-fp32", {"multi_class": True}, "multi_class is no parameter"),
    ("similar-int8", {"return_tensors": True}, "return_tensors is true"),
    ("stories", {"truncation": "only_second"}, "truncation is 'only_second'"),
    ("stories", {"handle_long_generation": "hole"}, "handle_long_generation is 'hole'"),
    ("sentiment-fp32", {"topk": 1}, "There is no field 'topk'. Did you mean top_k?"),
)


def answer(server: ServeProcess, model: str, parameters: dict[str, Any]) -> tuple[int, Any]:
    body = {"inputs": INPUTS[model], "parameters": NEEDED.get(model, {}) | parameters}
    status, _, content = call(server, f"/models/{model}", body)
    return status, content


@pytest.mark.parametrize("model", TAKEN)
def test_arguments_that_state_the_default_change_no_answer(model: str, dialects: ServeProcess) -> None:
    expected = answer(dialects, model, {})
    assert expected[0] == 200
    for parameters in TAKEN[model]:
        assert answer(dialects, model, parameters) == expected, parameters


@pytest.mark.parametrize(("model", "parameters", "words"), REFUSED)
def test_unsupported_arguments_are_refused_by_name(
    model: str, parameters: dict[str, Any], words: str, dialects: ServeProcess
) -> None:
    status, refusal = answer(dialects, model, parameters)
    assert status == 400 and words in refusal["error"], refusal


def test_return_all_scores_false_gives_the_best_label_only(dialects: ServeProcess) -> None:
    best = answer(dialects, "sentiment-fp32", {"top_k": 1})
    assert answer(dialects, "sentiment-fp32", {"return_all_scores": False}) == best


def test_a_generator_cuts_a_long_text_where_truncation_is_sent(dialects: ServeProcess) -> None:
    body: dict[str, Any] = {"inputs": "a garden " * 5000, "parameters": {"max_tokens": 3}}
    assert call(dialects, "/models/stories", body)[0] in (400, 413)
    body["parameters"]["truncation"] = True
    assert call(dialects, "/models/stories", body)[0] == 200
