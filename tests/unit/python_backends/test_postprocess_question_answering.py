"""Answers equal those of transformers' QuestionAnsweringPipeline (4.57), over any number of windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from hfx.python_backends.errors import InvalidInput
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
from tests.rigs.checkpoints.question_answering import best_answer, best_answers
from tests.rigs.machine.tiers import few, full

STORY = "Anna went from Paris to the market in Berlin. Bob's unbelievably friendly neighbour, Zoë, stayed at home. "
CONTEXTS = (
    *(text for text in EDGE_TEXTS if text.strip()),
    STORY,
    STORY * 4,
    STORY * 12,
    STORY * 60,
    "x" * 150 + STORY * 8,
)
TOKENIZERS = ("answers-bert", "topics-roberta", "sentiment-xlm-roberta")
OUTPUTS = ("start_logits", "end_logits")


@pytest.fixture
def bert() -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer("answers-bert"))


def random_reader(tokenizer: Any, scale: float = 0.5) -> Any:
    return random_bert("ForQuestionAnswering", tokenizer, scale, seed=5)


def check_equal(tokenizer: Any, model: Any, folder: Path, pairs: list[tuple[str, str]]) -> int:
    """Check that rows have the pipeline's answers, and return how many rows had an answer."""
    encoder = encoder_for(tokenizer, "question-answering", folder)
    postprocessor = postprocessor_for(folder, task="question-answering", max_answer_length=15)
    answered = 0
    for question, context in pairs:
        expected = best_answer(model, tokenizer, question, context)
        fed = encoded(encoder, [(question, context)])
        answer = postprocessor.answer(fed | run_torch(model, fed, OUTPUTS) | {"context": strings(context)})
        if expected is None or expected["score"] == 0.0:
            assert answer["score"].tolist() == [[0.0]]
            continue
        answered += 1
        assert answer["answer"][0, 0].decode() == expected["answer"], context[:40]
        if expected["answer"]:
            assert (answer["start"][0, 0], answer["end"][0, 0]) == (expected["start"], expected["end"]), context[:40]
        assert answer["score"][0, 0] == np.float32(expected["score"]), context[:40]
    return answered


@pytest.mark.slow
def test_a_trained_reader_answers_as_in_the_pipeline(tmp_path: Path) -> None:
    folder = zoo.checkpoint("answers-bert")
    examples = zoo.heldout("answers", 60)
    pairs = [(example.question, example.context) for example in examples]
    pairs += [(example.question, " ".join(other.context for other in examples[:20])) for example in examples[:5]]
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    assert check_equal(AutoTokenizer.from_pretrained(folder), model, tmp_path, pairs) > 50


