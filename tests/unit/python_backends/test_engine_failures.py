"""A failure ends only the requests that it concerns, and no call ever hangs."""

from __future__ import annotations

import itertools
import queue
import time
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine import core as core_module
from hfx.python_backends.engine import engine as engine_module
from hfx.python_backends.engine.fair_scheduler import LIGHT, FairScheduler
from hfx.python_backends.engine.plan import Compact, Limits, Plan
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.errors import BrokenState, EngineClosed, StepFailed
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.watched_engine import (
    Gate,
    accept,
    finish,
    gated_engine,
    make_core,
    open_engine,
    plans_of,
    serve,
    wait_until_idle,
)
from tests.rigs.machine.waiting import wait_until

BAD = toys.FAILS_ON


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_decoder(tmp_path_factory.mktemp("decoder"), fails=True)


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_encoder_decoder(tmp_path_factory.mktemp("encoder-decoder"), fails=True)


def ask(prompt: tuple[int, ...], max_tokens: int, **settings: Any) -> Request:
    return Request(prompt, Settings(max_tokens=max_tokens, **settings))


def prompt_of(length: int, **wanted: bool) -> tuple[int, ...]:
    """Return a prompt after which the model generates BAD, or never does."""
    for seed in range(1000):
        prompt = tuple((7 * at + seed) % BAD for at in range(length))
        if (BAD in toys.greedy(prompt, 12)[:-1]) == wanted["fails"]:
            return prompt
    raise AssertionError


def test_a_failing_step_ends_the_requests_in_it_and_later_ones_go_on(decoder: Path) -> None:
    core = make_core(decoder, 4)
    doomed = accept(core, ask(prompt_of(5, fails=True), 12))
    beside = accept(core, ask(prompt_of(4, fails=False), 12))
    while not doomed.done:
        core.step()
    for handle in (doomed, beside):
        with pytest.raises(StepFailed, match=r"(?s)run of 2 request\(s\) failed.*data bounds"):
            handle.result(0)
    assert core.scheduler.rows_in_use == 0
    prompt = prompt_of(6, fails=False)
    after = accept(core, ask(prompt, 12))
    finish(core)
    assert after.result(0)[0].ids == toys.greedy(prompt, 12)
    assert (core.counters.failed, core.counters.completed) == (2, 1)


def test_the_tokens_before_a_failure_are_given_before_it_is_raised(decoder: Path) -> None:
    prompt = prompt_of(5, fails=True)
    ids = toys.greedy(prompt, 12)
    with open_engine(decoder, 2) as engine:
        handle = engine.submit(ask(prompt, 12))
        events = list(itertools.islice(handle, ids.index(BAD) + 1))
        with pytest.raises(StepFailed):
            next(iter(handle))
    assert events == [Event(0, (one,)) for one in ids[: ids.index(BAD) + 1]]


def test_a_failing_chunk_ends_its_request_and_frees_the_staging_row(decoder: Path) -> None:
    core = make_core(decoder, 4, Limits(chunk=4))
    doomed = accept(core, ask((1,) * 9 + (BAD,), 5))
    finish(core)
    with pytest.raises(StepFailed, match=r"the run of 1 request\(s\) failed"):
        doomed.result(0)
    prompt = prompt_of(10, fails=False)
    after = accept(core, ask(prompt, 12))
    finish(core)
    assert after.result(0)[0].ids == toys.greedy(prompt, 12)


def test_a_failing_prompt_ends_only_its_own_request(decoder: Path) -> None:
    core = make_core(decoder, 4)
    prompt = prompt_of(4, fails=False)
    running = accept(core, ask(prompt, 12))
    for _ in range(4):
        core.step()
    doomed = accept(core, ask((1, BAD), 5))
    finish(core)
    with pytest.raises(StepFailed, match=r"the run of 1 request\(s\) failed"):
        doomed.result(0)
    assert running.result(0)[0].ids == toys.greedy(prompt, 12)


def test_a_failing_encode_ends_only_its_own_requests(encoder_decoder: Path) -> None:
    core = make_core(encoder_decoder, 4)
    source = next((at, at + 1) for at in range(BAD - 1) if BAD not in toys.greedy((1,), 12, (at, at + 1)))
    running = accept(core, ask(source, 12, decoder_prompt=(1,)))
    for _ in range(4):
        core.step()
    doomed = accept(core, ask((1, BAD), 5, decoder_prompt=(1,)))
    finish(core)
    with pytest.raises(StepFailed, match=r"the encode of 1 request\(s\) failed"):
        doomed.result(0)
    assert running.result(0)[0].ids == toys.greedy((1,), 12, source)


def test_a_failing_partition_does_not_concern_the_others(encoder_decoder: Path) -> None:
    core = make_core(encoder_decoder, 8)
    source = next((at, at + 1) for at in range(BAD - 1) if BAD not in toys.greedy((1,), 12, (at, at + 1)))
    running = accept(core, ask(source, 12, decoder_prompt=(1,)))
    doomed = accept(core, ask(source, 12, decoder_prompt=(1, BAD), num_beams=2))
    finish(core)
    with pytest.raises(StepFailed):
        doomed.result(0)
    assert running.result(0)[0].ids == toys.greedy((1,), 12, source)


