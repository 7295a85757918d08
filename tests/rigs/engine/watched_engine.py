"""Engines under observation: after each step, invariants are checked and all unused memory is poisoned."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.python_backends.engine import invariants
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.engine import Engine, EngineSettings, open_prefix_cache
from hfx.python_backends.engine.fair_scheduler import LIGHT, FairScheduler
from hfx.python_backends.engine.jobs import Job, new_job
from hfx.python_backends.engine.kv_cache import KvCache
from hfx.python_backends.engine.picker import Picker
from hfx.python_backends.engine.plan import Limits, Plan
from hfx.python_backends.engine.prefill import ArraySources
from hfx.python_backends.engine.prefix_cache import PrefixCache
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.runners import DecoderRunner, Runner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.scores import HostScores
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.engine.engine_toys import VOCABULARY
from tests.rigs.machine.waiting import wait_until

ARRIVALS = itertools.count()
ONE_THREAD = SessionSettings(threads=1)


def make_core(
    folder: Path,
    slots: int,
    limits: Limits | None = None,
    runtime: str | None = None,
    prefix_blocks: int = 16,
    short_parts: bool = False,
) -> Core:
    """Return a watched core, to be stepped by hand.

    `runtime` is one of the engine's, or None for the folder's own choice. Its prefix cache has at most `prefix_blocks`.
    """
    spec = read_spec(folder)
    runner = open_runner(spec, slots, replace(ONE_THREAD, runtime=runtime))
    for width in spec.beams:
        if width <= slots:
            runner.open_partition(width)
    prefixes = PrefixCache(min(open_prefix_cache(runner, 1).size, prefix_blocks))
    watch = Watch(runner)
    watch.poison({})
    scheduler = FairScheduler(slots, spec.has_encoder, limits or Limits(), prefixes=prefixes, short_parts=short_parts)
    return Core(scheduler, (runner,), Picker(HostScores(spec, slots, ONE_THREAD)), watch)


def open_engine(
    folder: Path,
    slots: int,
    max_queue: int = 64,
    limits: Limits | None = None,
    runtime: str | None = None,
    guesses: bool = True,
) -> Engine:
    """Return a watched engine."""
    return serve(folder, make_core(folder, slots, limits, runtime), max_queue, guesses)


def serve(folder: Path, core: Core, max_queue: int = 64, guesses: bool = True) -> Engine:
    """Return the engine around a core."""
    return Engine(read_spec(folder), core, EngineSettings(max_queue=max_queue, guesses=guesses))


def wait_until_idle(engine: Engine) -> None:
    """Wait until no request is left."""
    wait_until(lambda: not ((stats := engine.stats()).requests or stats.waiting), "the last request's end")


def accept(core: Core, request: Request) -> Job:
    """Put a request into a core that is stepped by hand."""
    job = new_job(request, core.scheduler.has_encoder)
    job.on_cancel = core.cancel
    job.arrival = next(ARRIVALS)
    core.accept(job)
    return job


def finish(core: Core) -> None:
    """Step until there is nothing left to do."""
    while core.step():
        pass


def plans_of(core: Core) -> list[Plan]:
    """Return the plans that a watched core has executed."""
    assert isinstance(core._observer, Watch)
    return core._observer.plans


class Gate:
    """An observer that stops the scheduler's thread after a plan of the `kind` until the gate is opened for good.

    A broken gate then raises ZeroDivisionError.
    """

    def __init__(self, broken: bool = False, kind: Callable[[Plan], bool] = lambda plan: True) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        self._broken, self._kind = broken, kind

    def __call__(self, plan: Plan, state: FairScheduler) -> None:
        if not self._kind(plan):
            return
        self._reached.set()
        assert self._opened.wait(60)
        if self._broken:
            raise ZeroDivisionError("a bug")

    def wait_until_reached(self) -> None:
        assert self._reached.wait(60)

    def open(self) -> None:
        self._opened.set()


def gated_engine(
    folder: Path,
    gate: Gate,
    slots: int,
    max_queue: int = 64,
    limits: Limits | None = None,
    max_queue_seconds: float = 0.0,
) -> Engine:
    """Return an unwatched engine that stops at `gate`."""
    core = make_core(folder, slots, limits)
    core._observer = gate
    settings = EngineSettings(max_queue=max_queue, max_queue_seconds=max_queue_seconds)
    return Engine(read_spec(folder), core, settings)


def poison(array: NDArray[Any]) -> float:
    """What no row may read: NaN, or a large number where there is none."""
    return 111 if array.dtype.kind == "i" else np.nan


class Watch:
    """The observer; `plans` are the executed plans."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan, state: FairScheduler) -> None:
        self.plans.append(plan)
        invariants.check(state, (self.runner,))
        lengths: dict[int, dict[int, int]] = {}
        for partition in state.batches[LIGHT].partitions.values():
            for sequence in partition.sequences:
                for row in sequence.rows:
                    lengths.setdefault(partition.width, {})[row] = sequence.length
        self.poison(lengths)
        if isinstance(self.runner, DecoderRunner) and self.runner.prompts.blocks is not None:
            blocks = self.runner.prompts.blocks.array
            blocks[list(state.prefixes.free)] = poison(blocks)

    def poison(self, lengths: dict[int, dict[int, int]]) -> None:
        """Write NaN wherever no row of `lengths` (width -> row -> length) has a token."""
        sources = getattr(self.runner, "sources", None)
        if isinstance(sources, ArraySources):
            sources.memory.array[:] = poison(sources.memory.array)
        for width, partition in self.runner.partitions.items():
            of_rows = lengths.get(width, {})
            rows = len(partition.lengths)  # not the row for chunks, which has none
            _poison_beyond(partition.cache, [of_rows.get(row, 0) for row in range(rows)])
            if partition.cross is not None:
                used = {row // width for row in of_rows}
                filled = enumerate(partition.cross.last_positions + 1)
                _poison_beyond(partition.cross._cache, [length if group in used else 0 for group, length in filled])


def _poison_beyond(cache: Any, lengths: list[int]) -> None:
    assert isinstance(cache, KvCache)
    for row, length in enumerate(lengths):
        cache.array[:, row, :, length:] = poison(cache.array)


def random_tokens(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))


