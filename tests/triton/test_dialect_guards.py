"""Guards on `hfx serve`, called as their clients do: moderations; goose; Presidio's and NeMo Anonymizer's detectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hfx.client import Client
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_random
from tests.rigs.clients.dialect_calls import call
from tests.rigs.servers.serve_process import ServeProcess

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.triton
TOXIC, INJECTION, NUMBERED, REGRESSION = "toxic", "injection", "numbered", "regression"
TEXTS = ["the cat sat in paris", "a bad film", "the good dog ran", "a b a b ?", "bad bad dogs"]
ENTITIES, PEOPLE = "entities-fp32", "Maria Keller from Vienna met Tom Becker of Acme Steel in Oslo."
LABELS = {
    TOXIC: ("insult", "threat", "hate"),
    INJECTION: ("SAFE", "INJECTION"),
    NUMBERED: ("LABEL_0", "LABEL_1", "LABEL_2"),
    REGRESSION: ("LABEL_0",),
}
CONFIGS: dict[str, dict[str, Any]] = {
    TOXIC: {"problem_type": "multi_label_classification"},
    REGRESSION: {"problem_type": "regression"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    NUMBERED: {"safe_label": ("LABEL_1", "LABEL_2"), "threshold": ("0.9", "LABEL_0=0.35")},
    REGRESSION: {"task": "text-classification"},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name, labels in LABELS.items():
        model = tiny_checkpoints.bert(
            num_labels=len(labels), id2label=dict(enumerate(labels)), initializer_range=0.5, **CONFIGS.get(name, {})
        )
        checkpoint = tiny_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / name, model)
        export_random(checkpoint, folder, name=name, **OPTIONS.get(name, {}))
    return folder


@pytest.fixture(scope="module")
def api(served: ServeProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the server."""
    import openai

    with openai.OpenAI(base_url=f"{served.http_url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("model", "categories", "threshold"),
    [(TOXIC, LABELS[TOXIC], 0.5), (INJECTION, ("INJECTION",), 0.5), (NUMBERED, ("LABEL_0",), 0.35)],
)
def test_moderations_flag_the_labels_whose_scores_reach_the_threshold(
    model: str, categories: tuple[str, ...], threshold: float, api: openai.OpenAI, client: Client
) -> None:
    answer = api.moderations.create(model=model, input=TEXTS)
    assert (answer.model, len(answer.results)) == (model, len(TEXTS))
    flags = set()
    for result, text in zip(answer.results, TEXTS, strict=True):
        all_scores = {each.label: each.score for each in client.classify(model, text, top_k=9).predictions}
        scores = {category: all_scores[category] for category in categories}
        found = result.to_dict()
        assert found["category_scores"] == scores
        assert found["categories"] == {name: score >= threshold for name, score in scores.items()}
        assert found["category_applied_input_types"] == {category: ["text"] for category in categories}
        assert result.flagged == any(score >= threshold for score in scores.values())
        flags.add(result.flagged)
    assert flags == {False, True}


def test_moderations_take_a_text_texts_and_the_parts_of_a_text(api: openai.OpenAI) -> None:
    [one] = api.moderations.create(model=TOXIC, input=TEXTS[0]).results
    assert one == api.moderations.create(model=TOXIC, input=TEXTS).results[0]
    [parts] = api.moderations.create(model=TOXIC, input=[{"type": "text", "text": text} for text in TEXTS[:2]]).results
    assert parts == api.moderations.create(model=TOXIC, input="\n".join(TEXTS[:2])).results[0]
    score = max(one.to_dict()["category_scores"].values())
    for threshold, flagged in ((score, True), (score + 1e-6, False)):
        [result] = api.moderations.create(model=TOXIC, input=TEXTS[0], extra_body={"threshold": threshold}).results
        assert result.flagged == flagged


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("status", "field", "body"),
    [
        (400, "model", {"model": REGRESSION, "input": "a"}),
        (400, "input", {"model": TOXIC}),
        (400, "input", {"model": TOXIC, "input": []}),
        (400, "input", {"model": TOXIC, "input": [3]}),
        (400, "input", {"model": TOXIC, "input": [{"type": "text", "text": "a"}, IMAGE]}),
        (400, "input", {"model": TOXIC, "input": [{"type": "text"}]}),
        (400, "input", {"model": TOXIC, "input": [{"type": "text", "text": "a"}, "a"]}),
        (413, "input", {"model": TOXIC, "input": ["a"] * 3000}),
        (413, "input", {"model": TOXIC, "input": "a " * 400}),
        (400, "threshold", {"model": TOXIC, "input": "a", "threshold": 1.5}),
        (400, "threshold", {"model": TOXIC, "input": "a", "threshold": "0.5"}),
        (400, "labels", {"model": TOXIC, "input": "a", "labels": ["x"]}),
        (404, None, {"model": "omni-moderation-latest", "input": "a"}),
        (400, None, {"input": "a"}),  # four models classify texts
    ],
)
def test_an_invalid_moderation_names_the_field(
    status: int, field: str | None, body: dict[str, Any], served: ServeProcess
) -> None:
    answered, _, answer = call(served, "/v1/moderations", body)
    assert (answered, answer["error"]["param"]) == (status, field), answer


