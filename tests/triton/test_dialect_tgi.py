"""The native paths of text-generation-inference on `hfx serve`."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from hfx.client import Client
from tests.rigs.clients.dialect_calls import API_KEY, PROMPT, call
from tests.rigs.servers.serve_process import SECONDS, ServeProcess

pytestmark = pytest.mark.triton


def test_details_have_the_ids_of_the_generated_tokens(dialects: ServeProcess, grpc: Client) -> None:
    expected = grpc.generate("stories", PROMPT, max_tokens=8, logprobs=0)
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "details": True}}
    status, _, answer = call(dialects, "/models/stories/generate", body)
    assert (status, answer["generated_text"]) == (200, expected.text)
    assert [each["id"] for each in answer["details"]["tokens"]] == [token.id for token in expected.tokens]
    plain = call(dialects, "/models/stories/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}})[2]
    assert plain == {"generated_text": expected.text}


def test_details_have_the_log_probabilities_of_the_prompt(dialects: ServeProcess, grpc: Client) -> None:
    first, *expected = grpc.generate("stories", PROMPT, max_tokens=2, prompt_logprobs=0).prompt_tokens
    parameters = {"max_new_tokens": 2, "details": True, "decoder_input_details": True}
    status, _, answer = call(dialects, "/models/stories/generate", {"inputs": PROMPT, "parameters": parameters})
    assert status == 200, answer
    given, *found = answer["details"]["prefill"]
    assert given == {"id": first.id, "text": first.text, "logprob": None}
    assert found == [{"id": token.id, "text": token.text, "logprob": token.logprob} for token in expected]


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("stories/generate_stream", {"details": True}),
        ("stories/generate", {}),
        ("summaries/generate", {"details": True}),
    ],
)
def test_details_of_the_prompt_are_refused_where_there_are_none(
    path: str, own: dict[str, bool], dialects: ServeProcess
) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2, "decoder_input_details": True, **own}}
    status, _, answer = call(dialects, f"/models/{path}", body)
    assert status == 422 and "decoder_input_details" in answer["error"], answer


def test_sampling_settings_override_a_false_do_sample(dialects: ServeProcess, grpc: Client) -> None:
    """text-generation-inference does so, too; LangChain sends both by default."""
    chosen = {"max_new_tokens": 8, "do_sample": False}
    for own in ({"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "top_p": 1.0}):
        body = {"inputs": PROMPT, "parameters": {**chosen, **own}}
        sampled = {**own} if "seed" in own else {}
        expected = grpc.generate("stories", PROMPT, max_tokens=8, **sampled).text
        assert call(dialects, "/models/stories/generate", body)[2] == {"generated_text": expected}


def test_generate_works_for_a_summarizer(dialects: ServeProcess, grpc: Client) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}
    expected = grpc.generate("summaries", PROMPT, max_tokens=8).text
    assert call(dialects, "/models/summaries/generate", body)[2] == {"generated_text": expected}


@pytest.mark.parametrize("model", ["stories", "summaries"])
def test_a_text_matches_the_requested_grammar(model: str, dialects: ServeProcess) -> None:
    for grammar in ({"type": "regex", "value": "(red|blue) [a-z]{4}"}, {"type": "json", "value": {"enum": [12, 345]}}):
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "grammar": grammar}}
        status, _, answer = call(dialects, f"/models/{model}/generate", body)
        assert status == 200, answer
        form = "(red|blue) [a-z]{4}" if grammar["type"] == "regex" else "12|345"
        assert re.fullmatch(form, answer["generated_text"]), answer


def test_a_stream_ends_with_the_whole_text(dialects: ServeProcess, grpc: Client) -> None:
    body = json.dumps({"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}).encode()
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{dialects.http_url}/models/stories/generate_stream", body, headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        events = [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]
    assert events[-1]["generated_text"] == grpc.generate("stories", PROMPT, max_tokens=8).text
    assert "".join(each["token"]["text"] for each in events) == events[-1]["generated_text"]


def test_an_invalid_request_is_a_422_of_type_validation(dialects: ServeProcess) -> None:
    for path, body in (
        ("/models/stories/generate", {"inputs": [PROMPT]}),
        ("/models/stories/generate", {"inputs": PROMPT, "parameters": {"watermark": True}}),
        ("/models/sentiment-fp32/generate", {"inputs": PROMPT}),
        ("/models/stories/generate", {"inputs": PROMPT, "parameters": {"grammar": {"type": "x", "value": ""}}}),
        ("/models/stories/generate", {"inputs": PROMPT, "parameters": {"grammar": {"type": "regex", "value": "["}}}),
        ("/generate", {"inputs": PROMPT}),  # there are several generators
    ):
        status, _, answer = call(dialects, path, body)
        assert (status, answer["error_type"]) == (422, "validation"), answer
