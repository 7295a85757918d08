"""Light requests beside documents, long prompts and wide beams: their waiting time, in plans and simulated seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from hfx.python_backends.engine.fair_scheduler import (
    ALONE,
    HEAVY,
    LIGHT,
    LIGHT_PROMPT,
    LIGHT_ROWS,
    MEDIUM,
    PART,
    RECENT,
    SHARE,
    FairScheduler,
)
from hfx.python_backends.engine.jobs import Job, new_job
from hfx.python_backends.engine.plan import QUERIES, Limits, Plan, Run, Span
from hfx.python_backends.engine.request import Request, Settings
from tests.unit.python_backends.test_engine_scheduler import Play

SLOTS = 8
RESERVED = 4  # more
LONGEST = 512  # tokens of a part
# Seconds of a made-up run.
SHORT, LONG = 1.0, 10.0


class Timed(Play):
    """A Play with all batches that charges the time of each plan to the scheduler."""

    def __init__(
        self,
        slots: int = SLOTS,
        has_encoder: bool = True,
        seconds: Callable[[Plan], float] | None = None,
        short_parts: bool = False,
    ) -> None:
        super().__init__(slots, has_encoder)
        limits = Limits(alone=LONGEST)
        self.scheduler = FairScheduler(slots, has_encoder, limits, LIGHT_ROWS, short_parts=short_parts)
        self.seconds = seconds or seconds_of

    def part(self, document: int, max_tokens: int = 100) -> Job:
        settings = Settings(max_tokens=max_tokens, decoder_prompt=(1,) if self.scheduler.has_encoder else ())
        return self.enqueue(Request((2,) * 9, settings, document=document))

    def step(self) -> Any:
        plan = super().step()
        if plan is not None:
            self.scheduler.charge(plan, self.seconds(plan))
        rows = [sum(job.rows for job in batch.admitted) for batch in self.scheduler.batches]
        assert sum(rows) == self.scheduler.rows_in_use <= self.scheduler.slots + 2 * self.scheduler.reserve
        assert max(rows) <= self.scheduler.slots
        return plan


def seconds_of(plan: Plan) -> float:
    return LONG if plan.jobs[0].batch else SHORT


def run_of(play: Timed, job: Job) -> list[Plan]:
    """Return the plans up to the end of a job."""
    plans = []
    while not job.over:
        plans.append(play.step())
        assert plans[-1] is not None and len(plans) < 10_000
    return plans


@pytest.mark.parametrize("has_encoder", [False, True])
def test_a_light_request_passes_a_document_and_runs_most_of_the_time(has_encoder: bool) -> None:
    play = Timed(has_encoder=has_encoder)
    for _ in range(5 * SLOTS):
        play.part(document=1)
    play.steps(3 * SLOTS)
    assert play.scheduler.rows_in_use == SLOTS
    light = play.submit(max_tokens=50)
    plans = run_of(play, light)
    own = [plan for plan in plans if light in plan.jobs]
    others = sum(map(seconds_of, plans)) - SHORT * len(own)
    assert others <= len(own) * SHORT / SHARE + LONG


STEP = 0.02


def seconds_of_prompts(plan: Plan) -> float:
    """Return a made-up time: a step takes STEP, and a token longer the more tokens come before it."""
    return sum(len(span.tokens) * (1 + span.end / 500) / 50 for span in plan.spans) * STEP if plan.spans else STEP


def test_a_long_prompt_takes_little_time_between_two_steps_of_others() -> None:
    play = Timed(has_encoder=False, seconds=seconds_of_prompts, short_parts=True)
    play.submit(max_tokens=10_000)
    play.steps(5)
    plans = run_of(play, play.submit(2000, max_tokens=1))
    parts = [plan for plan in plans if plan.spans]
    assert max(map(seconds_of_prompts, parts)) <= 1.2 * PART * STEP
    assert sum(len(part.spans[0].tokens) for part in parts) == 2000
    assert {len(part.spans[0].tokens) % QUERIES for part in parts} == {0}
    # The first part is as short as any; later ones fill their time.
    assert parts[0].spans[0].end == QUERIES < parts[1].spans[0].end - QUERIES
    assert sum(map(seconds_of_prompts, parts)) >= 0.5 * PART * STEP * len(parts)


@pytest.mark.parametrize("span", [Span((2, 2), 64, (0,), (0,)), Span((2, 2), 64, scored=True)], ids=["rest", "scored"])
def test_the_rest_of_a_cached_prompt_and_scored_parts_do_not_measure_parts(span: Span) -> None:
    play = Timed(has_encoder=False, seconds=seconds_of_prompts, short_parts=True)
    play.submit(max_tokens=10_000)
    play.steps(5)
    long = play.submit(2000, max_tokens=1)
    parts = []
    while not long.over:
        plan = play.step()
        parts += [len(span.tokens) for span in plan.spans]
        # So little that the next part would be as long as any.
        play.scheduler.charge(Run(spans=(span,), prefill_jobs=(long,)), 0.0001)
    assert max(parts) < Limits().chunk


def test_parts_are_longer_where_nothing_else_runs_and_they_are_fast() -> None:
    play = Timed(has_encoder=False, seconds=lambda plan: seconds_of_prompts(plan) / 10, short_parts=True)
    parts = [len(plan.spans[0].tokens) for plan in run_of(play, play.submit(2000, max_tokens=1))]
    assert parts == [Limits().chunk, LONGEST, LONGEST, LONGEST, 208]
    play.submit(max_tokens=10_000)
    play.steps(5)
    assert max(len(plan.spans[0].tokens) for plan in run_of(play, play.submit(500, max_tokens=1)) if plan.spans) < 100
    slow = Timed(has_encoder=False, seconds=lambda plan: ALONE, short_parts=True)
    plans = run_of(slow, slow.submit(2000, max_tokens=1))
    assert {len(plan.spans[0].tokens) for plan in plans} == {Limits().chunk, 208}


def test_a_part_beside_rows_that_decode_is_never_longer_than_a_chunk() -> None:
    play = Timed(has_encoder=False, seconds=lambda plan: 0.5 if plan.groups else 0.001, short_parts=True)
    play.submit(max_tokens=10_000)
    play.steps(5)
    plans = run_of(play, play.submit(2000, max_tokens=1))
    assert max(len(plan.spans[0].tokens) for plan in plans if plan.spans) == Limits().chunk


def test_a_whole_prompt_that_is_longer_than_a_chunk_measures_parts_too() -> None:
    token = 0.00001
    play = Timed(has_encoder=False, seconds=lambda plan: len(plan.spans[0].tokens) * token, short_parts=True)
    assert len(run_of(play, play.submit(2000, max_tokens=1))) == 5
    token = 0.001  # slower from now on
    [whole] = run_of(play, play.submit(400, max_tokens=1))
    assert whole.spans[0].is_whole
    assert len(run_of(play, play.submit(500, max_tokens=1))[0].spans[0].tokens) == Limits().chunk


def test_parts_take_as_long_as_the_slowest_rows_that_decode_allow() -> None:
    def seconds(plan: Plan) -> float:
        if plan.spans:
            return 0.001 * len(plan.spans[0].tokens)
        return 0.1 if plan.jobs[0].batch == MEDIUM else 0.01

    play = Timed(has_encoder=False, seconds=seconds, short_parts=True)
    play.submit(max_tokens=10_000)
    play.submit(num_beams=LIGHT_ROWS + 1, max_tokens=10_000)
    play.steps(10)
    parts = [len(plan.spans[0].tokens) for plan in run_of(play, play.submit(2000, max_tokens=1)) if plan.spans]
    assert parts[1:-1] == [int(PART * 0.1 / 0.001) // QUERIES * QUERIES] * len(parts[1:-1])


def test_parts_get_longer_after_the_last_step_of_others() -> None:
    play = Timed(has_encoder=False, seconds=seconds_of_prompts, short_parts=True)
    run_of(play, play.submit(max_tokens=3))
    plans = run_of(play, play.submit(4000, max_tokens=1))[:-1]
    parts = [len(plan.spans[0].tokens) for plan in plans]
    since = 0.0
    for plan in plans:
        assert seconds_of_prompts(plan) <= 1.5 * (PART * STEP + since)
        since += seconds_of_prompts(plan)
    assert parts[0] == QUERIES and parts == sorted(parts)
    assert parts[6:] == [Limits().chunk] * len(parts[6:])


@pytest.mark.parametrize(("short_parts", "decodes"), [(True, False), (False, True)])
def test_a_long_prompt_has_long_parts_if_nobody_waits_or_bits_would_change(short_parts: bool, decodes: bool) -> None:
    play = Timed(has_encoder=False, seconds=seconds_of_prompts, short_parts=short_parts)
    if decodes:
        play.submit(max_tokens=10_000)
        play.steps(5)
    plans = run_of(play, play.submit(2000, max_tokens=1))
    assert [len(plan.spans[0].tokens) for plan in plans if plan.spans] == [Limits().chunk] * 7 + [208]


def test_heavy_requests_go_on_beside_light_ones_without_end() -> None:
    play = Timed()
    job = play.part(document=1, max_tokens=20)
    lights = [play.submit(max_tokens=3) for _ in range(3)]
    for _ in range(10_000):
        play.step()
        lights = [light if not light.over else play.submit(max_tokens=3) for light in lights]
        if job.over:
            return
    raise AssertionError("the document was starved")


def batches_of(plans: list[Plan]) -> list[int]:
    return [plan.jobs[0].batch for plan in plans]


def test_light_requests_have_no_credit_for_the_time_before_they_came() -> None:
    play = Timed()
    play.part(document=1, max_tokens=10_000)
    play.steps(100)
    play.submit(max_tokens=10_000)
    heavy_every = SHARE**HEAVY * LONG / SHORT
    assert batches_of(play.steps(round(6 * heavy_every))).count(HEAVY) >= 4


def test_a_light_request_is_not_interrupted_before_it_has_had_the_share_of_the_next_heavy_run() -> None:
    play = Timed()
    play.part(document=1, max_tokens=10_000)
    play.steps(10)
    play.submit(max_tokens=10_000)
    batches = batches_of(play.steps(round(3 * SHARE**HEAVY * LONG / SHORT)))
    assert batches.index(HEAVY) > 1.5 * SHARE**HEAVY * LONG / SHORT


def test_a_batch_keeps_its_turn_while_more_of_its_requests_are_admitted() -> None:
    play = Timed()
    play.part(document=1, max_tokens=10_000)
    play.submit(max_tokens=10_000)
    play.steps(5)
    batches = []
    for _ in range(round(6 * SHARE**HEAVY * LONG / SHORT)):
        leaver = play.part(document=1)
        batches.append(play.step().jobs[0].batch)
        play.scheduler.remove(leaver)
    assert batches.count(HEAVY) >= 4


@pytest.mark.parametrize(("slots", "reserve"), [(2, 2), (8, LIGHT_ROWS), (32, 8)])
def test_light_requests_have_a_quarter_of_the_slots_to_themselves_and_at_least_some(slots: int, reserve: int) -> None:
    assert Timed(slots).scheduler.reserve == reserve
    play = Timed(8)
    for _ in range(6):
        play.submit()
    play.step()
    assert play.scheduler.free_rows == 2
    plain = FairScheduler(slots, False, Limits())
    assert (plain.reserve, plain.free_rows) == (0, slots)
    assert plain.batch_of(new_job(Request((2,) * 300, Settings(), document=1), has_encoder=False)) == LIGHT


@pytest.mark.parametrize("rows", [LIGHT_ROWS + 1, SLOTS])
def test_wide_beams_get_their_rows_though_light_requests_come_without_end(rows: int) -> None:
    play = Timed()
    lights = [play.submit(max_tokens=5) for _ in range(2 * SLOTS)]
    play.step()
    wide = play.submit(num_beams=rows, max_tokens=5)
    for _ in range(1000):
        play.step()
        lights = [light if not light.over else play.submit(max_tokens=5) for light in lights]
        if wide.over:
            return
    raise AssertionError("the wide request was starved")


def test_light_requests_pass_a_wide_one_on_reserved_rows_only() -> None:
    play = Timed()
    play.submit(num_beams=SLOTS, max_tokens=100)
    play.step()
    play.submit(num_beams=SLOTS, max_tokens=100)  # which waits
    lights = [play.submit(max_tokens=100) for _ in range(SLOTS)]
    play.step()
    assert [light.admitted for light in lights] == [True] * RESERVED + [False] * (SLOTS - RESERVED)


def test_a_document_gets_rows_before_those_that_have_more() -> None:
    play = Timed()
    large = [play.part(document=1, max_tokens=5 + at) for at in range(5 * SLOTS)]
    play.steps(2 * SLOTS)
    small = [play.part(document=2) for _ in range(3)]
    ended = sum(job.over for job in large)
    while not all(job.admitted for job in small):
        play.step()
    assert sum(job.over for job in large) <= ended + len(small) + 1


def test_a_document_that_comes_later_gets_most_of_the_rows_and_the_huge_one_goes_on() -> None:
    play = Timed()
    huge = [play.part(document=1, max_tokens=5) for _ in range(40 * SLOTS)]
    while sum(job.over for job in huge) < 20 * SLOTS:
        play.step()
    before = sum(job.over for job in huge)
    later = [play.part(document=2, max_tokens=5) for _ in range(4 * SLOTS)]
    while not all(job.over for job in later):
        play.step()
    done = sum(job.over for job in huge) - before
    assert len(later) / 8 < done < 0.75 * len(later)


def test_prompt_length_beams_and_documents_decide_the_batch_of_a_request() -> None:
    play = Timed(slots=32, has_encoder=False)

    def batch(length: int = 3, document: int = 0, **settings: Any) -> int:
        request = Request((2,) * length, Settings(max_tokens=5, **settings), document=document)
        return play.scheduler.batch_of(new_job(request, has_encoder=False))

    assert batch() == batch(LIGHT_PROMPT) == batch(num_beams=LIGHT_ROWS) == LIGHT
    assert batch(LIGHT_PROMPT + 1) == batch(num_beams=LIGHT_ROWS + 1) == MEDIUM
    assert batch(document=1) == HEAVY


def test_a_long_prompt_runs_beside_a_document_most_of_the_time() -> None:
    play = Timed()
    for _ in range(5 * SLOTS):
        play.part(document=1)
    play.steps(3 * SLOTS)
    plans = run_of(play, play.submit(LIGHT_PROMPT + 1, max_tokens=50))
    own = [plan for plan in plans if plan.jobs[0].batch == MEDIUM]
    assert len(plans) - len(own) <= len(own) / SHARE + 1


def test_parts_stay_short_while_rows_decode_though_their_last_step_was_long_ago() -> None:
    play = Timed(has_encoder=False, seconds=seconds_of_prompts, short_parts=True)
    light = play.submit(max_tokens=10_000)
    play.steps(5)
    long = play.submit(1000, max_tokens=1)
    while not long.prefilled:
        play.step()
    prompt = Run(spans=(Span((2,) * 250, rows=(1,)),), prefill_jobs=(light,))
    play.scheduler.charge(prompt, 2 * RECENT)
    part = play.step()
    assert part.jobs == (long,) and len(part.spans[0].tokens) < Limits().chunk


@pytest.mark.parametrize("has_encoder", [False, True])
def test_every_random_mixture_of_requests_completes(has_encoder: bool) -> None:
    rng = random.Random(4)
    for _ in range(8):
        play = Timed(rng.choice((4, 8, 13)), has_encoder)
        jobs: list[Job] = []
        for _ in range(60):
            if rng.random() < 0.4:
                jobs.append(play.part(rng.randint(1, 3), rng.randint(1, 20)))
            else:
                beams = rng.choice((1, 1, 2, play.scheduler.slots))
                jobs.append(play.submit(rng.choice((3, 300)), rng.randint(1, 20), num_beams=beams))
            play.steps(rng.randint(0, 4))
            alive = [job for job in jobs if not job.over]
            if alive and rng.random() < 0.1:
                play.scheduler.remove(rng.choice(alive))
        play.until_idle()
        assert all(job.over for job in jobs)
        assert play.scheduler.idle and play.scheduler.rows_in_use == 0
