"""Many questions at a time: answers in order, as soon as they are there, and no more drawn than may be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from queue import SimpleQueue

import pytest

from hfx.cli.in_turn import in_turn
from hfx.errors import HfxError, UsageError

PATIENCE = 10  # seconds until a test that waits for something gives up


def test_answers_come_in_order_however_they_end() -> None:
    second_is_done = threading.Event()

    def ask(question: int) -> int:
        if question == 1:
            assert second_is_done.wait(PATIENCE)
        else:
            second_is_done.set()
        return question * 10

    assert list(in_turn(ask, [1, 2], 2)) == [(1, 10), (2, 20)]


def test_an_answer_does_not_wait_for_the_next_question() -> None:
    """A program that writes one line and waits for its answer would wait for ever."""
    questions: SimpleQueue[int | None] = SimpleQueue()
    with closing(in_turn(lambda question: -question, iter(questions.get, None), 8)) as answers:
        for number in range(3):
            questions.put(number)
            assert next(answers) == (number, -number)
        questions.put(None)
        assert list(answers) == []


def test_an_error_stands_in_its_place() -> None:
    def ask(question: int) -> int:
        if question == 1:
            raise UsageError("odd")
        return question

    found = [outcome for _, outcome in in_turn(ask, range(3), 4)]
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], HfxError)


def test_what_nobody_expects_is_raised_in_its_turn() -> None:
    answers = in_turn(lambda question: 1 // question, [1, 0, 1], 4)
    assert next(answers) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_a_source_that_breaks_is_raised_after_what_it_gave() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    answers = in_turn(lambda question: question, source(), 4)
    assert next(answers) == (1, 1)
    with pytest.raises(OSError, match="gone"):
        next(answers)


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_are_asked_at_a_time_than_may_be(at_once: int) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Barrier(at_once)

    def ask(question: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(PATIENCE)
        with lock:
            running -= 1
        return question

    assert [question for question, _ in in_turn(ask, range(3 * at_once), at_once)] == list(range(3 * at_once))
    assert most == at_once


def test_an_endless_source_is_drawn_no_further_than_answers_are_taken() -> None:
    drawn = []

    def source() -> Iterator[int]:
        for number in count():
            drawn.append(number)
            yield number

    with closing(in_turn(lambda question: question, source(), 4)) as answers:
        assert len(list(islice(answers, 100))) == 100
        assert len(drawn) <= 100 + 4 + 1
    assert len(drawn) <= 100 + 4 + 2
