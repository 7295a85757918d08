"""The prefix cache: bit-equal answers with and without it, its bound, and prompts that it never keeps."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.native import library
from hfx.python_backends.checks import Ids
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.invariants import check_prefixes
from hfx.python_backends.engine.partition import StepSize, Tokens
from hfx.python_backends.engine.plan import QUERIES, Limits, Run, Span
from hfx.python_backends.engine.prefix_cache import BLOCK, PrefixCache
from hfx.python_backends.engine.probes import LONG as LONG_PROMPT
from hfx.python_backends.engine.probes import RESTS, Bits, is_same_in_parts
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME, read_spec
from hfx.python_backends.errors import EngineError, StepFailed
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.watched_engine import accept, finish, make_core, plans_of
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS

POSITIONS = 500
BAD = toys.FAILS_ON
LONG = Limits(chunk=2000, prefill=2000)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_decoder(tmp_path_factory.mktemp("toy"), max_length=POSITIONS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns a family's int8 engine folder, with native operators if this processor has them."""

    @cache
    def write(family: str) -> Path:
        root = tmp_path_factory.mktemp(family)
        positions = "n_positions" if family == "gpt2" else "max_position_embeddings"
        checkpoint = tiny_generators.save(root / "checkpoint", tiny_generators.build(family, **{positions: POSITIONS}))
        operators = library() if HAS_NATIVE else None
        write_engine_folder(checkpoint, root / "engine", FORMATS["int8"], LEVELS, library=operators)
        return root / "engine"

    return write


def text(seed: int, length: int, vocabulary: int = BAD) -> Ids:
    rng = random.Random(seed)
    return tuple(rng.randrange(vocabulary) for _ in range(length))


def ask(prompt: Ids, max_tokens: int = 4, **settings: Any) -> Request:
    return Request(prompt, Settings(max_tokens=max_tokens, **settings))


def answer(core: Core, *prompts: Ids) -> list[tuple[int, ...]]:
    """Return the greedy answers to prompts that are submitted together."""
    handles = [accept(core, ask(prompt)) for prompt in prompts]
    finish(core)
    return [handle.result(0)[0].ids for handle in handles]


def spans_of(core: Core) -> list[Span]:
    return [span for plan in plans_of(core) if isinstance(plan, Run) for span in plan.spans]


def cut(core: Core) -> list[tuple[int, int, int]]:
    """Return start, end and number of loaded blocks of all parts of prompts that were run."""
    return [(span.start, span.end, len(span.loads)) for span in spans_of(core)]


def all_answers(core: Core, requests: Sequence[Request], size: int) -> list[tuple[Event, ...]]:
    """Return all answers in order, with `size` requests at a time."""
    answers = []
    for at in range(0, len(requests), size):
        handles = [accept(core, request) for request in requests[at : at + size]]
        finish(core)
        answers += [handle.result(0) for handle in handles]
    return answers


KINDS: tuple[dict[str, Any], ...] = (
    {"log_probs": True},
    {"do_sample": True, "seed": 5, "num_return_sequences": 3, "log_probs": True},
    {"num_beams": 3, "num_return_sequences": 2, "log_probs": True},
    {"repetition_penalty": 1.5, "log_probs": True, "top_log_probs": 3},
)
native = pytest.mark.skipif(not HAS_NATIVE, reason="native operators don't run here")
WAYS = [
    *(pytest.param(name, NATIVE, marks=native) for name in ("gpt2", "llama", "mistral", "gemma")),
    ("gpt2", ONNXRUNTIME),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "runtime"), WAYS)
