"""A refusal names the field that the caller has sent, in every API, also if the setting has another name in hfx."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.clients.dialect_calls import PROMPT, RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
LONG = "a garden " * 3000
# (fields besides the model and the prompt, the field that is named)
OPENAI: tuple[tuple[dict[str, Any], str], ...] = (
    ({"stop": ""}, "stop"),
    ({"stop_words": [""]}, "stop_words"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"max_new_tokens": 100_000}, "max_new_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 3, "min_new_tokens": 5}, "min_new_tokens"),
    ({"beam_width": 65}, "beam_width"),
    ({"guided_regex": "["}, "guided_regex"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_json": {"type": "nothing"}}, "guided_json"),
    ({"guided_json": 3}, "guided_json"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}}, "response_format"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs"),
    ({"logprobs": 2, "num_beams": 2}, "logprobs"),
    ({"logprobs": 6}, "logprobs"),
)
HUGGINGFACE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 3]}, "stop"),
    ({"stop_sequence": ""}, "stop_sequence"),
    ({"stop_strings": [""]}, "stop_strings"),
    ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"max_new_tokens": 100_000}, "max_new_tokens"),
    ({"max_length": 0}, "max_length"),
    ({"min_length": -1}, "min_length"),
    ({"max_new_tokens": 3, "min_new_tokens": 5}, "min_new_tokens"),
    ({"src_lang": "fr"}, "src_lang"),
    ({"tgt_lang": 3}, "tgt_lang"),
    ({"grammar": {"type": "regex", "value": "["}}, "grammar"),
    ({"grammar": {"type": "json", "value": {"type": 3}}}, "grammar"),
    ({"details": True, "num_beams": 2}, "details"),
    ({"details": "yes"}, "details"),
    ({"details": True, "top_n_tokens": 21}, "top_n_tokens"),
    ({"return_full_text": 3}, "return_full_text"),
    ({"stop_sequence": "a", "stop_words": ["b"]}, "stop_sequence"),
    ({"grammar": {"type": "regex", "value": "a"}, "regex": "b"}, "grammar"),
)
ENCODERS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/embeddings", {"model": "similar-int8", "input": ["a", 3]}, "input"),
    ("/v1/embeddings", {"model": "similar-int8", "input": "a", "dimensions": 3}, "dimensions"),
    ("/v2/embed", {"model": "similar-int8", "texts": [3], "input_type": "clustering"}, "texts"),
    (
        "/v2/embed",
        {"model": "similar-int8", "texts": ["a"], "input_type": "clustering", "output_dimension": 3},
        "output_dimension",
    ),
    ("/v2/rerank", {"model": RANKER, "query": "a", "documents": ["a", 3]}, "documents"),
    ("/v1/rerank", {"model": RANKER, "query": "a", "documents": ["a", 3]}, "documents"),
    ("/rerank", {"query": "a", "texts": ["a", 3]}, "texts"),
    ("/score", {"model": RANKER, "text_1": "a", "text_2": ["a", 3]}, "text_2"),
    ("/embed", {"inputs": [3]}, "inputs"),
    ("/models/sentiment-fp32", {"inputs": [3]}, "inputs"),
    ("/models/answers-fp32", {"inputs": {"question": "a", "context": 3}}, "context"),
    ("/v1/rerank", {"model": RANKER, "query": LONG * 2, "documents": ["a"]}, "query"),
)


@pytest.mark.parametrize(("fields", "field"), OPENAI)
def test_openais_param_is_the_callers_field(fields: dict[str, Any], field: str, dialects: ServeProcess) -> None:
    for more in ({}, {"stream": True}):
        body = {"model": "stories", "prompt": PROMPT, **fields, **more}
        status, _, answer = call(dialects, "/v1/completions", body)
        assert (status, answer["error"]["param"]) == (400, field) and field in answer["error"]["message"], answer


@pytest.mark.parametrize(("parameters", "field"), HUGGINGFACE)
@pytest.mark.parametrize("path", ["/models/stories", "/models/stories/generate"])
def test_hugging_faces_message_begins_with_the_callers_field(
    path: str, parameters: dict[str, Any], field: str, dialects: ServeProcess
) -> None:
    status, _, answer = call(dialects, path, {"inputs": PROMPT, "parameters": parameters})
    assert status in (400, 422) and field in answer["error"].partition(".")[0].split(" "), answer


@pytest.mark.parametrize(("path", "body", "field"), ENCODERS)
def test_other_messages_have_the_callers_field(
    path: str, body: dict[str, Any], field: str, dialects: ServeProcess
) -> None:
    status, _, answer = call(dialects, path, body)
    assert status in (400, 413, 422) and field in str(answer) and "text_input" not in str(answer), answer
