"""Keyword arguments of transformers' pipelines, as Hugging Face's API and SageMaker's toolkit send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient

from tests import zoo
from tests.rigs.clients.dialect_calls import API_KEY, EXACT, RANKER, TALKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TRUNCATED = "x-hfx-truncated-tokens"
TEXT = "The garden was lovely, but Anna went to Oslo by train."
LONG_TEXT = f"{TEXT} " * 40
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
# What GenerationConfig().to_dict() has in transformers 4.57, without the lengths.
OLD: dict[str, Any] = {
    "do_sample": False, "num_beams": 1, "num_beam_groups": 1, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0, "diversity_penalty": 0.0,
    "length_penalty": 1.0, "early_stopping": False, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "num_return_sequences": 1, "use_cache": True, "output_attentions": False,
    "output_hidden_states": False, "output_scores": False, "return_dict_in_generate": False, "token_healing": False,
    "renormalize_logits": False, "remove_invalid_values": False, "is_assistant": False, "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4, "max_time": None,
    "bad_words_ids": None, "eos_token_id": 0, "pad_token_id": 7, "transformers_version": "4.57.1",
}  # fmt: skip
TAKEN: dict[str, tuple[dict[str, Any], ...]] = {
    "sentiment-fp32": (*COMMON, *CUT, {"return_all_scores": True}, {"top_k": None}, {"function_to_apply": "softmax"}),
    "entities-fp32": (*COMMON, *CUT, {"grouped_entities": True}, {"aggregation_strategy": "simple"}),
    "answers-fp32": (*COMMON, {"max_seq_len": 128, "max_question_len": 64}, {"align_to_words": True}, {"top_k": 1}),
    "nli-fp32": (*COMMON, *CUT[:2], {"hypothesis_template": "This example is {}."}, {"multi_label": False}),
    "similar-int8": (*COMMON, *CUT[:2], {"tokenize_kwargs": {"truncation": True}}),
    RANKER: (*COMMON, *CUT[:2]),
    "stories": (
        *COMMON,
        *CUT[:2],
        {"clean_up_tokenization_spaces": False},
        {"return_text": True},
        {"use_cache": True},
        OLD,
    ),
}
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("sentiment-fp32", {"truncation": "only_second"}, "truncation is 'only_second'"),
    ("sentiment-fp32", {"long": "chunk"}, "long is 'chunk'"),
    ("sentiment-fp32", {"stride": 16}, "stride is 16"),
    ("sentiment-fp32", {"long": "mean", "stride": 500}, "stride is 500"),
    ("sentiment-fp32", {"max_length": 16}, "max_length is 16. Send"),
    ("sentiment-fp32", {"doc_stride": 16}, "doc_stride is no parameter of this text-classification model."),
    ("sentiment-fp32", {"max_question_len": 64}, "max_question_len is no parameter"),
    ("sentiment-fp32", {"batch_size": -1}, "batch_size is -1"),
    ("sentiment-fp32", {"return_all_scores": "yes"}, "return_all_scores"),
    ("entities-fp32", {"stride": 128}, "stride is 128"),
    ("entities-fp32", {"stride": -1}, "stride is -1"),
    ("entities-fp32", {"long": "mean"}, "long is 'mean'"),
    ("nli-fp32", {"stride": 16}, "stride is no parameter"),
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
    (
        "stories",
        {"eos_token_id": 5},
        "eos_token_id is 5, which is not supported. Send [0]",
    ),
    ("stories", {"pad_token_id": -1}, "pad_token_id is -1"),
    ("stories", {"bad_words_ids": [[5]]}, "use logit_bias"),
    ("stories", {"output_scores": True}, "output_scores is true"),
    ("stories", {"num_return_sequences": 2}, "num_return_sequences is 2"),
    ("stories", {"generate_parameters": 3}, "generate_parameters is 3"),
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


CUT_BY_DEFAULT: dict[str, Any] = {
    "sentiment-fp32": LONG_TEXT,
    "nli-fp32": LONG_TEXT,
    "similar-int8": LONG_TEXT,
    RANKER: {"query": "Where?", "texts": [LONG_TEXT]},
}


@pytest.mark.parametrize("model", CUT_BY_DEFAULT)
def test_an_answer_says_how_many_tokens_were_cut_and_truncation_false_is_refused(
    model: str, dialects: ServeProcess
) -> None:
    parameters = NEEDED.get(model, {})
    body = {"inputs": CUT_BY_DEFAULT[model], "parameters": parameters}
    status, headers, _ = call(dialects, f"/models/{model}", body)
    assert status == 200 and int(headers[TRUNCATED]) > 0
    status, headers, refusal = call(
        dialects, f"/models/{model}", body | {"parameters": {**parameters, "truncation": False}}
    )
    assert status == 413 and "truncation" in refusal["error"]
    short = {"inputs": INPUTS[model], "parameters": {**parameters, "truncation": False}}
    status, headers, _ = call(dialects, f"/models/{model}", short)
    assert status == 200 and TRUNCATED not in headers


@pytest.mark.parametrize(
    ("parameters", "status", "is_cut"),
    [
        ({}, 200, False),
        ({"truncation": False}, 200, False),
        ({"truncation": True, "stride": 9}, 200, False),
        ({"truncation": True}, 200, True),
        ({"long": "truncate"}, 200, True),
        ({"long": "truncate", "truncation": False}, 413, None),
        ({"long": "error"}, 413, None),
    ],
)
def test_token_classification_reads_all_of_a_long_text_unless_it_is_to_be_cut(
    parameters: dict[str, Any], status: int, is_cut: bool | None, dialects: ServeProcess
) -> None:
    body = {"inputs": [LONG_TEXT, TEXT], "parameters": parameters}
    found, headers, rows = call(dialects, "/models/entities-fp32", body)
    assert found == status
    if is_cut is not None:
        ends_late = any(each["end"] > 0.9 * len(LONG_TEXT) for each in rows[0])
        assert ((TRUNCATED in headers), ends_late) == (is_cut, not is_cut)


def test_a_generator_cuts_a_long_text_where_truncation_is_sent(dialects: ServeProcess) -> None:
    body: dict[str, Any] = {"inputs": "a garden " * 5000, "parameters": {"max_tokens": 3}}
    assert call(dialects, "/models/stories", body)[0] in (400, 413)
    body["parameters"]["truncation"] = True
    assert call(dialects, "/models/stories", body)[0] == 200


# transformers' lengths, which count the tokens before the new ones

LENGTHS: tuple[dict[str, Any], ...] = (
    {"max_length": 30, "min_length": 20, "do_sample": False},
    {"max_length": 2},
    {"max_length": 60, "min_length": 40},
    {"max_length": 25, "max_new_tokens": 9, "min_length": 20, "min_new_tokens": 3},
    {"max_length": 40, "min_length": 38, "num_beams": 2, "length_penalty": 0.5, "early_stopping": True},
    {"max_length": 12, "num_beams": 1},
)


@pytest.fixture(scope="module")
def summarizer() -> Any:
    """Return the summary of a text by transformers' generate."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = zoo.checkpoint("summaries-bart")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)

    def summary(text: str, parameters: dict[str, Any]) -> str:
        ids = model.generate(**tokenizer(text, return_tensors="pt"), **parameters)
        return str(tokenizer.decode(ids[0], skip_special_tokens=True))

    return summary