def test_answers_are_those_without_a_cache_to_the_bit(tiny: Callable[[str], Path], family: str, runtime: str) -> None:
    shared, vocabulary = text(0, 400, tiny_generators.VOCABULARY), tiny_generators.VOCABULARY
    prompts = [
        shared[:common] + text(100 * common + own, own, vocabulary)
        for common in (63, 64, 65, 150, 257, 400)
        for own in (0, 1, 17, 65)
    ]
    requests = [ask(prompt, 3, **KINDS[at % len(KINDS)]) for at, prompt in enumerate(prompts)]
    requests += requests[::-1] + requests[: len(prompts) // 2]
    core, without = (make_core(tiny(family), 8, None, runtime, blocks) for blocks in (16, 0))
    if not core.scheduler.prefixes.size:
        pytest.skip("on this processor, prompts in parts have other bits")
    assert all_answers(core, requests, 7) == all_answers(without, requests, 5)
    assert core.counters.cached_tokens > sum(map(len, prompts)) // 2
    assert core.counters.cached_tokens + core.counters.prompt_tokens < 1.01 * without.counters.prompt_tokens
    assert without.counters.cached_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize(("family", "runtime"), WAYS)
def test_the_rest_of_a_cached_prompt_may_have_any_length(
    tiny: Callable[[str], Path], family: str, runtime: str
) -> None:
    shared, own = text(1, 2 * BLOCK, 100), text(2, BLOCK + 2, 100)
    requests = [ask(shared + own[:length], 2, log_probs=True) for length in range(BLOCK + 3)]
    core, without = (make_core(tiny(family), 4, None, runtime, blocks) for blocks in (16, 0))
    if not core.scheduler.prefixes.size:
        pytest.skip("on this processor, prompts in parts have other bits")
    assert all_answers(core, requests, 1) == all_answers(without, requests, 1)
    assert core.counters.cached_tokens >= 2 * BLOCK * (len(requests) - 5)


@pytest.mark.parametrize(("family", "runtime"), WAYS)
def test_a_long_prompt_in_short_parts_beside_others_has_the_bits_that_it_has_alone(
    tiny: Callable[[str], Path], family: str, runtime: str
) -> None:
    long = [ask(text(length, length, 100), 3, log_probs=True) for length in (400, 257, 273, 496)]
    alone = make_core(tiny(family), 8, None, runtime, 0)
    if not alone.runners[0].same_in_parts:
        pytest.skip("on this processor, prompts in parts have other bits")
    core = make_core(tiny(family), 8, None, runtime, 0, short_parts=True)
    others = [accept(core, ask(text(length, length, 100), 60)) for length in (3, 7, 30)]
    for _ in range(5):
        core.step()
    handles = [accept(core, request) for request in long]
    finish(core)
    assert all(job.result(0) for job in others)
    assert [handle.result(0) for handle in handles] == all_answers(alone, long, 1)
    assert (0, QUERIES, 0) in cut(core)
    assert (0, QUERIES, 0) not in cut(alone)


@native
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_long_prompt_in_one_part_has_the_bits_that_it_has_in_several(
    tiny: Callable[[str], Path], family: str
) -> None:
    long = [ask(text(length, length, 100), 1, log_probs=True) for length in (400, 257, 273, 496)]
    whole = make_core(tiny(family), 8, Limits(alone=POSITIONS), NATIVE, 0, short_parts=True)
    parts = make_core(tiny(family), 8, None, NATIVE, 0)
    assert all_answers(whole, long, 1) == all_answers(parts, long, 1)
    assert {(0, 257, 0), (0, 273, 0), (0, 496, 0)} < {*cut(whole)}
    assert {(0, 256, 0)} == {span for span in cut(parts) if not span[0]}


def test_a_beginning_is_kept_when_it_comes_the_second_time(toy: Path) -> None:
    core = make_core(toy, 4, LONG)
    shared = text(3, 3 * BLOCK)
    prompts = [shared + text(seed, 20) for seed in range(4)]
    saved = []
    for prompt in prompts:
        assert answer(core, prompt) == [toys.greedy(prompt, 4)]
        saved.append(len(core.scheduler.prefixes.saved))
    assert saved == [0, 3, 3, 3]
    assert cut(core) == [(0, 212, 0), (0, 212, 0), (192, 212, 3), (192, 212, 3)]
    assert (core.counters.cached_tokens, core.counters.prompt_tokens) == (2 * 192, 2 * 212 + 2 * 20)


def test_prompts_that_share_nothing_are_not_kept(toy: Path) -> None:
    core = make_core(toy, 4)
    for seed in range(30):
        answer(core, text(seed, 200))
    assert not core.scheduler.prefixes.saved
    assert core.counters.cached_tokens == 0


def test_of_equal_prompts_the_last_block_is_run(toy: Path) -> None:
    core = make_core(toy, 4)
    prompt = text(4, 2 * BLOCK)
    for _ in range(3):
        assert answer(core, prompt) == [toys.greedy(prompt, 4)]
    assert cut(core)[-1] == (BLOCK, 2 * BLOCK, 1)
    longer = (*prompt, 5, 6)
    assert answer(core, longer) == [toys.greedy(longer, 4)]
    assert cut(core)[-1] == (2 * BLOCK, 2 * BLOCK + 2, 2)


def test_no_single_token_is_run_behind_a_cached_prefix(toy: Path) -> None:
    core = make_core(toy, 4)
    shared = text(5, BLOCK)
    for own in (1, 1, 1, QUERIES + 1, QUERIES + 2):
        prompt = shared + text(own, own)
        assert answer(core, prompt) == [toys.greedy(prompt, 4)]
    assert cut(core)[-3:] == [(BLOCK - 1, BLOCK + 1, 1), (BLOCK - 1, BLOCK + 17, 1), (BLOCK, BLOCK + 18, 1)]


def test_the_rest_of_a_long_prompt_comes_in_parts_if_it_is_long(toy: Path) -> None:
    core = make_core(toy, 4, Limits(chunk=100))
    shared = text(6, 4 * BLOCK)
    prompts = [shared + text(seed, length) for seed, length in ((1, 20), (2, 20), (3, 90), (4, 150))]
    for prompt in prompts:
        assert answer(core, prompt) == [toys.greedy(prompt, 4)]
    assert cut(core)[-3:] == [(256, 346, 4), (256, 356, 4), (356, 406, 0)]


def test_prompts_of_one_batch_load_their_own_prefixes(toy: Path) -> None:
    core = make_core(toy, 6)
    beginnings = [text(seed, 2 * BLOCK + 10) for seed in (7, 8)]
    prompts = [beginnings[seed % 2] + text(seed, 10 + seed) for seed in range(12)]
    for _ in range(2):
        assert answer(core, *prompts) == [toys.greedy(prompt, 4) for prompt in prompts]
    assert core.counters.cached_tokens >= 12 * 2 * BLOCK


def test_the_least_recently_used_blocks_are_evicted(toy: Path) -> None:
    core = make_core(toy, 4, prefix_blocks=3)
    one, other, long = text(9, 2 * BLOCK), text(10, 2 * BLOCK), text(11, 6 * BLOCK)
    for prompt in (one, one, other, other):
        assert answer(core, (*prompt, 1)) == [toys.greedy((*prompt, 1), 4)]
    prefixes = core.scheduler.prefixes
    assert (prefixes.cached((*one, 1)), prefixes.cached((*other, 1))) == (BLOCK, 2 * BLOCK)
    for prompt in (long, long, long):
        assert answer(core, prompt) == [toys.greedy(prompt, 4)]
    assert prefixes.cached(long) == 3 * BLOCK  # its beginning, as nothing behind it fits
    assert prefixes.cached((*other, 1)) == 0


def test_a_prompt_that_fails_keeps_nothing(tmp_path: Path) -> None:
    core = make_core(toys.write_decoder(tmp_path, fails=True, max_length=POSITIONS), 4)
    shared = text(12, 2 * BLOCK)
    all_answers(core, [ask((*shared, 1, 2), 1)], 1)
    for prompt in ((*shared, BAD, 3), (*shared, 3, BAD)):
        doomed = accept(core, ask(prompt))
        finish(core)
        with pytest.raises(StepFailed):
            doomed.result(0)
    assert not core.scheduler.prefixes.saved and len(core.scheduler.prefixes.free) == 16
    for own in (4, 5):
        [[event]] = all_answers(core, [ask((*shared, own), 1)], 1)
        assert event.ids == toys.greedy((*shared, own), 1)
    assert core.counters.cached_tokens == 2 * BLOCK - 1  # the token before the last is run with it


def test_a_prompt_that_is_cancelled_between_its_parts_keeps_nothing(toy: Path) -> None:
    core = make_core(toy, 4, Limits(chunk=100))
    prompt = text(13, 250)
    answer(core, prompt)
    leaver = accept(core, ask(prompt))
    core.step()
    leaver.cancel()
    finish(core)
    assert not core.scheduler.prefixes.saved
    assert answer(core, prompt) == [toys.greedy(prompt, 4)]
    assert len(core.scheduler.prefixes.saved) == 3


def test_loaded_blocks_outlive_the_rows_and_come_to_moved_ones(toy: Path) -> None:
    core = make_core(toy, 4)
    shared = text(14, BLOCK)
    prompts = [shared + text(seed, 5) for seed in range(6)]
    for prompt in prompts[:2]:
        answer(core, prompt)
    lengths = (2, 9, 3, 7, 4, 8)
    handles = [accept(core, ask(prompt, length)) for prompt, length in zip(prompts, lengths, strict=True)]
    finish(core)
    for handle, prompt, length in zip(handles, prompts, lengths, strict=True):
        assert handle.result(0)[0].ids == toys.greedy(prompt, length)


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_loaded_blocks_always_hold_the_tokens_of_their_prompt(size: int) -> None:
    rng, prefixes = random.Random(size), PrefixCache(size, most_seen=12)
    memory: dict[int, Ids] = {}
    loaded = 0
    for _ in range(3000):
        prompts: list[Ids] = []
        for _ in range(rng.choice((1, 1, 3))):
            blocks_of_tokens = [(rng.randrange(2),) * BLOCK for _ in range(rng.randint(0, 5))]
            prompts.append((*(token for each in blocks_of_tokens for token in each), *(1,) * rng.randint(1, 9)))
        if len(prompts) == 1:
            assert prefixes.cached(prompts[0]) < len(prompts[0])
            blocks = prefixes.load(prompts[0])
            assert [memory[block] for block in blocks] == [prompts[0][: (at + 1) * BLOCK] for at in range(len(blocks))]
            loaded += len(blocks)
        saves = prefixes.reserve(prompts)
        assert len({block for each in saves for _, block in each}) == sum(map(len, saves))
        for prompt, each in zip(prompts, saves, strict=True):
            memory |= {block: prompt[: (at + 1) * BLOCK] for at, block in each}
        if rng.random() < 0.8:  # else the plan fails
            for prompt, each in zip(prompts, saves, strict=True):
                prefixes.add(prompt, each)
        check_prefixes(prefixes)
    assert (loaded > 100) == (size > 0)


@pytest.mark.parametrize(
    "other", [None, "logits", "logits of few rows", *(BLOCK + rest for rest in RESTS), LONG_PROMPT]
)
@pytest.mark.parametrize("positions", [BLOCK + 1, 200, POSITIONS])
def test_the_prefix_cache_is_off_if_prompts_in_parts_have_other_bits(
    toy: Path, other: int | str | None, positions: int
) -> None:
    """A part of `other` tokens has other keys at its end, or parts that begin at a block have other logits."""
    differ = False

    def run(prompt: Ids, start: int) -> Bits:
        nonlocal differ
        assert not start or (len(prompt) - start) % QUERIES != 1
        cache = np.arange(2.0 * len(prompt)).reshape(1, 1, -1, 2)
        behind_a_block = 0 < start < 256
        cache[0, 0, -1, 0] += behind_a_block and len(prompt) == other
        others = other == "logits" or (other == "logits of few rows" and len(prompt) == BLOCK + RESTS[0])
        differ |= behind_a_block and (len(prompt) == other or others)
        return Bits(b"other" if behind_a_block and others else b"same", cache)

    same = is_same_in_parts(replace(read_spec(toy), max_length=positions), run)
    assert same != differ
    assert differ == (isinstance(other, str) or (other is not None and other <= positions))


@pytest.mark.slow
def test_a_part_has_as_many_rows_of_logits_as_a_whole_prompt(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(tiny("gpt2"), 8, None, ONNXRUNTIME)
    partition = core.runners[0].partitions[1]
    partition.size = StepSize(4, 4)
    bind, rows = partition.bind, []

    def record(first: int, tokens: Tokens, *rest: Any) -> Any:
        rows.append(tokens.picked.size)
        return bind(first, tokens, *rest)

    monkeypatch.setattr(partition, "bind", record)
    prompt = text(0, BLOCK + 7, tiny_generators.VOCABULARY)
    answers = [all_answers(core, [ask(prompt, 1, log_probs=True)], 1) for _ in range(3)]
    assert answers == answers[:1] * 3 and rows == [4, 4, 4]
    assert core.counters.cached_tokens == BLOCK


def test_an_engine_keeps_as_much_as_it_may(toy: Path, caplog: pytest.LogCaptureFixture) -> None:
    prompt = text(15, 2 * BLOCK)
    kept = {}
    for megabytes in (0, 1):
        with Engine.open(toy, slots=2, prefix_cache_mb=megabytes) as engine:
            for _ in range(3):
                assert engine.submit(ask(prompt)).result(60)[0].ids == toys.greedy(prompt, 4)
            kept[megabytes] = engine.stats().cached_tokens
    assert kept == {0: 0, 1: BLOCK}
    assert not caplog.records
    with pytest.raises(EngineError, match=r"prefix_cache_mb is -1\. It must be at least 0"):
        Engine.open(toy, prefix_cache_mb=-1)


def test_a_prefix_cache_smaller_than_one_block_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wide = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 176, "max_position_embeddings": 128}
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build("llama", **wide))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["int8"], LEVELS)
    with caplog.at_level(logging.WARNING), Engine.open(tmp_path / "engine", slots=1, prefix_cache_mb=1) as engine:
        assert engine.stats().cached_tokens == 0
    assert "no prefix cache: a block of 64 tokens has 1081344 bytes, it may have 1048576" in caplog.text
