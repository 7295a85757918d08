"""Steps and prompts in one run: who sits goes on in the very plan in which others join."""

from __future__ import annotations

from hfx.python_backends.engine.jobs import new_job
from hfx.python_backends.engine.plan import Chunk, Compact, Decode, Mixed, Prefill
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.scheduler import Limits, together

from .test_engine_scheduler import Play, kinds


def test_who_sits_decodes_in_the_plan_in_which_others_join() -> None:
    play = Play(mixes=True)
    play.submit()
    assert kinds(play.steps(2)) == ["Prefill", "Decode"]
    play.submit(5)
    mixed = play.step()
    assert isinstance(mixed, Mixed) and isinstance(mixed.join, Prefill)
    assert (mixed.decode.units, mixed.join.first, mixed.join.prompts) == (1, 1, ((2,) * 5,))
    after = play.step()
    assert isinstance(after, Decode) and after.units == 2


def test_a_long_prompts_chunks_go_beside_steps() -> None:
    play = Play(mixes=True, limits=Limits(chunk=4))
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


def test_holes_are_closed_before_others_join() -> None:
    play = Play(mixes=True)
    jobs = [play.submit() for _ in range(3)]
    play.steps(2)
    play.scheduler.remove(jobs[0])
    play.submit(5)
    compact, mixed = play.steps(2)
    assert isinstance(compact, Compact) and compact.moves == ((2, 0),)
    assert isinstance(mixed, Mixed) and isinstance(mixed.join, Prefill)
    assert (mixed.decode.units, mixed.join.first) == (2, 2)


def test_prompts_that_are_not_padded_join_in_their_order_up_to_the_limit() -> None:
    jobs = [new_job(Request((1,) * length, Settings()), has_encoder=False) for length in (200, 4, 190, 4, 20)]
    assert [len(job.prompt) for job in together(jobs, 400)] == [200, 4, 190, 4]
    assert [len(job.prompt) for job in together(jobs, 100)] == [200]
    assert [len(job.prompt) for job in together(jobs, 204)] == [200, 4]