@pytest.mark.parametrize("parameters", LENGTHS)
def test_lengths_of_a_summary_are_those_of_transformers(
    parameters: dict[str, Any], summarizer: Any, dialects: ServeProcess
) -> None:
    client = InferenceClient(f"{dialects.http_url}/models/{EXACT}", token=API_KEY)
    for example in zoo.heldout("summaries", 3):
        text = example.prompt + example.continuation
        answer = client.summarization(text, generate_parameters=parameters)
        assert answer.summary_text == summarizer(text, parameters)
        body = {"inputs": text, "parameters": parameters}
        assert call(dialects, f"/models/{EXACT}", body)[2][0]["summary_text"] == answer.summary_text


@pytest.fixture(scope="module")
def continuation(talker: Path) -> Any:
    """transformers' pipeline of TALKER, without sampling."""
    from transformers import pipeline

    return pipeline("text-generation", model=str(talker), device="cpu", do_sample=False)  # type: ignore[call-overload]


@pytest.mark.parametrize("text", ["Hello", "", "a b c d e"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"max_length": 40},
        {"max_length": 41, "min_length": 41, "return_full_text": False},
        {"max_length": 30, "max_new_tokens": 3},
    ],
)
def test_lengths_of_a_continued_text_count_its_prompt(
    text: str, parameters: dict[str, Any], continuation: Any, dialects: ServeProcess
) -> None:
    body = {"inputs": text, "parameters": {"return_full_text": True, **parameters}}
    status, _, answer = call(dialects, f"/models/{TALKER}", body)
    assert (status, answer) == (200, continuation(text, **parameters))


@pytest.mark.parametrize(
    ("model", "parameters", "field"),
    [
        (EXACT, {"max_length": 1}, "max_length"),
        (EXACT, {"max_length": 10**6}, "max_length"),
        (EXACT, {"max_length": "30"}, "max_length"),
        (EXACT, {"max_length": 20, "min_length": 30}, "min_length"),
        (EXACT, {"min_length": 500}, "min_length"),
        (EXACT, {"min_length": -1}, "min_length"),
        (TALKER, {"max_length": 2}, "max_length"),
        (TALKER, {"max_length": 513}, "max_length"),
    ],
)
def test_a_length_that_leaves_no_room_is_refused_by_name(
    model: str, parameters: dict[str, Any], field: str, dialects: ServeProcess
) -> None:
    for fields in ({}, {"stream": True}):
        status, _, refusal = call(dialects, f"/models/{model}", {"inputs": "a b c", "parameters": parameters, **fields})
        assert status == 400 and refusal["error"].startswith(f"{field} is "), refusal


def test_a_long_prompt_of_a_bounded_length_is_refused_quickly(dialects: ServeProcess) -> None:
    """The prompt has a million tokens, of which only as many are counted as a model could read."""
    body = {"inputs": "a garden " * 10**6, "parameters": {"max_length": 30}}
    status, _, refusal = call(dialects, "/models/stories", body)
    assert status in (400, 413) and "error" in refusal
