"""Our copy of the question-answering rules gives the answers of transformers' own pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer, pipeline

from tests import zoo
from tests.rigs.checkpoints.question_answering import best_answer, best_answers
from tests.unit.python_backends.test_postprocess_question_answering import CONTEXTS, SETTINGS, STORY, random_reader

QUESTIONS = ("Where did Anna go?", "Who?", "[CLS] <s> who?")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("scale", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("name", ["answers-bert", "topics-roberta", "sentiment-xlm-roberta"])
def test_our_copy_of_the_rules_gives_the_answers_of_the_pipeline(name: str, scale: float, side: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint(name))
    tokenizer.padding_side = side
    model = random_reader(tokenizer, scale)
    pipe: Any = pipeline("question-answering", model=model, tokenizer=tokenizer)
    answered = 0
    for question in QUESTIONS:
        # With padding on the left, it takes a pad that a text spells for padding before the text, and moves answers.
        for context in CONTEXTS if side == "right" else [text for text in CONTEXTS if "<pad>" not in text]:
            expected = pipe(question=question, context=context)
            found = best_answer(model, tokenizer, question, context)
            if not isinstance(expected, dict) or expected["score"] == 0.0:
                assert found is None or found["score"] == 0.0
                continue
            answered += 1
            assert found == expected
    assert answered > 5


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["answers-bert", "topics-roberta"])
def test_settings_of_the_pipeline_give_the_same_answers(name: str, settings: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint(name))
    for scale in (0.1, 0.5):
        model = random_reader(tokenizer, scale)
        pipe: Any = pipeline("question-answering", model=model, tokenizer=tokenizer)
        for context in (STORY, STORY * 4, STORY * 12):
            expected = pipe(question=QUESTIONS[0], context=context, **settings)
            found = best_answers(model, tokenizer, QUESTIONS[0], context, **settings)
            assert found == (expected if isinstance(expected, list) else [expected])
