"""The scheduler's decisions, without model and memory: tests read its plans and make up the sampled tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.engine import invariants
from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.jobs import Drafter, Job, Sequence, new_job
from hfx.python_backends.engine.plan import DEVICE_LIMITS, Limits, Plan, Run
from hfx.python_backends.engine.prefix_cache import BLOCK, PrefixCache
from hfx.python_backends.engine.reference import one_step
from hfx.python_backends.engine.request import Request, Settings, Step
from hfx.python_backends.engine.scheduler import similar
from hfx.python_backends.errors import StepFailed
from tests.rigs.engine.watched_engine import random_request

TOKEN = 7


class Play:
    """A scheduler whose every choice is TOKEN; invariants are checked after each step."""

    def __init__(
        self,
        slots: int = 4,
        has_encoder: bool = False,
        limits: Limits | None = None,
        light_rows: int = 0,
    ) -> None:
        self.scheduler = FairScheduler(slots, has_encoder, limits or Limits(), light_rows)
        self._arrivals = 0

    def submit(self, length: int = 3, max_tokens: int = 100, **settings: Any) -> Job:
        if self.scheduler.has_encoder:
            settings.setdefault("decoder_prompt", (1,))
        return self.enqueue(Request((2,) * length, Settings(max_tokens=max_tokens, **settings)))

    def enqueue(self, request: Request) -> Job:
        job = new_job(request, self.scheduler.has_encoder)
        job.batch = self.scheduler.batch_of(job)
        job.arrival = self._arrivals
        self._arrivals += 1
        self.scheduler.enqueue(job)
        return job

    def step(self) -> Any:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.scheduler.finish(plan, [choice(*pick) for pick in plan.picks.items()])
        invariants.check(self.scheduler)
        return plan

    def steps(self, count: int) -> list[Any]:
        return [self.step() for _ in range(count)]

    def until_idle(self) -> list[Plan]:
        plans = []
        while (plan := self.step()) is not None:
            plans.append(plan)
            assert len(plans) < 100_000
        return plans


def choice(sequence: Sequence, rows: tuple[int, ...]) -> Step:
    """Return a search's choice if TOKEN is the best of every row."""
    search = sequence.search
    argmax = TOKEN if search.candidates == 0 else None
    scores = np.tile(np.linspace(0, -1, 29, dtype=np.float32), (len(rows), 1))
    scores[:, TOKEN] = 1
    return replace(one_step(search, scores), argmax=argmax)


def kind(plan: Plan) -> str:
    """Return the plan's type, and for a run its contents: a step, whole prompts, or part of a prompt."""
    if not isinstance(plan, Run):
        return type(plan).__name__
    assert bool(plan.groups) != bool(plan.spans), "a run is of steps or of prompts"
    return "step" if plan.groups else "prompts" if all(span.is_whole for span in plan.spans) else "part"


def kinds(plans: list[Plan]) -> list[str]:
    return [kind(plan) for plan in plans]


def test_waiting_requests_are_prefilled_together_and_decode_together() -> None:
    play = Play()
    for length in (3, 5, 2):
        play.submit(length)
    prefill, decode = play.steps(2)
    prompts = [(span.rows, span.tokens) for span in prefill.spans]
    assert prompts == [((0,), (2,) * 3), ((1,), (2,) * 5), ((2,), (2,) * 2)]
    assert (decode.width, decode.groups, decode.logits) == (1, 3, False)


def test_a_row_whose_next_token_is_in_place_is_not_fed() -> None:
    play = Play()
    play.submit()
    _, first, second = play.steps(3)
    assert first.next_inputs == ((0, TOKEN),)  # a prompt's argmax was not written beside the other rows' inputs
    assert second.next_inputs == ()


@pytest.mark.parametrize("has_encoder", [False, True])
def test_a_batch_of_prompts_or_sources_is_bounded_in_padded_tokens(has_encoder: bool) -> None:
    play = Play(8, has_encoder, Limits(prefill=12, encode=12))
    for length in (3, 3, 3, 3, 3, 12, 11):
        play.submit(length)
    plans = [plan for plan in play.steps(20) if kind(plan) in ("prompts", "Encode")]
    batches = [plan.sources if has_encoder else [span.tokens for span in plan.spans] for plan in plans]
    assert [len(batch) * max(map(len, batch)) for batch in batches] == [12, 3, 12, 11]


