"""Entities equal those of transformers' TokenClassificationPipeline, for every aggregation and kind of tokenizer."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from hfx.python_backends.errors import ContextTooLong, InvalidInput
from hfx.python_backends.inputs import strings
from hfx.python_backends.windows import CONTEXT_BYTES, CONTEXT_TOKENS
from tests import zoo
from tests.rigs.checkpoints.encoder_line import (
    EDGE_TEXTS,
    encoded,
    encoder_for,
    postprocessor_for,
    random_bert,
    run_torch,
)

AGGREGATIONS = ("none", "simple", "first", "average", "max")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "B-X-Y")
TEXTS = (
    *EDGE_TEXTS,
    "Anna Berg works for Novak Industries in Paris, and Boris O'Neil doesn't.",
    "Zürich's Müller-Lüdenscheidt went to Côte d'Ivoire (again).",
    "Anna went to Paris. " * 60,
)


@pytest.fixture
def bert() -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer("entities-bert"))


def random_tagger(tokenizer: Any) -> Any:
    """Return a tagger that may give any token any tag, with more borders between groups than a trained one."""
    names = dict(enumerate(LABELS))
    ids = {label: at for at, label in names.items()}
    return random_bert("ForTokenClassification", tokenizer, 0.7, seed=3, id2label=names, label2id=ids)


def entities(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads(answer["entities"][0, 0])  # type: ignore[no-any-return]


def expected_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "entity": each.get("entity_group", each.get("entity")),
            "score": float(np.float32(each["score"])),
            "start": each["start"],
            "end": each["end"],
            "word": each["word"],
        }
        for each in found
    ]


def check_equal(
    tokenizer: Any,
    model: Any,
    aggregation: str,
    folder: Path,
    texts: tuple[str, ...] = TEXTS,
    stride: int | None = None,
) -> int:
    """Compare the entities with the pipeline's, in windows if there is a `stride`, and return their number."""
    how: dict[str, Any] = {"aggregation_strategy": aggregation, "stride": stride}
    pipe = pipeline("token-classification", model=model, tokenizer=tokenizer, **how)
    encoder = encoder_for(tokenizer, "token-classification", folder, stride=stride)
    postprocessor = postprocessor_for(
        folder,
        task="token-classification",
        labels=[model.config.id2label[at] for at in range(model.config.num_labels)],
        aggregation=aggregation,
        unk_id=tokenizer.unk_token_id,
    )
    count = 0
    for text in texts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = expected_of(pipe(text)) if text else []
        fed = encoded(encoder, encoder.items({"text_input": strings(text)}))
        answer = postprocessor.answer(fed | run_torch(model, fed, ("logits",)) | {"text_input": strings(text)})
        found = entities(answer)
        if stride is not None:  # the pipeline's model computes the padding of the last window
            scores = [each.pop("score") for each in found], [each.pop("score") for each in expected]
            assert scores[0] == pytest.approx(scores[1], abs=1e-6)
        assert found == expected, text[:40]
        count += len(expected)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_trained_tagger_answers_as_in_the_pipeline(aggregation: str, tmp_path: Path) -> None:
    folder = zoo.checkpoint("entities-bert")
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    texts = (*TEXTS, *(example.text for example in zoo.heldout("entities", 50)))
    assert check_equal(AutoTokenizer.from_pretrained(folder), model, aggregation, tmp_path, texts) > 50


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["entities-bert", "topics-roberta", "sentiment-xlm-roberta", "sentiment-albert"])
def test_any_tags_answer_as_in_the_pipeline(name: str, aggregation: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    assert check_equal(tokenizer, random_tagger(tokenizer), aggregation, tmp_path) > 30


@pytest.mark.parametrize("aggregation", ["none", "simple", "average"])
def test_a_text_truncated_on_the_left_keeps_its_places(bert: Any, aggregation: str, tmp_path: Path) -> None:
    bert.truncation_side = "left"
    texts = ("Anna went to Zürich. " * 100, "é" * 9000 + " Anna went to Zürich. " * 100)
    check_equal(bert, random_tagger(bert), aggregation, tmp_path, texts)


@pytest.mark.parametrize("aggregation", [each for each in AGGREGATIONS if each != "none"])
@pytest.mark.parametrize(
    ("name", "side", "stride"),
    [
        ("entities-bert", "right", 0),
        ("entities-bert", "right", 9),
        ("entities-bert", "left", 16),
        ("topics-roberta", "right", 16),
        ("sentiment-xlm-roberta", "right", 29),
        ("sentiment-albert", "right", 16),
    ],
)
def test_a_long_text_answers_as_in_the_pipeline_with_the_same_stride(
    name: str, side: str, stride: int, aggregation: str, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    tokenizer.truncation_side, tokenizer.model_max_length = side, 32
    long = (*TEXTS, " ".join(TEXTS[-4:]), "é" * 400 + " Anna went to Zürich. " * 9, " " * 3000 + "Anna Berg, Paris")
    assert check_equal(tokenizer, random_tagger(tokenizer), aggregation, tmp_path, long, stride) > 30


def test_tokens_of_two_windows_are_found_once_without_aggregation(bert: Any, tmp_path: Path) -> None:
    """The pipeline has no windows without aggregation, so that the model's whole text is the reference."""
    text = "Anna went to Paris. " * 30
    encoder = encoder_for(bert, "token-classification", tmp_path, max_length=32, stride=8)
    tags = {"task": "token-classification", "labels": ["O", "B-X"], "unk_id": bert.unk_token_id}
    fed = encoded(encoder, encoder.items({"text_input": strings(text)}))
    logits = np.zeros((*fed["input_ids"].shape, 2), np.float32)
    logits[..., 1] = 1.0
    postprocessor = postprocessor_for(tmp_path, aggregation="none", **tags)
    answer = postprocessor.answer(fed | {"logits": logits, "text_input": strings(text)})
    expected = bert(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    assert [(each["start"], each["end"]) for each in entities(answer)] == expected


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"stride": np.array([[-1]])}, InvalidInput),
        ({"stride": np.array([[30]])}, InvalidInput),
        ({"stride": np.array([[1], [1]])}, InvalidInput),
        ({"long": strings("mean")}, InvalidInput),
        ({"long": strings("")}, InvalidInput),
        ({"long": strings(b"\xff")}, InvalidInput),
        ({"long": strings("truncate"), "stride": np.array([[1]])}, InvalidInput),
        ({"long": strings("error")}, ContextTooLong),
        ({}, None),
        ({"long": strings("truncate")}, None),
    ],
)
def test_settings_of_long_texts_are_checked(
    bert: Any, settings: dict[str, Any], error: type[Exception] | None, tmp_path: Path
) -> None:
    encoder = encoder_for(bert, "token-classification", tmp_path, max_length=32, stride=8)

    def encode(text: str) -> Any:
        [row] = encoder.encode(encoder.items({"text_input": strings(text), **settings}))
        if isinstance(row, Exception):
            raise row
        return row

    if error is not None:
        with pytest.raises(error):
            encode("the " * 31)
        return
    row, cut = encode("the " * 31), settings != {}
    assert (len(row.sequences), row.truncated_tokens) == ((1, 1) if cut else (2, 0))
    assert len(encode("the " * 30).sequences) == 1


