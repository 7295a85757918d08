"""How many requests wait in the batches of the engine's scheduler, and which of them are refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hfx.python_backends.engine.jobs import Job, new_job
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.errors import QueueFull
from tests.unit.python_backends.test_engine_fairness import RESERVED, SLOTS, Timed


def test_a_full_queue_refuses_what_would_wait_and_takes_what_passes() -> None:
    play = Timed()
    for _ in range(SLOTS + 4):
        play.part(document=1)
    play.step()
    scheduler = play.scheduler

    def job(**settings: Any) -> Job:
        made = new_job(Request((2,), Settings(decoder_prompt=(1,), **settings)), has_encoder=True)
        made.batch = scheduler.batch_of(made)
        return made

    assert scheduler.free_rows == RESERVED
    passing = [job() for _ in range(RESERVED)]
    scheduler.check_room(passing, max_queue=4)
    with pytest.raises(QueueFull):
        scheduler.check_room([*passing, job()], max_queue=4)
    with pytest.raises(QueueFull):
        scheduler.check_room([job(num_beams=5)], max_queue=4)  # more than are reserved


def test_a_request_behind_a_wider_one_of_its_kind_counts_as_waiting() -> None:
    play = Timed()
    for _ in range(SLOTS):
        play.part(document=1)
    for beams in (RESERVED - 1, RESERVED):
        play.submit(num_beams=beams)  # the second waits, though one of the reserved rows is free
    play.step()
    narrow = new_job(Request((2,), Settings(decoder_prompt=(1,))), has_encoder=True)
    assert play.scheduler.waiting == 1
    with pytest.raises(QueueFull):
        play.scheduler.check_room([narrow], max_queue=1)
    play.scheduler.check_room([narrow], max_queue=2)


def test_what_fits_beside_the_requests_in_use_does_not_wait_unless_another_is_before_it() -> None:
    play = Timed()
    scheduler = play.scheduler

    def job(document: int = 0, **settings: Any) -> Job:
        made = new_job(Request((2,), Settings(decoder_prompt=(1,), **settings), document=document), has_encoder=True)
        made.batch = scheduler.batch_of(made)
        return made

    def waits(*arriving: Job) -> int:
        """Return the least length of the queue with which the requests are taken."""
        for length in range(20):
            with contextlib.suppress(QueueFull):
                scheduler.check_room(arriving, length)
                return length
        raise AssertionError("they are never taken")

    assert [waits(*(job() for _ in range(count))) for count in (SLOTS, SLOTS + 1, SLOTS + 2)] == [0, 1, 2]
    for _ in range(6):
        play.part(document=1)
    play.step()
    large, small = job(document=1, num_beams=4), job(document=1)
    assert (waits(small), waits(small, large), waits(large, small)) == (0, 1, 2)
    assert waits(large, job()) == 1  # light requests pass
    play.enqueue(Request((2,), Settings(num_beams=4, decoder_prompt=(1,)), document=1))  # which waits
    play.step()
    assert (scheduler.waiting, waits(), waits(small), waits(job())) == (1, 1, 2, 1)
    lights = [play.submit() for _ in range(2)]
    play.step()
    assert all(light.admitted for light in lights) and scheduler.free_rows == SLOTS - 8 + RESERVED - 2


def test_no_more_rows_are_given_than_there_are_with_those_that_are_reserved() -> None:
    play = Timed()
    parts = [play.part(document=1) for _ in range(SLOTS + 1)]
    play.steps(SLOTS)
    assert [part.admitted for part in parts] == [True] * SLOTS + [False]
    assert play.scheduler.free_rows == RESERVED
    for _ in range(RESERVED + 1):
        play.submit(max_tokens=100)
    play.steps(SLOTS)
    assert (play.scheduler.rows_in_use, play.scheduler.free_rows) == (SLOTS + RESERVED, 0)


def test_no_row_is_free_where_light_requests_have_all_of_them() -> None:
    play = Timed()
    for _ in range(SLOTS):
        play.submit(max_tokens=100)
    play.steps(2)
    assert (play.scheduler.rows_in_use, play.scheduler.free_rows) == (SLOTS, 0)
