"""The work `prefix` of bench.generate: the time to the first token with and without the engine's prefix cache.

Each round has a beginning of its own, which comes three times, each time with other tokens behind it; and prompts that
have nothing in common. Both ways get the same prompts, in turn, each in a process of its own.
"""

from __future__ import annotations

import itertools
import random
import statistics
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.cases import FIRST_ID, LAST_ID, Served
from bench.child import Child, Prepare, Run
from bench.command import Settings
from bench.exports import NAME
from bench.figures import Figures, Goal, noted, say, take_turns
from bench.peers import THREADS, Model, Way
from hfx import names
from hfx.python_backends.engine.prefix_cache import DEFAULT_MB

SHAPE, PRECISION, RUNTIME = "distilgpt2", "int8", "native"
SHARED, OWN, SECONDS = 512, 32, 1.0
WITH, WITHOUT = f"{DEFAULT_MB} MB", "no prefix cache"
TIMES = ("first time", "second time", "third time")
UNIQUE = "nothing shared"
WAYS = {WITH: DEFAULT_MB, WITHOUT: 0}
COLUMNS = ("ms", "processor ms")
GOALS = (
    Goal(TIMES[2], "ms", (WITH,), least=5.0, against=(WITHOUT,), relation="inverse"),
    Goal(UNIQUE, "processor ms", (WITH,), least=0.99, against=(WITHOUT,), relation="inverse"),
)


def measure(settings: Settings, figures: Figures) -> None:
    """Both ways in every round; of prompts that share nothing the median of those of a second."""
    rounds = settings.turns(9)
    way = Way("hfx", PRECISION, RUNTIME)
    model = Model.of(Served(SHAPE).checkpoint(settings.quick))
    turns = dict.fromkeys(WAYS, -1)

    def turn(name: str, child: Child, case: str) -> dict[str, float | None]:
        turns[name] += case == TIMES[0]
        sample = child.run((case, turns[name]), SECONDS if case == UNIQUE else 0.0, warm=False)
        return {"ms": 1e3 * statistics.median(sample.seconds), "processor ms": 1e3 * sample.processor}

    with ExitStack() as stack, noted(figures, way.label):
        folder = way.folder(model)
        ways = {}
        for name, megabytes in WAYS.items():
            say(f"opening {way.label}, {name}")
            child = stack.enter_context(Child(open_engine, folder=str(folder), megabytes=megabytes))
            ways[name] = partial(turn, name, child)
        take_turns(figures, f"{SHAPE}, {way.label}", {case: case for case in (*TIMES, UNIQUE)}, ways, rounds)


def open_engine(folder: str, megabytes: int) -> Prepare:
    """In a process of its own: the published engine, whose answers end with the first token."""
    from hfx.python_backends.engine.engine import Engine
    from hfx.python_backends.engine.request import Request
    from hfx.python_backends.engine.request import Settings as Wanted

    path = Path(folder) / (NAME + names.STREAM_SUFFIX) / "1" / "cpu"
    engine = Engine.open(path, threads=THREADS, runtime=RUNTIME, prefix_cache_mb=megabytes)
    rest = itertools.count()

    def answer(prompt: tuple[int, ...]) -> None:
        engine.submit(Request(prompt, Wanted(max_tokens=1))).result()

    def prepare(case: tuple[str, int]) -> Run:
        name, number = case
        if name == UNIQUE:
            return lambda: answer(ids(SHARED + OWN, "unique", number, next(rest)))
        return lambda: answer(ids(SHARED, "shared", number) + ids(OWN, name, number))

    for number in range(2):  # the sessions' first runs of these lengths, and of the rest's
        for name in TIMES:
            prepare((name, -1 - number))()
    return prepare


def ids(count: int, *seed: object) -> tuple[int, ...]:
    """Random tokens, the same in both processes."""
    rng = random.Random(str(seed))
    return tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(count))
