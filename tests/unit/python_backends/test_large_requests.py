"""Large requests run in parts in threads, in turns, with batches of small requests between the parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hfx.python_backends.encoding import PART, pausing
from hfx.python_backends.errors import DeadlineExceeded
from hfx.python_backends.large_loads import LoadServer, least_load
from hfx.python_backends.large_requests import FEW, LARGE, TURNS, Cancelled, LargeRequest, LargeRequests, Load, Turns
from tests import zoo
from tests.rigs.checkpoints.encoder_line import encoder_for
from tests.rigs.machine.waiting import wait_until

SECONDS = 10.0


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def large(turns: Turns) -> Iterator[LargeRequests]:
    made = LargeRequests(turns, 2.0)
    yield made
    made.close()


class Asked:
    """A request of parts of equal size, each of which runs once the test permits it, and its answers."""

    def __init__(self, parts: int = 1, elements: int = LARGE + 1, name: str = "", timeout: float = 0.0) -> None:
        self.parts, self.has_left = parts, False
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.computed = 0
        self.answers: list[Any] = []
        self.request = LargeRequest(elements, self._run, lambda: self.has_left, self.answers.append, name, timeout)

    def _run(self, goes_on: Callable[[int], bool]) -> Any:
        size = self.request.elements // self.parts
        for part in range(self.parts):
            if part and not goes_on(size):
                return Cancelled()
            self.began.release()
            assert self.go_on.acquire(timeout=SECONDS)
            self.computed += 1
        return {"parts": np.array(self.parts)}

    def compute(self) -> None:
        """Let the next part go on, once it is this request's turn."""
        assert self.began.acquire(timeout=SECONDS)
        self.go_on.release()

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


def test_parts_of_large_requests_run_in_turns(turns: Turns, large: LargeRequests) -> None:
    long, short, behind = Asked(parts=5), Asked(parts=TURNS), Asked()
    assert large.take(long.request)
    wait_until(lambda: turns._taken)
    assert large.take(short.request) and large.take(behind.request)
    wait_until(lambda: turns._large)
    for asked in (long, short, long, short):
        asked.compute()
    assert long.began.acquire(timeout=SECONDS)
    wait_until(lambda: turns._large)  # `short` is answered, and the next request has its turn
    assert short.answers and not behind.answers
    long.go_on.release()
    behind.compute()
    long.finish()
    assert behind.answers


def test_a_large_request_whose_caller_left_is_not_computed_to_its_end(large: LargeRequests) -> None:
    asked, behind = Asked(parts=5), Asked()
    assert large.take(asked.request)
    assert asked.began.acquire(timeout=SECONDS)
    assert large.take(behind.request)
    asked.has_left = behind.has_left = True
    asked.finish()
    wait_until(lambda: behind.answers)
    assert asked.computed == 1 and isinstance(asked.answers[0], Cancelled)
    assert behind.computed == 0 and isinstance(behind.answers[0], Cancelled)


def test_a_request_is_ended_by_its_name(large: LargeRequests) -> None:
    asked, other = Asked(parts=5, name="one"), Asked(name="other")
    assert large.take(asked.request)
    assert asked.began.acquire(timeout=SECONDS)
    assert large.take(other.request)
    large.end("one")
    large.end("unknown")
    other.go_on.release()
    asked.finish()
    other.finish()
    assert asked.computed == 1 and isinstance(asked.answers[0], Cancelled)
    assert other.computed == 1 and not isinstance(other.answers[0], Cancelled)


def test_a_large_request_is_not_computed_beyond_its_deadline(large: LargeRequests) -> None:
    asked = Asked(parts=5, timeout=0.2)
    assert large.take(asked.request)
    assert asked.began.acquire(timeout=SECONDS)
    wait_until(lambda: isinstance(asked.request.failure(), DeadlineExceeded))
    asked.finish()
    assert asked.computed == 1 and isinstance(asked.answers[0], DeadlineExceeded)


def test_a_large_request_is_refused_by_what_is_left_in_the_next_step(turns: Turns) -> None:
    loads = [Load(1000, TURNS, 1000.0), Load(5000, TURNS, 1000.0), Load(5000, TURNS + 1, 1000.0), Load(0, FEW, 0.0)]
    step, asked = LargeRequests(turns, 2.0, loads.pop), [Asked(elements=500), Asked(elements=500), Asked()]
    assert not step.take(asked[0].request)  # as many as may be open while no time is known
    assert not step.take(asked[0].request)
    assert step.take(asked[0].request)  # it waits for its turn
    assert step.take(asked[1].request)  # 1,500 elements are before it, for a bound of 2 s
    loads.append(Load(2000, TURNS, 1000.0))
    assert not step.take(asked[2].request)
    for each in asked[:2]:
        each.finish()
    step.close()


def test_the_load_of_the_instance_that_has_least_is_passed_to_another_process() -> None:
    loads = [Load(70, 3, 5.0), Load(90, 2, 4.0)]
    assert least_load("m_net", "p") == Load()
    servers = [LoadServer("m_net", "p", lambda load=load: load) for load in loads]  # type: ignore[misc]
    wait_until(lambda: least_load("m_net", "p") == loads[1])
    assert least_load("m_net", "q") == least_load("other_net", "p") == Load()
    servers[1].close()
    assert least_load("m_net", "p") == loads[0]
    servers[0].close()
    assert least_load("m_net", "p") == Load()


def test_one_large_request_waits_and_the_next_one_depends_on_what_is_left(turns: Turns, large: LargeRequests) -> None:
    first = Asked()
    assert large.take(first.request)
    first.finish()  # the speed is known from here on
    large._rate = 1000.0
    long, short, waiting, last = Asked(5, 5000), Asked(5, 500, timeout=600.0), Asked(elements=600), Asked()
    assert large.take(long.request)
    wait_until(lambda: turns._taken)
    assert not large.take(Asked(5, 500, timeout=0.4).request)  # the long one takes as much again, in turns
    assert large.take(short.request)
    wait_until(lambda: turns._large)
    assert not large.take(Asked(elements=600, timeout=2.5).request)
    assert large.take(waiting.request)
    assert not large.take(last.request)
    for asked in (long, short) * 4:
        asked.compute()
    assert long.began.acquire(timeout=SECONDS)
    assert large.take(last.request)  # 1,700 elements are left, for a bound of 2 s
    for asked in (long, short, waiting, last):
        asked.go_on.release()
    for asked in (long, short, waiting, last):
        asked.finish()


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
        before = len(answers)
        assert large.take(LargeRequest(LARGE + 1, run, lambda: False, answers.append))
        wait_until(lambda before=before: len(answers) > before)  # type: ignore[misc]
    behind = Asked()
    assert large.take(behind.request)
    behind.finish()
    assert answers[0] is failure
    assert str(answers[1]) == "Panic: index out of bounds"


@pytest.mark.parametrize("text", ["a text", "Anna went to the market in Berlin. " * 900])
def test_labels_that_are_tokenized_in_parts_have_the_same_rows(text: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.tokenizer("entities-bert"))
    encoder = encoder_for(tokenizer, "zero-shot-classification", tmp_path, max_length=64)
    items, pauses = [(text, [f"label {'the ' * (at % 40)}" for at in range(3 * PART + 1)])], list[None]()
    (row,) = pausing(encoder, lambda: pauses.append(None)).encode(items)
    assert len(pauses) >= 4 and encoder.encode(items) == [row]