def test_a_text_of_too_many_windows_is_refused(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "token-classification", tmp_path, max_length=32, stride=28)
    fits, above = "the " * (30 + 2 * (CONTEXT_TOKENS // 32 - 1)), " " * (CONTEXT_BYTES + 1)
    [row, *refused] = [
        encoder.encode(encoder.items({"text_input": strings(text)}))[0] for text in (fits, f"{fits} the", above)
    ]
    assert not isinstance(row, Exception) and len(row.sequences) == CONTEXT_TOKENS // 32
    assert all(isinstance(each, ContextTooLong) for each in refused)


def test_text_stays_text_in_the_json(bert: Any, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "token-classification", tmp_path)
    postprocessor = postprocessor_for(
        tmp_path, task="token-classification", labels=["O", "B-😀"], aggregation="none", unk_id=bert.unk_token_id
    )
    text = "漢字"
    fed = encoded(encoder, [text])
    logits = np.zeros((*fed["input_ids"].shape, 2), np.float32)
    logits[..., 1] = 1.0
    answer = postprocessor.answer(fed | {"logits": logits, "text_input": strings(text)})
    raw = answer["entities"][0, 0]
    assert raw.decode().count("漢") == 1 and raw.decode().count("😀") == 2
    assert [each["word"] for each in json.loads(raw)] == ["漢", "字"]


def test_an_unknown_aggregation_is_refused(bert: Any, tmp_path: Path) -> None:
    encoder_for(bert, "token-classification", tmp_path)
    with pytest.raises(ValueError, match="aggregation is 'median'"):
        postprocessor_for(tmp_path, task="token-classification", labels=["O"], aggregation="median")
