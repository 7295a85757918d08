"""huggingface_hub's InferenceClient against `hfx serve`: each task has the answers of hfx's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, ValidationError
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from hfx.client import Client
from hfx.errors import RequestRefused
from hfx.local.encoder import LocalModel
from tests import zoo
from tests.rigs.checkpoints.question_answering import best_answers
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.dialect_calls import API_KEY, PROMPT, RANKER, call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TEXT = "The garden was lovely, but Anna went to Oslo by train."
CONTEXT = "Anna went to Oslo in May. The train was late."


def api(server: ServeProcess, model: str) -> InferenceClient:
    return InferenceClient(f"{server.http_url}/models/{model}", token=API_KEY)


def pairs(answer: Any) -> list[tuple[str, float]]:
    return [(each.label, each.score) for each in answer]


def test_text_classification_has_all_labels(dialects: ServeProcess, grpc: Client) -> None:
    expected = grpc.classify("sentiment-fp32", TEXT, top_k=100).predictions
    assert pairs(api(dialects, "sentiment-fp32").text_classification(TEXT)) == pairs(expected)
    assert pairs(api(dialects, "sentiment-fp32").text_classification(TEXT, top_k=1)) == pairs(expected[:1])


def test_a_function_to_apply_other_than_the_models_is_refused(dialects: ServeProcess) -> None:
    client = api(dialects, "sentiment-fp32")
    assert client.text_classification(TEXT, function_to_apply="softmax") == client.text_classification(TEXT)
    with pytest.raises(BadRequestError, match="function_to_apply is 'sigmoid'"):
        client.text_classification(TEXT, function_to_apply="sigmoid")


def test_token_classification_has_the_entities_of_hfxs_client(dialects: ServeProcess, grpc: Client) -> None:
    answer = api(dialects, "entities-fp32").token_classification(TEXT, aggregation_strategy="simple")  # type: ignore[arg-type]
    expected = grpc.label_tokens("entities-fp32", TEXT).entities
    assert expected
    assert [(each.entity_group, each.score, each.start, each.end, each.word) for each in answer] == [
        (each.entity, each.score, each.start, each.end, each.word) for each in expected
    ]


def test_question_answering_has_the_answer_of_hfxs_client(dialects: ServeProcess, grpc: Client) -> None:
    answer: Any = api(dialects, "answers-fp32").question_answering("Where did Anna go?", CONTEXT)
    expected = grpc.answer("answers-fp32", "Where did Anna go?", CONTEXT)
    assert (answer.answer, answer.score, answer.start, answer.end) == (
        expected.answer,
        expected.score,
        expected.start,
        expected.end,
    )


def test_settings_of_question_answering_are_honoured_or_refused(dialects: ServeProcess, grpc: Client) -> None:
    settings: Any = {"top_k": 3, "max_answer_len": 4, "doc_stride": 2, "handle_impossible_answer": True}
    found: Any = api(dialects, "answers-fp32").question_answering("Where did Anna go?", CONTEXT, **settings)
    expected = grpc.answer("answers-fp32", "Where did Anna go?", CONTEXT, **settings)
    assert len(found) == 3
    assert [(each.answer, each.score, each.start, each.end) for each in found] == [
        (each.answer, each.score, each.start, each.end) for each in (expected, *expected.others)
    ]
    body: Any = {"inputs": {"question": "Who?", "context": CONTEXT}}
    for name, value, words in (
        ("top_k", 101, "a whole number from 1 to 100"),
        ("top_k", 0, "a whole number from 1 to 100"),
        ("max_answer_len", 0, "a whole number from 1"),
        ("doc_stride", -1, "a whole number from 0"),
        ("doc_stride", 500, "windows may share 0 to"),
        ("handle_impossible_answer", "yes", "true or false"),
    ):
        status, _, refusal = call(dialects, "/models/answers-fp32", body | {"parameters": {name: value}})
        assert status == 400 and name in refusal["error"] and words in refusal["error"], refusal


def test_a_long_context_is_read_to_its_end_or_refused(dialects: ServeProcess, grpc: Client, many_tasks: Path) -> None:
    def body(context: str) -> Any:
        return {"inputs": {"question": "Where did Anna go?", "context": context}, "parameters": {"top_k": 5}}

    folder = zoo.checkpoint("answers-bert")
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    long = "Nothing was said. " * 3000 + CONTEXT
    expected = best_answers(model, AutoTokenizer.from_pretrained(folder), "Where did Anna go?", long, top_k=5)
    status, _, found = call(dialects, "/models/answers-fp32", body(long))
    assert status == 200
    assert [(each["answer"], each["start"], each["end"]) for each in found] == [
        (each["answer"], each["start"], each["end"]) for each in expected
    ]
    assert found[0]["score"] == pytest.approx(expected[0]["score"], abs=1e-4)
    above = long * 9  # fits into the bytes of a context, but not into its tokens
    tensors = [
        {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [text]}
        for name, text in (("question", "Who?"), ("context", above))
    ]
    for path, content in (
        ("/models/answers-fp32", body(above)),
        ("/v2/models/answers-fp32/infer", {"inputs": tensors}),
    ):
        status, _, refusal = call(dialects, path, content)
        assert status == 413 and "context" in refusal["error"], refusal
    with pytest.raises(RequestRefused, match="context"):
        grpc.answer("answers-fp32", "Who?", above)
    with pytest.raises(RequestRefused, match="context"):
        LocalModel.open(many_tasks, "answers-fp32").infer({"question": "Who?", "context": above})


def test_feature_extraction_and_similarity_use_the_models_vectors(dialects: ServeProcess, grpc: Client) -> None:
    client = api(dialects, "similar-int8")
    vectors = grpc.embed("similar-int8", [TEXT, CONTEXT])
    assert np.array_equal(client.feature_extraction(TEXT), vectors[0])
    assert np.array_equal(client.feature_extraction(TEXT, normalize=True, truncate=False), vectors[0])
    long = TEXT * 100
    assert np.array_equal(client.feature_extraction(long, truncate=True), grpc.embed("similar-int8", long))
    with pytest.raises(HfHubHTTPError, match="more than the model reads"):
        client.feature_extraction(long, truncate=False)
    assert client.sentence_similarity(TEXT, [CONTEXT, TEXT]) == pytest.approx([vectors[0] @ vectors[1], 1], abs=1e-5)


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification_has_the_scores_of_hfxs_client(
    multi_label: bool, dialects: ServeProcess, grpc: Client
) -> None:
    labels = ["travel", "food"]
    answer = api(dialects, "nli-fp32").zero_shot_classification(TEXT, labels, multi_label=multi_label)
    assert pairs(answer) == pairs(grpc.zero_shot("nli-fp32", TEXT, labels, multi_label=multi_label).predictions)


def test_text_ranking_has_the_fields_of_its_schema(dialects: ServeProcess, grpc: Client) -> None:
    """The schema is that of @huggingface/tasks; InferenceClient has no method for the task."""
    fields = {"query": "a cat?", "texts": [TEXT, "", "the cat sat"]}
    expected = [{"index": each.index, "score": each.score} for each in grpc.rank(RANKER, "a cat?", fields["texts"])]
    assert call(dialects, f"/models/{RANKER}", {"inputs": fields})[2] == expected
    _, _, answer = call(dialects, f"/models/{RANKER}", {"inputs": {**fields, "return_documents": True}})
    assert answer == [{**each, "text": fields["texts"][each["index"]]} for each in expected]


def test_return_full_text_puts_the_prompt_before_the_text(dialects: ServeProcess, grpc: Client) -> None:
    client, expected = api(dialects, "stories"), grpc.generate("stories", PROMPT, max_tokens=12).text
    assert client.text_generation(PROMPT, max_new_tokens=12) == expected
    assert client.text_generation(PROMPT, max_new_tokens=12, return_full_text=True) == PROMPT + expected


def test_a_text_generation_stream_joins_to_the_whole_text(dialects: ServeProcess, recital: Recital) -> None:
    client = api(dialects, RECITAL)  # which ends its streams when it is collected
    pieces = list(client.text_generation("a", max_new_tokens=300, stream=True))
    assert len(pieces) > 1 and "".join(pieces) == recital.text("a", 300)


def test_details_have_the_tokens_and_log_probabilities_of_the_model(dialects: ServeProcess, grpc: Client) -> None:
    expected = grpc.generate("stories", PROMPT, max_tokens=40, logprobs=2)
    answer = api(dialects, "stories").text_generation(PROMPT, max_new_tokens=40, details=True, top_n_tokens=2)
    details: Any = answer.details
    assert answer.generated_text == expected.text
    assert [(token.id, token.text, token.special) for token in details.tokens] == [
        (token.id, token.text, token.special) for token in expected.tokens
    ]
    assert [token.logprob for token in details.tokens] == pytest.approx(expected.log_probs)
    assert details.generated_tokens == expected.output_tokens and details.prefill == []
    assert details.finish_reason == ("length" if expected.finish_reason == "length" else "eos_token")
    top = [[token["id"] for token in row] for row in details.top_tokens]
    assert top == [[each.id for each in token.top] for token in expected.tokens]


def test_a_stream_with_details_has_an_event_for_each_token(dialects: ServeProcess, recital: Recital) -> None:
    client = api(dialects, RECITAL)
    events = list(client.text_generation("a", max_new_tokens=60, stream=True, details=True))
    assert [each.index for each in events] == [*range(1, 61)]
    assert "".join(each.token.text for each in events) == recital.text("a", 60) == events[-1].generated_text
    assert all(each.token.id is not None and each.token.logprob <= 0 for each in events)
    assert events[-1].details and events[-1].details.generated_tokens == 60
    assert events[-1].details.finish_reason == "length"


def test_a_stop_sequence_gives_the_finish_reason_stop_sequence(dialects: ServeProcess, grpc: Client) -> None:
    stop = grpc.generate("stories", PROMPT, max_tokens=30).text.split()[4]
    answer = api(dialects, "stories").text_generation(PROMPT, max_new_tokens=30, details=True, stop=[stop])
    assert answer.details and answer.details.finish_reason == "stop_sequence"


def test_details_of_a_beam_search_have_no_tokens(dialects: ServeProcess, grpc: Client) -> None:
    answer = api(dialects, "summaries").text_generation(CONTEXT, details=True)
    expected = grpc.generate("summaries", CONTEXT)
    assert answer.generated_text == expected.text and answer.details and answer.details.tokens == []
    assert answer.details.generated_tokens == expected.output_tokens and answer.details.finish_reason == "eos_token"


def test_sampling_settings_change_beams_of_the_model_only_with_do_sample(dialects: ServeProcess, grpc: Client) -> None:
    client, beams = api(dialects, "summaries"), grpc.generate("summaries", CONTEXT).text
    for settings in ({"temperature": 0.8}, {"temperature": 0.8, "do_sample": False, "top_k": 10, "top_p": 0.95}):
        assert client.text_generation(CONTEXT, **settings) == beams  # type: ignore[call-overload]
    sampled = grpc.generate("summaries", CONTEXT, num_beams=1, temperature=5.0, seed=3).text
    assert client.text_generation(CONTEXT, do_sample=True, temperature=5.0, seed=3) == sampled != beams
    with pytest.raises(BadRequestError, match="beams are not sampled"):
        client.summarization(CONTEXT, generate_parameters={"num_beams": 4, "temperature": 0.8})


def test_langchains_endpoint_works_with_its_defaults(dialects: ServeProcess, grpc: Client) -> None:
    endpoint = pytest.importorskip("langchain_huggingface").HuggingFaceEndpoint
    headers = {"Authorization": f"Bearer {API_KEY}"}  # it sends its token to Hugging Face's own hosts only
    llm = endpoint(endpoint_url=f"{dialects.http_url}/models/summaries", server_kwargs={"headers": headers})
    assert llm.invoke(CONTEXT) == "".join(llm.stream(CONTEXT)) == grpc.generate("summaries", CONTEXT).text


def test_summarization_takes_generate_parameters(dialects: ServeProcess, grpc: Client) -> None:
    options = {"max_new_tokens": 10, "num_beams": 2}
    answer = api(dialects, "summaries").summarization(CONTEXT, generate_parameters=options)
    assert answer.summary_text == grpc.generate("summaries", CONTEXT, **options).text  # type: ignore[call-overload]


def test_a_list_of_inputs_gets_a_list_of_answers(dialects: ServeProcess, grpc: Client) -> None:
    inputs = [{"question": "Who?", "context": CONTEXT}, {"question": "When?", "context": CONTEXT}]
    _, _, answers = call(dialects, "/models/answers-fp32", {"inputs": inputs})
    expected = grpc.answer("answers-fp32", ["Who?", "When?"], CONTEXT)
    assert [(each["answer"], each["start"]) for each in answers] == [(each.answer, each.start) for each in expected]
    texts = [TEXT, CONTEXT] * 40
    _, _, labels = call(dialects, "/models/sentiment-fp32", {"inputs": texts, "parameters": {"top_k": 1}})
    assert [label["score"] for [label] in labels] == [each.score for each in grpc.classify("sentiment-fp32", texts)]


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        ("sentiment-fp32", {"inputs": 3}, "inputs is 3"),
        ("sentiment-fp32", {"inputs": []}, "inputs is"),
        ("sentiment-fp32", {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}, "function_to_apply"),
        ("sentiment-fp32", {"inputs": TEXT, "parameters": {"top_k": 0}}, "top_k is 0"),
        ("sentiment-fp32", {"inputs": TEXT, "stream": True}, "is for text-classification"),
        ("entities-fp32", {"inputs": TEXT, "parameters": {"aggregation_strategy": "max"}}, "exported with"),
        ("answers-fp32", {"inputs": TEXT}, "question and a context"),
        ("nli-fp32", {"inputs": TEXT}, "candidate_labels"),
        (RANKER, {"inputs": TEXT}, "query and texts"),
        (RANKER, {"inputs": {"query": "a", "texts": []}}, "texts is"),
        ("stories", {"inputs": PROMPT, "parameters": {"details": True, "num_beams": 2}}, "details is true"),
        ("summaries", {"inputs": PROMPT, "parameters": {"details": True, "top_n_tokens": 2}}, "top_n_tokens is 2"),
        ("stories", {"inputs": PROMPT, "parameters": {"top_n_tokens": 2}}, "top_n_tokens go with details"),
        ("stories", {"inputs": PROMPT, "parameters": {"decoder_input_details": True}}, "decoder_input_details"),
        ("stories", {"inputs": PROMPT, "parameters": {"max_new_tokens": -1}}, "max_new_tokens is -1|max_tokens is -1"),
        ("stories", {"inputs": PROMPT, "parameters": []}, ""),
    ],
)
def test_an_invalid_or_unsupported_field_is_a_400(
    model: str, fields: dict[str, Any], message: str, dialects: ServeProcess
) -> None:
    status, _, answer = call(dialects, f"/models/{model}", fields)
    if message:
        assert (status, answer["error_type"]) == (400, "validation")
        assert any(part in answer["error"] for part in message.split("|")), answer
    else:
        assert status == 200  # an empty list of parameters, as some clients write none


def test_errors_become_the_exceptions_of_huggingface_hub(dialects: ServeProcess) -> None:
    with pytest.raises(BadRequestError):
        api(dialects, "sentiment-fp32").text_classification(TEXT, top_k=0)
    with pytest.raises(ValidationError):
        api(dialects, "stories").text_generation(PROMPT, max_new_tokens=100_000)


def test_the_root_names_the_models_where_there_are_several(dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/", {"inputs": TEXT})
    assert status == 400 and "stories" in answer["error"]
