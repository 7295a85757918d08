"""Callers in many threads and event loops; an engine that is drained, closed or forgotten during work."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hfx.python_backends.engine.engine import Engine, EngineSettings
from hfx.python_backends.engine.kv_cache import KvCache
from hfx.python_backends.engine.plan import Encode, Limits, Plan, Run
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.runners import DecoderRunner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import EngineClosed, QueueFull
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.watched_engine import ONE_THREAD, Gate, gated_engine, random_tokens, wait_until_idle
from tests.rigs.machine.waiting import wait_until


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_decoder(tmp_path_factory.mktemp("decoder"), max_length=4096)


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_encoder_decoder(tmp_path_factory.mktemp("encoder-decoder"), max_length=4096)


@pytest.fixture
def engine(decoder: Path) -> Iterator[Engine]:
    with Engine.open(decoder, slots=4, max_queue=2000, threads=1) as opened:
        yield opened


def ask(prompt: tuple[int, ...], max_tokens: int, **settings: object) -> Request:
    return Request(prompt, Settings(max_tokens=max_tokens, **settings))  # type: ignore[arg-type]


LONG = 3000  # tokens: enough that a request is still running when the test acts on it


def test_short_and_long_prompts_in_any_order_get_their_own_tokens(engine: Engine) -> None:
    """Long prompts grow in the cache while short ones are decoded, and short ones follow in the rows of long ones."""
    rng = random.Random(3)
    lengths = [1, 5, 30, 255, 256, 257, 700, 1500] * 2
    for _ in range(3):
        rng.shuffle(lengths)
        requests = [ask(random_tokens(rng, length, length), rng.randint(1, 60)) for length in lengths]
        answers = []
        for request in requests:
            answers.append(engine.submit(request))
            time.sleep(rng.random() * 0.003)
        for request, answer in zip(requests, answers, strict=True):
            assert answer.result(60)[0].ids == toys.greedy(request.prompt, request.settings.max_tokens)


def test_an_idle_engine_gives_memory_back_and_answers_again(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfx.python_backends.engine.engine.IDLE_SECONDS", 0.05)
    spec, settings = read_spec(decoder), EngineSettings(slots=4)
    runner = open_runner(spec, settings.slots, ONE_THREAD)
    assert isinstance(runner, DecoderRunner) and isinstance(runner.partition.cache, KvCache)
    memory = runner.partition.cache.array
    with Engine.of(runner, spec, settings) as engine:
        for length in (10, 2000, 10):
            prompt = (3,) * length
            assert engine.submit(ask(prompt, 9)).result(60)[0].ids == toys.greedy(prompt, 9)
            # All whole pages are zero, so that at most the ends of each part of the cache are left.
            wait_until(lambda: np.count_nonzero(memory) * memory.itemsize <= 2 * mmap.PAGESIZE * len(memory))


def test_threads_that_submit_and_cancel_at_random_lose_nothing(engine: Engine) -> None:
    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            prompt, count = random_tokens(rng, 1, 9), rng.randint(1, 40)
            handle = engine.submit(ask(prompt, count))
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.003)
                handle.cancel()
            (answer,) = handle.result(60)
            assert answer.ids == toys.greedy(prompt, count)[: len(answer.ids)]
            assert answer.finish_reason == "cancelled" or len(answer.ids) == count

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    wait_until_idle(engine)
    assert engine.stats().slots_free == 4


def test_cancelling_a_finished_request_changes_nothing(engine: Engine) -> None:
    handle = engine.submit(ask((1, 2), 3))
    before = handle.result(10)
    handle.cancel()
    wait_until_idle(engine)
    assert handle.result(0) == before
    assert engine.stats().cancelled == 0


SAMPLES = ask((3, 5), 10, do_sample=True, top_k=1, num_return_sequences=2)
NOTHING = (Event(0, (), "cancelled"),)


def is_part(plan: Plan) -> bool:
    return isinstance(plan, Run) and any(not span.is_whole for span in plan.spans)


def is_encode(plan: Plan) -> bool:
    return isinstance(plan, Encode)


def is_step(plan: Plan) -> bool:
    return isinstance(plan, Run) and plan.groups > 0


@pytest.mark.parametrize(
    ("kind", "request_", "answer"),
    [
        (is_part, ask((1,) * 50, 10), NOTHING),
        (is_encode, ask((1,) * 9, 10, decoder_prompt=(1, 2, 3)), NOTHING),
        (is_step, SAMPLES, tuple(Event(at, toys.greedy((3, 5), 2), "cancelled") for at in (0, 1))),
    ],
    ids=["chunked", "encoded", "decoding"],
)
def test_a_request_is_cancelled_after_any_plan(
    decoder: Path, encoder_decoder: Path, kind: Callable[[Plan], bool], request_: Request, answer: tuple[Event, ...]
) -> None:
    gate = Gate(kind=kind)
    folder = encoder_decoder if kind is is_encode else decoder
    with gated_engine(folder, gate, 4, limits=Limits(chunk=8)) as engine:
        handle = engine.submit(request_)
        gate.wait_until_reached()
        handle.cancel()
        gate.open()
        assert handle.result(10) == answer
        wait_until_idle(engine)
        assert engine.stats().slots_free == 4


def test_a_request_is_cancelled_while_it_waits(decoder: Path) -> None:
    gate = Gate()
    with gated_engine(decoder, gate, slots=1) as engine:
        running = engine.submit(ask((1, 2), 10))
        gate.wait_until_reached()
        waiting = engine.submit(ask((1, 2), 10))
        waiting.cancel()
        gate.open()
        assert waiting.result(10) == (Event(0, (), "cancelled"),)
        assert running.result(10)[0].finish_reason == "length"


def test_waiting_for_a_result_ends_when_its_time_is_over(decoder: Path) -> None:
    gate = Gate()
    with gated_engine(decoder, gate, slots=1) as engine:
        handle = engine.submit(ask((1, 2), 10))
        with pytest.raises(TimeoutError, match=r"not done after 0\.01 s"):
            handle.result(0.01)
        gate.open()
        assert handle.result(10)
        assert handle.done


def test_closing_frees_sessions_and_copies_of_logits(decoder: Path) -> None:
    """The engine object is kept; a session of native operators keeps the library's code in use."""
    engine = Engine.open(decoder, slots=2, threads=1)
    engine.submit(ask((1,), 3)).result(10)
    names = ("_scores", "_log_softmax", "_top_k")
    kept = [weakref.ref(getattr(engine._core.picker._scores, name)) for name in names]
    assert all(each() is not None for each in kept)
    engine.close()
    assert [each() for each in kept] == [None] * 3


