"""Concurrent calls: results in order, a bounded number of items read ahead, and no call left running."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count, islice
from queue import SimpleQueue

import pytest

from hfx.answering import Answer, Model, Request, cancellable, map_all, ordered_map
from hfx.errors import RequestRefused, UsageError
from hfx.metadata import ModelMetadata
from hfx.names import Task

PATIENCE = 10  # seconds until a waiting test gives up


def test_answers_come_in_order_however_they_end() -> None:
    second_is_done = threading.Event()

    def ask(question: int) -> int:
        if question == 1:
            assert second_is_done.wait(PATIENCE)
        else:
            second_is_done.set()
        return question * 10

    assert list(ordered_map(ask, [1, 2], 2)) == [(1, 10), (2, 20)]


def test_an_answer_does_not_wait_for_the_next_question() -> None:
    """A program that writes one line and waits for its answer would otherwise wait for ever."""
    questions: SimpleQueue[int | None] = SimpleQueue()
    with closing(ordered_map(lambda question: -question, iter(questions.get, None), 8)) as answers:
        for number in range(3):
            questions.put(number)
            assert next(answers) == (number, -number)
        questions.put(None)
        assert list(answers) == []


def breaking() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError


@pytest.mark.parametrize("source", [[1, 0, 1], breaking()], ids=["call", "source"])
def test_an_unexpected_exception_is_raised_in_order(source: Iterable[int]) -> None:
    answers = ordered_map(lambda question: 1 // question, source, 4)
    assert next(answers) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_an_endless_source_is_drawn_no_further_than_answers_are_taken() -> None:
    source = count()
    with closing(ordered_map(lambda question: question, source, 4)) as answers:
        assert len(list(islice(answers, 100))) == 100
    assert next(source) <= 100 + 4 + 2


def test_a_slow_call_of_all_keeps_no_other_waiting() -> None:
    last_is_done = threading.Event()

    def ask(question: int) -> int:
        if question == 9:
            last_is_done.set()
        elif question == 0:
            assert last_is_done.wait(PATIENCE)
        return -question

    assert map_all(ask, range(10), 2) == [-question for question in range(10)]


def test_closing_cancels_the_calls_under_way() -> None:
    started, cancelled = threading.Barrier(3), threading.Semaphore(0)

    def wait(item: int) -> int:
        released = threading.Event()
        with cancellable(lambda: (released.set(), cancelled.release())):
            if item:
                started.wait(PATIENCE)
                assert released.wait(PATIENCE)
        return item

    with closing(ordered_map(wait, range(3), 3)) as outcomes:
        assert next(outcomes) == (0, 0)
        started.wait(PATIENCE)
    assert cancelled.acquire(timeout=PATIENCE) and cancelled.acquire(timeout=PATIENCE)


def test_a_model_answers_each_item_or_tells_why_not() -> None:
    def answer(request: Request) -> Answer:
        if request["text_input"] == ["no"]:
            raise RequestRefused("No.")
        return {"label": request["text_input"][0]}

    def request_of(text: str) -> Request:
        if not text:
            raise UsageError("There is no text.")
        return {"text_input": [text]}

    model = Model(Task.TEXT_CLASSIFICATION, ModelMetadata("m", (), ()), answer, None, at_once=2)
    found = list(model.answer_each(["a", "", "no", "b"], request_of))
    assert [item for item, _ in found] == ["a", "", "no", "b"]
    assert [type(outcome).__name__ for _, outcome in found] == ["dict", "UsageError", "RequestRefused", "dict"]
    assert found[3][1] == {"label": "b"}
