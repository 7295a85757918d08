"""Steps and prompts in one run: who sits goes on in the very plan in which others join."""

from __future__ import annotations

from hfx.python_backends.engine.jobs import new_job
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.scheduler import together
from tests.unit.python_backends.test_engine_scheduler import Play, kind, kinds


def test_who_sits_decodes_in_the_plan_in_which_others_join() -> None:
    play = Play(mixes=True)
    play.submit()
    assert kinds(play.steps(2)) == ["prompts", "step"]
    play.submit(5)
    mixed, after = play.steps(2)
    assert (kind(mixed), mixed.groups) == ("step and prompts", 1)
    assert [(span.rows, span.tokens) for span in mixed.spans] == [((1,), (2,) * 5)]
    assert (kind(after), after.groups) == ("step", 2)


def test_a_long_prompts_chunks_go_beside_steps() -> None:
    play = Play(mixes=True, limits=Limits(chunk=4))
    play.submit()
    play.steps(2)
    long = play.submit(15)
    plans = play.steps(5)
    assert kinds(plans) == ["step and part"] * 4 + ["step"]
    spans = [(span.start, len(span.tokens), span.rows) for plan in plans for span in plan.spans]
    assert spans == [(0, 4, ()), (4, 4, ()), (8, 4, ()), (12, 3, (1,))]
    assert [plan.groups for plan in plans] == [1] * 4 + [2]
    assert long.sequences[0].length == 16


def test_holes_are_closed_before_others_join() -> None:
    play = Play(mixes=True)
    jobs = [play.submit() for _ in range(3)]
    play.steps(2)
    play.scheduler.remove(jobs[0])
    play.submit(5)
    compact, mixed = play.steps(2)
    assert (kind(compact), compact.moves) == ("Compact", ((2, 0),))
    assert (kind(mixed), mixed.groups) == ("step and prompts", 2)
    assert [span.rows for span in mixed.spans] == [(2,)]


def test_prompts_that_are_not_padded_join_in_their_order_up_to_the_limit() -> None:
    jobs = [new_job(Request((1,) * length, Settings()), has_encoder=False) for length in (200, 4, 190, 4, 20)]
    assert [len(job.prompt) for job in together(jobs, 400)] == [200, 4, 190, 4]
    assert [len(job.prompt) for job in together(jobs, 100)] == [200]
    assert [len(job.prompt) for job in together(jobs, 204)] == [200, 4]
