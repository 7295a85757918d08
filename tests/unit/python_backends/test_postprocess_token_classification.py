"""Entities equal those of transformers' TokenClassificationPipeline, for every aggregation and kind of tokenizer."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from hfx.python_backends.inputs import strings
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


def check_equal(tokenizer: Any, model: Any, aggregation: str, folder: Path, texts: tuple[str, ...] = TEXTS) -> int:
    pipe = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=aggregation)
    encoder = encoder_for(tokenizer, "token-classification", folder)
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
        fed = encoded(encoder, [text])
        answer = postprocessor.answer(fed | run_torch(model, fed, ("logits",)) | {"text_input": strings(text)})
        assert entities(answer) == expected, text[:40]
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
