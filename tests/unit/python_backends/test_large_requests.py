"""Large requests run in parts in a thread, with batches of small requests between the parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.onnxruntime.large_requests import FEW, LARGE, LargeRequest, LargeRequests, Turns
from hfx.python_backends.onnxruntime.ragged import Cancelled
from tests.rigs.machine.waiting import wait_until

SECONDS = 10.0
GONE = Cancelled()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def large(turns: Turns) -> Iterator[LargeRequests]:
    made = LargeRequests(turns, 2.0)
    yield made
    made.close()


class Asked:
    """A request whose parts are awaited one after the other, and its answers."""

    def __init__(self, parts: int = 1, elements: int = LARGE + 1, name: str = "") -> None:
        self.parts, self.has_left = parts, False
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.computed = 0
        self.answers: list[Any] = []
        self.request = LargeRequest(elements, self._run, lambda: self.has_left, self.answers.append, GONE, name)

    def _run(self, is_cancelled: Callable[[], bool]) -> Any:
        for part in range(self.parts):
            if part and is_cancelled():
                return GONE
            self.began.release()
            assert self.go_on.acquire(timeout=SECONDS)
            self.computed += 1
        return {"parts": np.array(self.parts)}

    def finish(self) -> None:
        for _ in range(self.parts):
            self.go_on.release()
        wait_until(lambda: self.answers)


def test_a_batch_of_small_requests_runs_before_the_next_part(turns: Turns, large: LargeRequests) -> None:
    asked, seen = Asked(parts=3), list[int]()
    assert large.take(asked.request)
    assert asked.began.acquire(timeout=SECONDS)

    def small() -> None:
        with turns.small():
            seen.append(asked.computed)

    waiting = [threading.Thread(target=small) for _ in range(4)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: turns._small == 4)
    asked.go_on.release()
    for thread in waiting:
        thread.join(SECONDS)
    assert seen == [1] * 4
    asked.finish()
    assert asked.computed == 3


def test_a_large_request_whose_caller_left_is_not_computed_to_its_end(large: LargeRequests) -> None:
    asked, behind = Asked(parts=5), Asked()
    assert large.take(asked.request) and large.take(behind.request)
    assert asked.began.acquire(timeout=SECONDS)
    asked.has_left = behind.has_left = True
    asked.finish()
    wait_until(lambda: behind.answers)
    assert (asked.computed, asked.answers) == (1, [GONE])
    assert (behind.computed, behind.answers) == (0, [GONE])


def test_a_request_is_ended_by_its_name(large: LargeRequests) -> None:
    asked, other = Asked(parts=5, name="one"), Asked(name="other")
    assert large.take(asked.request) and large.take(other.request)
    assert asked.began.acquire(timeout=SECONDS)
    large.end("one")
    large.end("unknown")
    asked.finish()
    other.finish()
    assert (asked.computed, asked.answers) == (1, [GONE])
    assert other.computed == 1 and other.answers != [GONE]


def test_a_large_request_with_too_long_a_wait_is_refused(large: LargeRequests) -> None:
    first = Asked()
    assert large.take(first.request)
    first.finish()  # the speed is known from here on
    large._rate = 1000.0
    asked = [Asked(elements=1500), Asked(elements=1000), Asked(elements=1)]
    assert large.take(asked[0].request)
    assert not large.take(asked[1].request, timeout=1.0)
    assert large.take(asked[1].request, timeout=1.6)
    assert not large.take(asked[2].request)
    for each in asked[:2]:
        each.finish()
    assert large.take(asked[2].request)
    asked[2].finish()


def test_only_few_large_requests_wait_before_the_speed_is_known(large: LargeRequests) -> None:
    asked = [Asked() for _ in range(FEW + 1)]
    assert [large.take(each.request) for each in asked] == [True] * FEW + [False]
    for each in asked[:FEW]:
        each.finish()


class Panic(BaseException):
    """An error like that of the tokenizers library, which is not an Exception."""


def test_a_failed_large_request_does_not_stop_the_next_one(large: LargeRequests) -> None:
    failure, answers = RuntimeError("no memory"), list[Any]()

    def panics(_: object) -> Any:
        raise Panic("index out of bounds")

    for run in (lambda _: failure, panics):
        assert large.take(LargeRequest(LARGE + 1, run, lambda: False, answers.append, GONE))
    behind = Asked()
    assert large.take(behind.request)
    behind.finish()
    assert answers[0] is failure
    assert str(answers[1]) == "Panic: index out of bounds"
