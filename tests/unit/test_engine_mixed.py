"""Steps and prompts in one run: who sits goes on in the very plan in which others join."""

from __future__ import annotations

import random

import pytest

from hfx.python_backends.engine.jobs import Job, new_job
from hfx.python_backends.engine.plan import Chunk, Compact, Decode, Mixed, Prefill
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.scheduler import Limits, Scheduler, together

from . import engine_invariants as invariants
from .engine_rig import random_request
from .test_engine_scheduler import Play, kinds, outcome


def mixing(slots: int = 4, limits: Limits | None = None) -> Play:
    """A play for a runner that mixes."""
    play = Play(slots)
    play.scheduler = Scheduler(slots, False, limits or Limits(), mixes=True)
    return play


def test_who_sits_decodes_in_the_plan_in_which_others_join() -> None:
    play = mixing()
    play.submit()
    assert kinds(play.steps(2)) == ["Prefill", "Decode"]
    play.submit(5)
    mixed = play.step()
    assert isinstance(mixed, Mixed) and isinstance(mixed.join, Prefill)
    assert (mixed.decode.units, mixed.join.first, mixed.join.prompts) == (1, 1, ((2,) * 5,))
    after = play.step()
    assert isinstance(after, Decode) and after.units == 2


def test_the_picks_of_prompts_are_numbered_behind_the_rows_of_the_step() -> None:
    play = mixing(8)
    for _ in range(3):
        play.submit()
    play.steps(2)
    play.submit(4)
    play.submit(2, do_sample=True, num_return_sequences=2)
    mixed = play.step()
    assert isinstance(mixed, Mixed)
    assert [pick.rows for pick in mixed.picks] == [(0,), (1,), (2,), (3,), (4,), (4,)]
    assert len(mixed.jobs) == 5 and mixed.logits


def test_a_long_prompts_chunks_go_beside_steps() -> None:
    play = mixing(limits=Limits(chunk=4))
    play.submit()
    play.steps(2)
    long = play.submit(15)
    plans = play.steps(5)
    assert kinds(plans) == ["Mixed"] * 4 + ["Decode"]
    chunks = [plan.join for plan in plans if isinstance(plan, Mixed)]
    assert [(type(chunk), chunk.start, len(chunk.tokens)) for chunk in chunks if isinstance(chunk, Chunk)] == [
        (Chunk, 0, 4),
        (Chunk, 4, 4),
        (Chunk, 8, 4),
        (Chunk, 12, 3),
    ]
    assert [plan.decode.units for plan in plans if isinstance(plan, Mixed)] == [1] * 4
    assert long.sequences[0].length == 16


def test_long_and_short_prompts_take_turns_beside_steps() -> None:
    play = mixing(8, Limits(chunk=4))
    play.submit()
    play.steps(2)
    play.submit(12)
    for _ in range(2):
        play.submit(3)
    joins = [type(plan.join).__name__ for plan in play.steps(4) if isinstance(plan, Mixed)]
    assert joins == ["Chunk", "Prefill", "Chunk", "Chunk"]


def test_holes_are_closed_before_others_join() -> None:
    play = mixing()
    jobs = [play.submit() for _ in range(3)]
    play.steps(2)
    play.scheduler.remove(jobs[0])
    play.submit(5)
    compact, mixed = play.steps(2)
    assert isinstance(compact, Compact) and compact.moves == ((2, 0),)
    assert isinstance(mixed, Mixed) and isinstance(mixed.join, Prefill)
    assert (mixed.decode.units, mixed.join.first) == (2, 2)


def test_who_is_cancelled_between_chunks_leaves_the_steps_as_they_were() -> None:
    play = mixing(limits=Limits(chunk=4))
    sitting = play.submit()
    play.steps(2)
    long = play.submit(15)
    play.steps(2)
    play.scheduler.remove(long)
    invariants.check(play.scheduler)
    plan = play.step()
    assert isinstance(plan, Decode) and plan.jobs == (sitting,)
    assert play.scheduler.free_rows == 3


def test_parts_of_a_mixed_plan_can_be_finished_apart() -> None:
    """As they are where their run together has failed."""
    play = mixing()
    sitting = play.submit()
    play.steps(2)
    joining = play.submit(5)
    mixed = play.scheduler.schedule()
    assert isinstance(mixed, Mixed)
    play.scheduler.finish(mixed.decode, [outcome(pick) for pick in mixed.decode.picks])
    invariants.check(play.scheduler)
    for job in mixed.join.jobs:
        play.scheduler.remove(job)
    invariants.check(play.scheduler)
    assert joining.over and not sitting.over
    plan = play.step()
    assert isinstance(plan, (Decode, Compact))


def test_prompts_that_are_not_padded_join_in_their_order_up_to_the_limit() -> None:
    jobs = [new_job(Request((1,) * length, Settings()), has_encoder=False) for length in (200, 4, 190, 4, 20)]
    assert [len(job.prompt) for job in together(jobs, 400)] == [200, 4, 190, 4]
    assert [len(job.prompt) for job in together(jobs, 100)] == [200]
    assert [len(job.prompt) for job in together(jobs, 204)] == [200, 4]


@pytest.mark.parametrize("seed", range(15))
def test_random_requests_cancellations_and_failures_keep_the_invariants(seed: int) -> None:
    rng = random.Random(seed)
    play = mixing(rng.randint(3, 10), Limits(chunk=rng.randint(2, 20), prefill=rng.randint(8, 60)))
    jobs: list[Job] = []
    for _ in range(400):
        if rng.random() < 0.4:
            jobs.append(play.enqueue(random_request(rng, False)))
        plan = play.scheduler.schedule()
        parts = [plan.decode, plan.join] if isinstance(plan, Mixed) and rng.random() < 0.2 else [plan]
        for part in filter(None, parts):
            if rng.random() < 0.05:
                for job in part.jobs:
                    play.scheduler.remove(job)
            else:
                play.scheduler.finish(part, [outcome(pick) for pick in part.picks])
            invariants.check(play.scheduler)
        alive = [job for job in jobs if not job.over]
        if alive and rng.random() < 0.1:
            play.scheduler.remove(rng.choice(alive))
        invariants.check(play.scheduler)
    play.until_idle()
    assert all(job.over for job in jobs)
    assert play.scheduler.idle and play.scheduler.free_rows == play.scheduler.slots