@pytest.mark.parametrize("scale", [0.1, full(0.5), 1.5])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_scores_answer_as_in_the_pipeline(name: str, scale: float, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    pairs = [("Where did Anna go?", context) for context in CONTEXTS] + [("Who?", STORY), ("[CLS] <s> who?", STORY * 3)]
    assert check_equal(tokenizer, random_reader(tokenizer, scale), tmp_path, pairs) > 10


# The pipeline masks nothing where padding is on the left: a span may begin in the context and end in the question, and
# is then empty.
@pytest.mark.parametrize("side", ["truncation_side", "padding_side"])
def test_a_tokenizer_that_cuts_or_pads_on_the_left_answers_as_in_the_pipeline(
    bert: Any, side: str, tmp_path: Path
) -> None:
    setattr(bert, side, "left")
    pairs = [("Where did Anna go?", context) for context in (STORY, STORY * 6, STORY * 12)]
    assert check_equal(bert, random_reader(bert), tmp_path, pairs) == 3


# A span may begin or end at a token that no word of the context has the number of, and then has the characters of both
# tokens, not of their words.
@pytest.mark.parametrize("seed", [0, 1, *map(full, range(2, 6))])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_spans_into_the_question_answer_as_in_the_pipeline(name: str, seed: int, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    tokenizer.padding_side = "left"
    question = "Unbelievably friendly: where did Anna go?"
    pairs = [(question, context) for context in ("unbelievable", "Anna, supercalifragilistic", STORY, STORY * 12)]
    model = random_bert("ForQuestionAnswering", tokenizer, 1.5, seed=seed)
    assert check_equal(tokenizer, model, tmp_path, pairs) == 4


def test_rows_of_different_numbers_of_windows_answer_as_alone(bert: Any, tmp_path: Path) -> None:
    model = random_reader(bert)
    encoder = encoder_for(bert, "question-answering", tmp_path)
    postprocessor = postprocessor_for(tmp_path, task="question-answering")
    pairs = [("Who?", STORY * 8), ("Where?", "Paris"), ("Where did Anna go?", STORY)]

    def answers(items: list[tuple[str, str]]) -> dict[str, Any]:
        fed = encoded(encoder, items)
        contexts = strings(*(context for _, context in items))
        return postprocessor.answer(fed | run_torch(model, fed, OUTPUTS) | {"context": contexts})

    together = answers(pairs)
    for row, pair in enumerate(pairs):
        assert {name: array[0, 0] for name, array in answers([pair]).items()} == {
            name: array[row, 0] for name, array in together.items()
        }


def test_scores_of_a_batch_that_was_padded_to_more_windows_answer_as_alone(bert: Any, tmp_path: Path) -> None:
    fed = encoded(encoder_for(bert, "question-answering", tmp_path), [("Who?", STORY * 3)])
    fed |= run_torch(random_reader(bert), fed, OUTPUTS) | {"context": strings(STORY * 3)}
    postprocessor = postprocessor_for(tmp_path, task="question-answering")
    padded = {name: np.pad(fed[name], ((0, 0), (0, 2), (0, 8)), constant_values=50.0) for name in OUTPUTS}
    assert postprocessor.answer(fed | padded) == postprocessor.answer(fed)


@pytest.mark.parametrize("cls_id", [None, 2])
def test_a_context_without_tokens_has_no_answer(bert: Any, cls_id: int | None, tmp_path: Path) -> None:
    fed = encoded(encoder_for(bert, "question-answering", tmp_path, cls_id=cls_id), [("Who?", " \n ")])
    fed |= {name: np.zeros(fed["input_ids"].shape, np.float32) for name in OUTPUTS} | {"context": strings(" \n ")}
    answer = postprocessor_for(tmp_path, task="question-answering").answer(fed)
    assert {name: array.tolist() for name, array in answer.items()} == {
        "answer": [[b""]], "score": [[0.0]], "start": [[0]], "end": [[0]],
        "answers": [[b'[{"answer": "", "start": 0, "end": 0, "score": 0.0}]']],
    }  # fmt: skip


SETTINGS = (
    {"top_k": 3}, {"top_k": 100}, {"max_answer_len": 1}, {"max_answer_len": 3, "top_k": 5}, {"max_answer_len": 500},
    {"handle_impossible_answer": True}, {"handle_impossible_answer": True, "top_k": 4}, {"doc_stride": 0},
    {"doc_stride": 1, "top_k": 2}, {"doc_stride": 100, "handle_impossible_answer": True, "top_k": 20},
)  # fmt: skip


def tensors_of(settings: dict[str, Any]) -> dict[str, Any]:
    kinds = {bool: np.bool_, int: np.int32}
    return {name: np.array([[value]], kinds[type(value)]) for name, value in settings.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", few(TOKENIZERS[:2], "topics-roberta"))
def test_settings_answer_as_in_the_pipeline(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer(name))
    encoder = encoder_for(tokenizer, "question-answering", tmp_path)
    postprocessor = postprocessor_for(tmp_path, task="question-answering", max_answer_length=15)
    for scale in (0.1, 0.5):
        model = random_reader(tokenizer, scale)
        for context in (STORY, STORY * 4, STORY * 12):
            expected = best_answers(model, tokenizer, "Where did Anna go?", context, **settings)
            given = tensors_of(settings)
            pair = {"question": strings("Where did Anna go?"), "context": strings(context)}
            fed = encoded(encoder, encoder.items(pair | given))
            answer = postprocessor.answer(fed | run_torch(model, fed, OUTPUTS) | pair | given)
            found = json.loads(answer["answers"][0, 0])
            assert [each["answer"] for each in found] == [each["answer"] for each in expected]
            assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], rel=1e-6)
            assert [(each["start"], each["end"]) for each in found] == [
                (each["start"], each["end"]) for each in expected
            ]
            assert answer["answer"][0, 0].decode() == expected[0]["answer"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "top_k must be at least 1, not 0"),
        ({"top_k": 101}, "top_k must be at most 100, not 101"),
        ({"max_answer_len": -1}, "max_answer_len must be at least 1, not -1"),
        ({"doc_stride": -1}, "doc_stride is -1; windows may share 0 to 124 tokens"),
        ({"doc_stride": 126}, "doc_stride is 126; windows may share 0 to 124 tokens"),
        ({"doc_stride": 124}, "doc_stride is 124; beside this question it may be 118 at most"),
    ],
)
def test_settings_out_of_range_are_refused(bert: Any, settings: dict[str, int], words: str, tmp_path: Path) -> None:
    encoder = encoder_for(bert, "question-answering", tmp_path, max_length=128, doc_stride=64)
    postprocessor = postprocessor_for(tmp_path, task="question-answering")
    pair = {"question": strings("Where did Anna go?"), "context": strings(STORY * 12)}

    def answer() -> None:
        [row] = encoder.encode(encoder.items(pair | tensors_of(settings)))
        if isinstance(row, Exception):
            raise row
        fed = encoded(encoder, [("Who?", STORY)])
        logits = {name: np.zeros(fed["input_ids"].shape, np.float32) for name in OUTPUTS}
        postprocessor.answer(fed | logits | {"context": strings(STORY)} | tensors_of(settings))

    with pytest.raises(InvalidInput, match=words):
        answer()
