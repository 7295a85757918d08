"""OpenAI's own client against `hfx serve`: the answers of hfx's client, and a 400 for the unsupported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest

from hfx.client import Client
from tests.rigs.checkpoints import chat_generator
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.dialect_calls import API_KEY, PROMPT, TALKER, call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.triton
SAMPLED = {"temperature": 0.9, "seed": 5, "max_tokens": 12}


def test_models_are_listed_without_their_members(openai_api: openai.OpenAI, grpc: Client) -> None:
    import openai

    assert [model.id for model in openai_api.models.list()] == grpc.models()
    assert openai_api.models.retrieve(RECITAL).id == RECITAL
    with pytest.raises(openai.NotFoundError, match="no model"):
        openai_api.models.retrieve(f"{RECITAL}_stream")


def test_a_completion_has_the_text_usage_and_reason_of_the_model(openai_api: openai.OpenAI, grpc: Client) -> None:
    expected = grpc.generate("stories", PROMPT, max_tokens=12)
    answer = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=12)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason) and answer.usage
    assert answer.usage.prompt_tokens == expected.input_tokens
    assert answer.usage.completion_tokens == expected.output_tokens


def test_a_stop_text_ends_a_completion(openai_api: openai.OpenAI, grpc: Client) -> None:
    text = grpc.generate("stories", PROMPT, max_tokens=30).text
    stop = text.split()[4]
    [choice] = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=30, stop=stop).choices
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("way", [{}, {"temperature": 0.8, "seed": 7}, {"extra_body": {"num_beams": 2}}], ids=str)
def test_penalties_and_biases_change_a_text_as_in_every_other_interface(
    way: dict[str, Any], openai_api: openai.OpenAI, grpc: Client
) -> None:
    plain = grpc.generate("stories", PROMPT, max_tokens=24, logprobs=0)
    often = max({token.id for token in plain.tokens}, key=[token.id for token in plain.tokens].count)
    penalties: Any = {"frequency_penalty": 1.5, "presence_penalty": 0.4, "logit_bias": {str(often): -100}}
    settings: Any = {key: value for key, value in way.items() if key != "extra_body"} | way.get("extra_body", {})
    expected = grpc.generate("stories", PROMPT, max_tokens=24, **penalties, **settings)
    answer = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=24, **penalties, **way)
    assert answer.choices[0].text == expected.text != plain.text
    if "extra_body" not in way:
        tokens = grpc.generate("stories", PROMPT, max_tokens=24, logprobs=0, **penalties, **settings).tokens
        assert often not in [token.id for token in tokens]


def test_up_to_128_texts_and_more_than_four_stop_texts_are_taken(openai_api: openai.OpenAI, grpc: Client) -> None:
    answer = openai_api.completions.create(model="stories", prompt=PROMPT, n=128, max_tokens=2, seed=0, temperature=1.5)
    assert [choice.index for choice in answer.choices] == list(range(128))
    assert answer.choices[127].text == grpc.generate("stories", PROMPT, max_tokens=2, seed=127, temperature=1.5).text
    text = grpc.generate("stories", PROMPT, max_tokens=30).text
    stops = [f"never {number}" for number in range(8)] + [text.split()[4]]
    [choice] = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=30, stop=stops).choices
    assert (choice.text, choice.finish_reason) == (text[: text.index(stops[-1])], "stop")


@pytest.mark.parametrize("streams", [False, True])
def test_each_prompt_has_n_texts_of_seeds_that_follow_each_other(
    streams: bool, openai_api: openai.OpenAI, grpc: Client
) -> None:
    prompts = [PROMPT, "Quentin"]
    seeds = [SAMPLED | {"seed": seed} for seed in (5, 6)]
    expected = [grpc.generate("stories", prompt, **each).text for prompt in prompts for each in seeds]  # type: ignore[call-overload]
    options: Any = {"model": "stories", "prompt": prompts, "n": 2, **SAMPLED}
    if not streams:
        answer = openai_api.completions.create(**options)
        assert [choice.text for choice in answer.choices] == expected
        return
    texts = [""] * len(expected)
    usage = None
    for chunk in openai_api.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected
    assert usage and usage.completion_tokens == sum(
        grpc.generate("stories", p, **s).output_tokens for p in prompts for s in seeds
    )  # type: ignore[call-overload]


PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 3}, {"extra_body": {"num_beams": 3}}])
@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_answers_in_the_schema_of_its_response_format(
    streams: bool, fields: dict[str, Any], openai_api: openai.OpenAI
) -> None:
    schema = {"name": "person", "schema": PERSON, "strict": True}
    options: Any = {
        "model": TALKER,
        "messages": [{"role": "user", "content": "Who are you?"}],
        "response_format": {"type": "json_schema", "json_schema": schema},
        "max_tokens": 200,
        **fields,
    }
    if streams:
        chunks = [chunk.choices[0] for chunk in openai_api.chat.completions.create(**options, stream=True)]
        text, reason = "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason
    else:
        [choice] = openai_api.chat.completions.create(**options).choices
        text, reason = choice.message.content, choice.finish_reason
    assert reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_choice": ["yes", "no"]}, {"choices": ("yes", "no")}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choices": ("yes", "no")}),
        ({"guided_regex": "[a-z]{3}"}, {"regex": "[a-z]{3}"}),
        ({"structured_outputs": {"regex": "[a-z]{3}"}}, {"regex": "[a-z]{3}"}),
        ({"guided_json": PERSON}, {"json_schema": PERSON}),
        ({"structured_outputs": {"json": json.dumps(PERSON)}}, {"json_schema": PERSON}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        ({"response_format": {"type": "text"}}, {}),
    ],
)
def test_every_spelling_of_a_structured_output_gives_the_same_text(
    fields: dict[str, Any], form: dict[str, Any], openai_api: openai.OpenAI, grpc: Client
) -> None:
    expected = grpc.generate("stories", PROMPT, max_tokens=40, **form)
    [choice] = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=40, extra_body=fields).choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)


def test_a_stream_of_characters_of_several_tokens_is_whole(openai_api: openai.OpenAI, recital: Recital) -> None:
    chunks = list(openai_api.completions.create(model=RECITAL, prompt="a", max_tokens=300, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == recital.text("a", 300)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]


def test_embeddings_are_the_models_own_in_base64_and_in_floats(openai_api: openai.OpenAI, grpc: Client) -> None:
    texts = ["A lovely garden.", "The train is late."] * 40  # more than one batch
    expected = grpc.embed("similar-int8", texts)
    answer = openai_api.embeddings.create(model="similar-int8", input=texts)  # base64 by default
    assert np.array_equal(np.array([row.embedding for row in answer.data], np.float32), expected)
    [plain] = openai_api.embeddings.create(model="similar-int8", input=texts[0], encoding_format="float").data
    assert np.array_equal(np.array(plain.embedding, np.float32), expected[0])
    assert answer.usage.prompt_tokens == 40 * sum(
        openai_api.embeddings.create(model="similar-int8", input=text).usage.prompt_tokens for text in texts[:2]
    )


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("model", {"model": "similar-int8"}),
        ("model", {"model": 3}),
        ("prompt", {"prompt": [1, -2]}),
        ("prompt", {"prompt": [[1, 2], "a"]}),
        ("prompt", {"prompt": [[1], []]}),
        ("prompt", {"prompt": [10**9]}),
        ("prompt", {"prompt": [2**40]}),
        ("prompt", {"prompt": "\ud800"}),
        ("echo", {"echo": "yes"}),
        ("echo", {"model": "summaries", "echo": True, "logprobs": 1, "num_beams": 1}),
        ("prompt_logprobs", {"model": "summaries", "prompt_logprobs": 1}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": -1}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("suffix", {"suffix": "end"}),
        ("logit_bias", {"logit_bias": {"5": 101}}),
        ("logit_bias", {"logit_bias": {"999999": 1}}),
        ("frequency_penalty", {"frequency_penalty": 2.5}),
        ("max_completion_tokens", {"max_completion_tokens": 3, "max_tokens": 4}),
        ("best_of", {"best_of": 3}),
        ("logprobs", {"logprobs": 6}),
        ("logprobs", {"logprobs": 2, "num_beams": 2}),
        ("logprobs", {"logprobs": 2, "num_beams": 2, "stream": True}),
        ("top_logprobs", {"logprobs": 2, "top_logprobs": 2}),
        ("return_log_probs", {"return_log_probs": True}),
        ("n", {"n": 129}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 100_000}),
        ("max_tokens", {"max_tokens": 100_000, "stream": True}),
        ("top_q", {"top_q": 1}),
        ("num_return_sequences", {"num_return_sequences": 2}),
        ("response_format", {"response_format": {"type": "xml"}}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": PERSON}}),
        ("guided_json", {"response_format": {"type": "json_object"}, "guided_json": PERSON}),
        ("guided_grammar", {"guided_grammar": "root ::= x"}),
        ("structured_outputs", {"structured_outputs": {"grammar": "root ::= x"}}),
        ("structured_outputs", {"structured_outputs": {}}),
        ("guided_json", {"guided_json": {"not": {}}}),
        ("guided_json", {"guided_json": {"type": "integer", "multipleOf": 99999989}}),
        ("guided_regex", {"guided_regex": "a(b"}),
        ("stop", {"guided_regex": "ab", "stop": "b"}),
    ],
)
def test_a_400_names_the_parameter_that_is_invalid_or_unsupported(
    param: str, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    status, _, answer = call(dialects, "/v1/completions", {"model": "stories", "prompt": PROMPT, **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields", [{"truncate_prompt_tokens": 4}, {"allowed_token_ids": [1]}, {"use_beam_search": True}, {"top_h": 0.5}]
)
def test_options_of_vllm_that_hfx_lacks_are_a_400_not_supported(fields: dict[str, Any], dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v1/completions", {"model": "stories", "prompt": PROMPT, **fields})
    assert (status, "not supported" in answer["error"]["message"]) == (400, True), answer


@pytest.mark.parametrize("ids", [[1, 2], [[1, 2], [3]]])
def test_token_ids_of_texts_to_embed_are_refused_with_the_client_setting_that_avoids_them(
    openai_api: openai.OpenAI, ids: Any
) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match=r"token ids.*check_embedding_ctx_length=False"):
        openai_api.embeddings.create(model="similar-int8", input=ids)


def test_ignore_eos_and_a_top_k_of_minus_one_are_taken_as_in_vllm(openai_api: openai.OpenAI, grpc: Client) -> None:
    ended = grpc.generate("stories", PROMPT, max_tokens=200)
    assert ended.finish_reason == "stop"
    whole: Any = openai_api.completions.create(
        model="stories", prompt=PROMPT, max_tokens=ended.output_tokens + 9, extra_body={"ignore_eos": True, "top_k": -1}
    )
    assert whole.usage.completion_tokens == ended.output_tokens + 9
    assert whole.choices[0].finish_reason == "length"


def test_a_model_without_a_chat_template_says_so(openai_api: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="no chat template"):
        openai_api.chat.completions.create(model="stories", messages=[{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_continues_what_the_template_makes_of_its_messages(
    streams: bool, openai_api: openai.OpenAI, recital: Recital
) -> None:
    parts = [{"type": "text", "text": "and "}, {"type": "text", "text": "good bye"}]
    messages: Any = [{"role": "system", "content": "Hello"}, {"role": "user", "content": parts}]
    expected = recital.text("<system>Hello<user>and good bye<assistant>", 40)
    options: Any = {"model": RECITAL, "messages": messages, "max_completion_tokens": 40}
    if streams:
        chunks = list(openai_api.chat.completions.create(**options, stream=True))
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    else:
        [choice] = openai_api.chat.completions.create(**options).choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", expected, "length")


@pytest.mark.parametrize("content", ["Anna went to <s>the</s> market.", ""])
def test_a_chat_has_the_tokens_and_the_answer_of_transformers(
    content: str, openai_api: openai.OpenAI, grpc: Client, talker: Path
) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    expected, count = chat_generator.answered(talker, messages, 24)
    answer = openai_api.chat.completions.create(model=TALKER, messages=messages, max_completion_tokens=24)
    assert answer.usage and answer.usage.prompt_tokens == count
    assert answer.choices[0].message.content == expected
    text = f"<|im_start|>{content}"
    bare, usual = (grpc.generate(TALKER, text, max_tokens=1, add_special_tokens=added) for added in (False, True))
    assert usual.input_tokens == bare.input_tokens + 1 == grpc.generate(TALKER, text, max_tokens=1).input_tokens


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        ["Hello"],
        [{"role": "user"}],
        [{"role": "nobody", "content": "Hello"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
        [{"role": "tool", "content": "refused by the template"}],
    ],
)
def test_invalid_chat_messages_are_a_400(messages: Any, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, f"/models/{RECITAL}/v1/chat/completions", {"messages": messages})
    assert (status, answer["error"]["param"]) == (400, "messages"), answer


def test_errors_become_the_exceptions_of_openais_client(openai_api: openai.OpenAI, dialects: ServeProcess) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as missing:
        openai_api.completions.create(model="nothing", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
    with (
        openai.OpenAI(base_url=f"{dialects.http_url}/v1", api_key="another", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"NaN", b'{"model": "stories", "prompt": "a", "max_tokens": NaN}'])
def test_a_malformed_body_is_a_400_with_openais_error_body(body: bytes, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v1/completions", body)
    assert status == 400 and answer["error"]["message"]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_langchains_defaults_work_with_a_model_of_beams(
    temperature: float, dialects: ServeProcess, grpc: Client
) -> None:
    langchain = pytest.importorskip("langchain_openai")
    llm = langchain.OpenAI(
        base_url=f"{dialects.http_url}/v1", api_key=API_KEY, model="summaries", temperature=temperature
    )
    assert llm.invoke(PROMPT) == "".join(llm.stream(PROMPT)) == grpc.generate("summaries", PROMPT, max_tokens=256).text