def random_request(rng: random.Random, has_encoder: bool) -> Request:
    """Return a random request of any kind that the toys accept: at most 30 tokens and 3 beams."""
    settings: dict[str, Any] = {"max_tokens": rng.randint(1, 30), "eos_ids": random_tokens(rng, 0, 2)}
    kind = rng.choice(("greedy", "greedy", "edited", "beams", "sampled", "nucleus"))
    if kind == "edited":
        settings |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    if rng.random() < 0.3:
        settings |= {"frequency_penalty": 0.4, "presence_penalty": 1.5, "logit_bias": {rng.randrange(VOCABULARY): 3}}
    if kind == "beams":
        beams = rng.randint(2, 3)
        settings |= {"num_beams": beams, "num_return_sequences": rng.randint(1, beams)}
        settings |= {
            "early_stopping": rng.choice((True, False, "never")),
            "length_penalty": rng.choice((0.5, 1.0, 2.0)),
        }
    if kind == "sampled":
        settings |= {"do_sample": True, "top_k": rng.choice((1, 5, 50)), "temperature": rng.choice((0.3, 2.0))}
    if kind == "nucleus":
        settings |= {"do_sample": True, "top_k": 0, "top_p": rng.choice((0.5, 0.9))}
    if kind in ("sampled", "nucleus"):
        settings |= {"num_return_sequences": rng.randint(1, 3), "seed": rng.randrange(100)}
    if has_encoder:
        settings["decoder_prompt"] = random_tokens(rng, 1, 3)
    prompt = random_tokens(rng, 1, 34)
    settings["log_probs"] = rng.random() < 0.3
    settings["top_log_probs"] = rng.choice((0, 1, 20)) if settings["log_probs"] and kind != "beams" else 0
    return Request(prompt, Settings(**settings))