def test_a_search_without_a_token_left_fails_alone(decoder: Path) -> None:
    core = make_core(decoder, 4)
    suppressed = tuple(range(toys.VOCABULARY))
    hopeless = accept(core, ask((1, 2), 5, do_sample=True, num_return_sequences=2, suppress_ids=suppressed))
    prompt = prompt_of(4, fails=False)
    beside = accept(core, ask(prompt, 12))
    finish(core)
    with pytest.raises(StepFailed, match="no token is left"):
        hopeless.result(0)
    assert core.scheduler.rows_in_use == 0
    assert beside.result(0)[0].ids == toys.greedy(prompt, 12)


def test_a_failing_move_ends_the_moved_request_alone(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(decoder, 4)
    partition = core.runners[0].partitions[1]
    move, failures = partition.move, [MemoryError("no memory for a move")]

    def fail_once(source: int, target: int) -> None:
        if failures:
            raise failures.pop()
        move(source, target)

    monkeypatch.setattr(partition, "move", fail_once)
    prompts = [prompt_of(length, fails=False) for length in (3, 4, 5)]
    first, second, moved = (
        accept(core, ask(prompt, count)) for prompt, count in zip(prompts, (3, 12, 12), strict=True)
    )
    finish(core)
    with pytest.raises(StepFailed, match=r"the compact of 1 request\(s\) failed"):
        moved.result(0)
    assert first.result(0)[0].ids == toys.greedy(prompts[0], 3)
    assert second.result(0)[0].ids == toys.greedy(prompts[1], 12)
    assert any(isinstance(plan, Compact) for plan in plans_of(core))


def test_a_bug_of_the_scheduler_fails_all_requests_and_closes_the_engine(decoder: Path) -> None:
    gate = Gate(broken=True)
    with gated_engine(decoder, gate, 1) as engine:
        handles = [engine.submit(ask((1, 2), 12))]
        gate.wait_until_reached()
        handles += [engine.submit(ask((1, 2), 12)) for _ in range(4)]
        gate.open()
        for handle in handles:
            with pytest.raises(EngineClosed, match="ZeroDivisionError"):
                handle.result(10)
        engine._thread.join(10)
        with pytest.raises(EngineClosed, match="ZeroDivisionError"):
            engine.submit(ask((1,), 1))


@pytest.mark.parametrize("seed", range(4))
def test_random_failures_leave_the_answers_of_all_others_exact(decoder: Path, seed: int) -> None:
    requests = [
        ask(tuple((3 * at + 5 * n + seed) % toys.VOCABULARY for n in range(1 + at % 7)), 10) for at in range(60)
    ]
    failed = 0
    with open_engine(decoder, 3) as engine:
        for request, handle in [(request, engine.submit(request)) for request in requests]:
            try:
                assert handle.result(60) == (Event(0, toys.greedy(request.prompt, 10), "length"),)
            except StepFailed:
                failed += 1
        wait_until_idle(engine)
        stats = engine.stats()
    assert 0 < failed < len(requests)
    assert (stats.failed, stats.completed, stats.slots_free) == (failed, len(requests) - failed, 3)


def test_is_working_is_false_during_a_hanging_step_and_after_closing(
    decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "FROZEN_SECONDS", 0.2)
    gate = Gate()
    with gated_engine(decoder, gate, 1) as engine:
        time.sleep(0.3)
        assert engine.is_working()  # without requests, however long
        handle = engine.submit(ask(prompt_of(4, fails=False), 3))
        gate.wait_until_reached()
        wait_until(lambda: not engine.is_working())
        gate.open()
        handle.result(60)
        wait_until(engine.is_working)
    assert not engine.is_working()


def test_a_broken_state_ends_the_engine_before_a_caller_gets_a_token_of_it(
    decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "CHECK_STEPS", 1)
    core = make_core(decoder, 4)
    core._until_check, swaps_at = 1, 6

    def swap_rows(plan: Plan, state: FairScheduler) -> None:
        groups = state.batches[LIGHT].partitions[1].groups
        if len(plans) == swaps_at:
            groups[0], groups[1] = groups[1], groups[0]
        plans.append(plan)

    plans: list[Plan] = []
    core._observer = swap_rows
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    prompts = [prompt_of(length, fails=False) for length in (5, 4)]
    with serve(decoder, core) as engine:
        engine.call_when_failed(failures.put)
        handles = [engine.submit(ask(prompt, 12)) for prompt in prompts]
        for handle, prompt in zip(handles, prompts, strict=True):
            got: list[int] = []
            with pytest.raises(EngineClosed, match="row 0 of partition 1 is not its owner's"):
                got.extend(token for event in handle for token in event.ids)
            assert 0 < len(got) < 12
            assert tuple(got) == toys.greedy(prompt, 12)[: len(got)]
        assert isinstance(failures.get(timeout=60), BrokenState)
        assert not engine.is_working()
    assert (core.counters.checks, core.counters.checks_failed) == (swaps_at + 1, 1)