def test_prompts_of_unlike_lengths_are_not_padded_to_each_other() -> None:
    jobs = [new_job(Request((1,) * length, Settings()), has_encoder=False) for length in (200, 4, 190, 4, 20)]
    assert [len(job.prompt) for job in similar(jobs, 1000, Limits())] == [200, 190]
    assert [len(job.prompt) for job in similar(jobs[1:2] + jobs[3:], 1000, Limits())] == [4, 4, 20]
    assert [len(job.prompt) for job in similar(jobs, 1000, DEVICE_LIMITS)] == [200, 4, 190, 4, 20]
    jobs = [new_job(Request((1,) * length, Settings()), has_encoder=False) for length in (300, 200, 64, 1)]
    assert [len(job.prompt) for job in similar(jobs[:2], 1000, Limits())] == [300, 200]  # 1.5 times as long
    assert [len(job.prompt) for job in similar(jobs[2:], 1000, Limits())] == [64, 1]  # 128 padded tokens


def test_the_head_of_the_queue_is_never_passed_by_a_smaller_request() -> None:
    play = Play(slots=4)
    play.submit(max_tokens=5)
    play.steps(1)
    large = play.submit(num_beams=4, max_tokens=3)
    small = play.submit(max_tokens=2)
    plans = play.until_idle()
    order = [job for plan in plans if kind(plan) == "prompts" for job in plan.jobs]
    assert order == [large, small]


def test_a_long_prompt_comes_in_chunks_with_a_decode_step_between_any_two() -> None:
    play = Play(limits=Limits(chunk=10))
    play.submit()
    play.steps(3)
    play.submit(length=35)
    plans = play.steps(8)
    assert kinds(plans) == ["part", "step"] * 4
    chunks = [span for plan in plans for span in plan.spans]
    assert [(chunk.start, len(chunk.tokens), chunk.rows) for chunk in chunks] == [
        (0, 10, ()),
        (10, 10, ()),
        (20, 10, ()),
        (30, 5, (1,)),
    ]
    assert [plan.groups for plan in plans if plan.groups] == [1, 1, 1, 2]


def test_long_and_short_prompts_take_turns() -> None:
    play = Play(slots=4, limits=Limits(chunk=10, prefill=4))
    play.submit(length=40)
    for _ in range(3):
        play.submit(length=4)
    joins = [each for each in kinds(play.steps(14)) if each != "step"]
    assert joins == ["part", "prompts", "part", "prompts", "part", "prompts", "part"]


def test_short_prompts_keep_their_turn_if_rows_must_move_first() -> None:
    play = Play(slots=6, limits=Limits(chunk=10))
    leaver, _ = play.submit(), play.submit()
    play.steps(2)
    play.submit(length=60)
    play.steps(2)  # a part, and a step
    for _ in range(2):
        play.submit()
    play.scheduler.remove(leaver)
    assert kinds(play.steps(3)) == ["Compact", "prompts", "step"]


def test_whether_a_prompt_is_chunked_depends_on_its_length_alone() -> None:
    for neighbours in (0, 3):
        play = Play(slots=8, limits=Limits(chunk=10, prefill=10))
        for _ in range(neighbours):
            play.submit(length=10)
        job = play.submit(length=11, max_tokens=2)
        sizes = [len(plan.spans[0].tokens) for plan in play.steps(40) if plan and plan.spans and plan.jobs == (job,)]
        assert sizes == [10, 2]  # no token comes alone: see plan.QUERIES


def test_a_new_request_takes_the_row_of_a_finished_one() -> None:
    play = Play(slots=3)
    play.submit()
    leaver = play.submit(max_tokens=3)
    play.submit()
    play.steps(3)
    play.submit()
    assert leaver.over
    prefill, decode = play.steps(2)
    assert [span.rows for span in prefill.spans] == [(1,)]
    assert decode.groups == 3


def test_without_a_new_request_the_last_rows_move_into_the_gap() -> None:
    play = Play(slots=3)
    play.submit(max_tokens=3)
    play.submit()
    last = play.submit()
    play.steps(3)
    compact, decode = play.steps(2)
    assert (compact.moves, compact.jobs) == (((2, 0),), (last,))
    assert decode.groups == 2


