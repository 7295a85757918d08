"""Guards on `hfx serve`: OpenAI's moderations, with OpenAI's client."""

from __future__ import annotations

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
    NUMBERED: {"safe_label": ("LABEL_1", "LABEL_2"), "threshold": 0.35},
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