def test_closing_fails_running_and_waiting_requests_without_hanging(decoder: Path) -> None:
    engine = Engine.open(decoder, slots=2, threads=1)
    handles = [engine.submit(ask((1, at), LONG)) for at in range(6)]
    next(iter(handles[0]))
    readers = ThreadPoolExecutor(6)
    read = [readers.submit(list, handle) for handle in handles]
    engine.close()
    engine.close()
    assert not engine._thread.is_alive()
    for reading, handle in zip(read, handles, strict=True):
        assert isinstance(reading.exception(10), EngineClosed)
        with pytest.raises(EngineClosed):
            handle.result(0)
    with pytest.raises(EngineClosed, match="Open another"):
        engine.submit(ask((1,), 1))


def test_closing_while_threads_submit_leaves_no_handle_without_an_end(decoder: Path) -> None:
    engine = Engine.open(decoder, slots=4, max_queue=16, threads=1)
    ends: list[str] = []

    def work(seed: int) -> None:
        for at in range(200):
            try:
                ends.append(engine.submit(ask((seed, at % 29), 30)).result(30)[0].finish_reason)
            except QueueFull:
                ends.append("full")
            except EngineClosed:
                ends.append("closed")
                return

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(work, seed) for seed in range(16)]
        time.sleep(0.2)
        engine.close()
        for each in waiting:
            each.result(60)
    assert ends.count("closed") == 16


ASKS = "print(engine.submit(Request((3, 5), Settings(max_tokens=2))).result()[0].ids)"
FORGETS = f"""
import sys, threading, time
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
engine = Engine.open(sys.argv[1], slots=1, threads=1)
{ASKS}
"""
OUTLIVES = f"""
def late():
    time.sleep(2.5)
    {ASKS}
threading.Thread(target=late).start()
"""


@pytest.mark.parametrize(("more", "answers"), [("", 1), (OUTLIVES, 2)], ids=["forgets to close", "outlives main"])
def test_a_program_that_forgets_to_close_ends_with_its_last_thread(decoder: Path, more: str, answers: int) -> None:
    command = [sys.executable, "-c", FORGETS + more, str(decoder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "(7, 19)\n" * answers, "")