def test_a_compaction_moves_as_few_rows_as_there_can_be() -> None:
    play = Play(slots=4)
    jobs = [play.submit() for _ in range(4)]
    play.steps(2)
    for leaver in (jobs[0], jobs[2]):
        play.scheduler.remove(leaver)
    assert play.step().moves == ((3, 0),)


def test_several_new_requests_get_adjacent_rows() -> None:
    play = Play(slots=4)
    jobs = [play.submit() for _ in range(4)]
    play.steps(2)
    for leaver in (jobs[1], jobs[3]):
        play.scheduler.remove(leaver)
    for _ in range(2):
        play.submit()
    compact, prefill = play.steps(2)
    assert compact.moves == ((2, 1),)
    assert [span.rows for span in prefill.spans] == [(2,), (3,)]


def test_beams_of_a_decoder_get_rows_that_copy_the_prompt_and_follow_their_parents() -> None:
    play = Play(slots=4)
    job = play.submit(num_beams=3)
    prefill, decode = play.steps(2)
    assert ([span.rows for span in prefill.spans], prefill.logits) == ([(0, 1, 2)], True)
    # All rows hold the same prompt, so that the first choice moves nothing.
    assert decode.row_copies == ()
    assert [row for row, _ in decode.next_inputs] == [0, 1, 2]
    (sequence,) = job.sequences
    sequence.rows, sequence.copies = [0, 1, 2], ()
    sequence.follow((1, 1, 0))
    decode = play.step()
    # The first child of row 1 and that of row 0 take their parents' rows over; the other child of 1 gets row 2.
    assert decode.row_copies == (((1, 2),),)
    assert [*decode.picks.values()] == [(1, 2, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_reordering_beams_copies_the_fewest_rows(seed: int) -> None:
    rng = random.Random(seed)
    (sequence,) = new_job(Request((1,), Settings(num_beams=6)), has_encoder=True).sequences
    sequence.rows = rng.sample(range(20), 6)
    caches: list[Any] = [None] * 20
    for generation in range(50):
        for row in sequence.rows:
            caches[row] = (row, generation)
        before = [caches[row] for row in sequence.rows]
        parents = tuple(rng.randrange(6) for _ in range(6))
        rows = set(sequence.rows)
        sequence.follow(parents)
        for source, target in sequence.copies:
            caches[sequence.rows[target]] = caches[sequence.rows[source]]
        assert [caches[row] for row in sequence.rows] == [before[parent] for parent in parents]
        assert set(sequence.rows) == rows
        assert len(sequence.copies) == 6 - len(set(parents))


def test_samples_of_one_prompt_share_its_prefill() -> None:
    play = Play(slots=4)
    job = play.submit(num_return_sequences=3, do_sample=True)
    (prefill,) = play.steps(1)
    assert [span.rows for span in prefill.spans] == [(0, 1, 2)]
    assert [*prefill.picks.values()] == [(0,), (0,), (0,)]
    assert [sequence.rows for sequence in job.sequences] == [[0], [1], [2]]


def test_a_decoder_prompt_is_fed_token_by_token_before_anything_is_chosen() -> None:
    play = Play(has_encoder=True)
    play.submit(decoder_prompt=(4, 5, 6))
    encode, first, second, third, fourth = play.steps(5)
    assert (encode.places, encode.in_use) == ((((1, 0),),), ((1, 1),))
    decodes = (first, second, third, fourth)
    assert [plan.next_inputs for plan in decodes] == [((0, 4),), ((0, 5),), ((0, 6),), ()]
    assert [len(plan.picks) for plan in decodes] == [0, 0, 1, 1]


def test_each_number_of_beams_has_a_partition_and_partitions_take_turns() -> None:
    play = Play(slots=9, has_encoder=True)
    play.submit(num_beams=3)
    play.submit(num_beams=2)
    play.submit(num_beams=2)
    play.submit()
    encode, *decodes = play.steps(7)
    assert encode.places == (((3, 0),), ((2, 0),), ((2, 1),), ((1, 0),))
    assert [(plan.width, plan.groups) for plan in decodes] == [(3, 1), (2, 2), (1, 1)] * 2


@pytest.mark.parametrize("has_encoder", [False, True])
def test_a_row_that_decodes_alone_has_a_draft_once_it_chooses_tokens(has_encoder: bool) -> None:
    play = Play(has_encoder=has_encoder)
    prompt = (TOKEN,) * 8
    decoder_prompt = (4, 5, 6) if has_encoder else ()
    job = play.enqueue(Request(prompt, Settings(max_tokens=100, decoder_prompt=decoder_prompt)))
    job.sequences[0].drafter = Drafter(prompt, 8, 100)
    plans = play.steps(6)
    first = next(at for at, plan in enumerate(plans) if at and plan.picks)
    assert first == (3 if has_encoder else 1)
    assert [plan.draft for plan in plans[1:first]] == [()] * (first - 1)
    assert plans[first].draft == (TOKEN,) and plans[first + 1].next_inputs == ((0, TOKEN),)
    play.submit()
    assert {plan.draft for plan in play.steps(5) if kind(plan) == "step" and plan.groups == 2} == {()}


def test_the_drafter_reads_the_tokens_that_were_chosen() -> None:
    play = Play()
    job = play.submit()  # its prompt has no TOKEN
    job.sequences[0].drafter = Drafter(job.request.prompt, 8, 100)
    assert (TOKEN,) in [plan.draft for plan in play.steps(10) if plan.groups]


def test_a_request_whose_choice_fails_ends_alone() -> None:
    play = Play()
    failed, other = play.submit(), play.submit()
    plan = play.scheduler.schedule()
    assert plan is not None
    steps = [choice(*pick) for pick in plan.picks.items()]
    play.scheduler.finish(plan, [replace(steps[0], error=StepFailed("the scores are not finite")), steps[1]])
    assert failed.over and not other.over and play.scheduler.rows_in_use == 1
    assert [plan.jobs for plan in play.steps(3)] == [(other,)] * 3


def test_the_rest_of_a_cached_prompt_is_run_alone() -> None:
    play = Play()
    limits = Limits(chunk=BLOCK + 10, few=1000)  # with what is cached, the prompts would have more than a part
    play.scheduler = FairScheduler(4, False, limits, prefixes=PrefixCache(8))
    for _ in range(2):
        play.submit(BLOCK + 3, max_tokens=1)
        play.until_idle()
    for _ in range(2):
        play.submit(BLOCK + 3)
    play.submit(3)
    play.submit(BLOCK + 3)
    runs = [[(span.start, span.is_rest) for span in plan.spans] for plan in play.steps(10) if plan.spans]
    assert runs == [[(BLOCK, True)], [(BLOCK, True)], [(0, False)], [(BLOCK, True)]]


def test_only_a_prompt_of_more_than_a_part_is_run_in_parts() -> None:
    for length, parts in ((10, [10]), (11, [10, 2])):
        play = Play(limits=Limits(chunk=10))
        play.submit(length, max_tokens=1)
        assert [len(plan.spans[0].tokens) for plan in play.steps(len(parts))] == parts
    for _ in range(2):
        play.submit(10, max_tokens=1)
    assert [len(span.tokens) for span in play.step().spans] == [10, 10]


@pytest.mark.parametrize("has_encoder", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_random_requests_cancellations_and_failures_keep_the_invariants(seed: int, has_encoder: bool) -> None:
    rng = random.Random(seed)
    limits = Limits(chunk=rng.randint(2, 20), prefill=rng.randint(8, 60), encode=rng.randint(8, 60))
    play = Play(rng.randint(3, 10), has_encoder, limits)
    jobs: list[Job] = []
    for _ in range(400):
        if rng.random() < 0.4:
            jobs.append(play.enqueue(random_request(rng, has_encoder)))
        plan = play.scheduler.schedule()
        if plan and rng.random() < 0.05:
            for job in plan.jobs:
                play.scheduler.remove(job)
        elif plan:
            play.scheduler.finish(plan, [choice(*pick) for pick in plan.picks.items()])
        invariants.check(play.scheduler)
        alive = [job for job in jobs if not job.over]
        if alive and rng.random() < 0.1:
            play.scheduler.remove(rng.choice(alive))
        invariants.check(play.scheduler)
    play.until_idle()
    assert all(job.over for job in jobs)
    assert play.scheduler.idle
    assert play.scheduler.rows_in_use == 0