def test_goose_reads_the_score_of_an_injection(served: ServeProcess, client: Client) -> None:
    for body in ({"inputs": TEXTS[1]}, {"inputs": TEXTS[1], "parameters": {"truncation": True, "max_length": 64}}):
        status, _, answer = call(served, f"/models/{INJECTION}", body)
        [labels] = answer  # its client reads the first list
        expected = client.classify(INJECTION, TEXTS[1], top_k=9).predictions
        assert (status, labels) == (200, [{"label": each.label, "score": each.score} for each in expected])
        assert abs(sum(each["score"] for each in labels) - 1) < 0.1  # or it applies a softmax


# Entities: the trained model of the shared server


@pytest.fixture(scope="module")
def spans(grpc: Client) -> list[dict[str, Any]]:
    """The entities of PEOPLE according to hfx's client, without those that no threshold of the tests keeps."""
    return [
        {"label": each.entity, "start": each.start, "end": each.end, "score": each.score}
        for each in grpc.label_tokens(ENTITIES, PEOPLE).entities
    ]


def analyzed(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"entity_type": each["label"], "start": each["start"], "end": each["end"], "score": each["score"]}
        | {"analysis_explanation": None}
        for each in spans
    ]


def test_presidios_remote_recognizer_gets_the_entities(dialects: ServeProcess, spans: list[dict[str, Any]]) -> None:
    assert len({each["label"] for each in spans}) > 1
    labels = call(dialects, "/supportedentities?language=en")[2]
    assert {each["label"] for each in spans} <= set(labels) and "O" not in labels
    body = {"text": PEOPLE, "language": "en"}  # all that Presidio's example sends
    for path in ("/analyze", f"/models/{ENTITIES}/analyze"):
        assert call(dialects, path, body)[::2] == (200, analyzed(spans))
    assert call(dialects, "/analyze", {**body, "text": [PEOPLE, "a"]})[2] == [analyzed(spans), []]
    chosen = {"entities": [labels[0].lower(), "UNKNOWN"], "correlation_id": "7", "ad_hoc_recognizers": None}
    expected = [each for each in spans if each["label"] == labels[0]]
    assert call(dialects, "/analyze", {**body, **chosen})[2] == analyzed(expected)
    least = max(each["score"] for each in spans)
    answer = call(dialects, "/analyze", {**body, "score_threshold": least})[2]
    assert answer == analyzed([each for each in spans if each["score"] == least])


@pytest.mark.parametrize(
    ("status", "named", "fields"),
    [
        (400, "text", {"text": 3}),
        (400, "text", {}),
        (400, "entities", {"text": "a", "entities": ["UNKNOWN"]}),
        (400, "entities", {"text": "a", "entities": []}),
        (400, "score_threshold", {"text": "a", "score_threshold": -0.1}),
        (400, "ad_hoc_recognizers", {"text": "a", "ad_hoc_recognizers": [{"name": "zip"}]}),
        (413, "text", {"text": ["a"] * 3000}),
    ],
)
def test_an_invalid_analysis_has_presidios_error(
    status: int, named: str, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, "/analyze", fields)
    assert (answered, list(answer)) == (status, ["error"]) and named in answer["error"], answer


def test_nemo_anonymizer_gets_the_entities(openai_api: openai.OpenAI, spans: list[dict[str, Any]]) -> None:
    labels = sorted({each["label"] for each in spans})
    detector = {"labels": [*labels, "email"], "threshold": 0.0, "chunk_length": 384, "overlap": 128, "flat_ner": False}
    assert ENTITIES in [each.id for each in openai_api.models.list()]  # it looks for its model first
    messages: Any = [{"role": "user", "content": PEOPLE}]
    answer = openai_api.chat.completions.create(model=ENTITIES, messages=messages, extra_body=detector)
    [choice] = answer.choices
    found = json.loads(choice.message.content or "")["entities"]
    assert choice.finish_reason == "stop" and answer.usage and answer.usage.prompt_tokens > 0
    assert found == [{**each, "text": PEOPLE[each["start"] : each["end"]]} for each in spans]
    detector |= {"labels": labels[:1], "seed": 7}  # batches seed each chat completion
    answer = openai_api.chat.completions.create(model=ENTITIES, messages=messages, extra_body=detector)
    found = json.loads(answer.choices[0].message.content or "")["entities"]
    assert [each["label"] for each in found] == [each["label"] for each in spans if each["label"] == labels[0]]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("labels", {"labels": ["email"]}),
        ("labels", {"labels": "person"}),
        ("threshold", {"threshold": 2}),
        ("chunk_length", {"chunk_length": "384"}),
        ("flat_ner", {"flat_ner": "no"}),
        ("stream", {"stream": True}),
        ("temperature", {"temperature": 0.5}),
        ("messages", {"messages": [{"role": "user", "content": "a"}] * 2}),
        ("messages", {"messages": []}),
    ],
)
def test_an_invalid_detection_names_the_field(field: str, fields: dict[str, Any], dialects: ServeProcess) -> None:
    body = {"model": ENTITIES, "messages": [{"role": "user", "content": "a"}], **fields}
    status, _, answer = call(dialects, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, field), answer
