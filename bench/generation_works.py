"""What is measured, work by work: which cases, which ways, in which order.

Every work opens what it needs, measures in rounds in which each way has its turn, and closes everything. A way that
can't be had, or fails, is noted and left out. The tables are generation_report.py's.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.errors import CaseFailed, OpenFailed
from bench.generation_cases import Batch, Model, open_model
from bench.generation_figures import Result
from bench.generation_peers import CT2, ORT8, OV8, WAYS, Way
from bench.peers.resident import Pace, Resident
from hfx.errors import FetchFailed


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    `rounds` where another number is asked for than a work's own, of which none but the first two begins after
    `patience` seconds. `ways` are words: those in whose title one of them is take part; without any, all do.
    """

    tiny: bool = False
    rounds: int | None = None
    seconds: float = 0.3
    ways: tuple[str, ...] = ()
    patience: float = 150.0
    load_seconds: float = 10.0
    export_seconds: float = 240.0

    def turns(self, usual: int) -> int:
        """Rounds of a work that usually has so many."""
        return self.rounds or usual

    def chosen(self, ways: Iterable[Way]) -> list[Way]:
        """Those of `ways` that take part."""
        return [way for way in ways if not self.ways or any(word.lower() in way.title.lower() for word in self.ways)]


QUICK = Settings(tiny=True, rounds=1, seconds=0.05, patience=20.0, load_seconds=2.0, export_seconds=60.0)

GPT2_CASES = tuple(Batch(rows, 8, 50) for rows in (1, 8, 32, 128))
T5_CASES = tuple(Batch(rows, 64, 64) for rows in (1, 16))
BART_CASES = tuple(Batch(rows, 768, 64, beams=4, ngram=3) for rows in (1, 4))
GROWTH_ROWS = tuple(Batch(2**power, 8, 50) for power in range(8))
GROWTH_LENGTHS, GROWTH_BATCH, GROWTH_STEPS = (128, 256, 512, 1024), 8, 32
FAILURES = (CaseFailed, OpenFailed, FetchFailed)
Ways = dict[Way, Resident]


def prepare(model: Model, ways: Sequence[Way], result: Result) -> list[Way]:
    """Fetch and convert what no earlier run has left. Gives the ways that can be had, and notes why others can't."""
    found = []
    for way in ways:
        say(f"preparing {way.title}, {model.name}")
        try:
            way.folder(model)
            found.append(way)
        except FAILURES as reason:
            result.notes[f"{way.title}, {model.name}"] = f"not run: {reason}"
    return found


def gpt2(settings: Settings) -> Result:
    """distilgpt2, 8 to 50 tokens."""
    return _batches(settings, "distilgpt2", GPT2_CASES, usual=5)


def t5(settings: Settings) -> Result:
    """flan-t5-base, 64 to 64 tokens, greedy."""
    return _batches(settings, "flan-t5-base", T5_CASES, usual=5)


def bart(settings: Settings) -> Result:
    """bart-large-cnn, 768 to 64 tokens, 4 beams."""
    return _batches(settings, "bart-large-cnn", BART_CASES, usual=4)


def growth(settings: Settings) -> Result:
    """distilgpt2 by rows and by length, hfx beside CTranslate2. A step is the difference of two answers' times."""
    result = Result()
    lengths = [length // 2 if settings.tiny else length for length in GROWTH_LENGTHS]
    pairs = {
        length: [Batch(GROWTH_BATCH, length - GROWTH_STEPS - 2, new) for new in (1, GROWTH_STEPS + 1)]
        for length in lengths
    }
    rows = GROWTH_ROWS[::3] if settings.tiny else GROWTH_ROWS
    compared = settings.chosen((OV8, ORT8, CT2))
    with opened(open_model("distilgpt2", settings.tiny), compared, result) as ways:
        for turn in rounds(settings, "growth", 2):
            for batch in rows:
                for way in list(ways):
                    measure(ways, way, batch, settings, turn, result)
            for length, (first, whole) in pairs.items():
                for way in list(ways):
                    begin = measure(ways, way, first, settings, turn, result, keep=False)
                    end = measure(ways, way, whole, settings, turn, result, keep=False)
                    if begin is not None and end is not None:
                        key = (way.name, way.precision, str(length))
                        result.add((*key, "prompt ms"), turn, begin)
                        result.add((*key, "step ms"), turn, (end - begin) / GROWTH_STEPS)
    return result


def _batches(settings: Settings, name: str, cases: Sequence[Batch], usual: int) -> Result:
    result = Result()
    if settings.tiny:
        cases = [dataclasses.replace(case, rows=min(case.rows, 8), prompt=min(case.prompt, 64)) for case in cases[:2]]
    with opened(open_model(name, settings.tiny), settings.chosen(WAYS[name]), result) as ways:
        for turn in rounds(settings, name, usual):
            for case in cases:
                for way in [way for way in ways if _takes_part(way, case, turn)]:
                    measure(ways, way, case, settings, turn, result)
    return result


def _takes_part(way: Way, case: Batch, turn: int) -> bool:
    return case.rows <= way.most_rows and (turn == 0 or not way.slow)


def measure(
    ways: Ways, way: Way, case: Batch, settings: Settings, turn: int, result: Result, keep: bool = True
) -> float | None:
    """A turn of `way`: its median milliseconds, kept as a figure.

    None where it fails or gives other counts than asked for: then the case is noted and not tried again.
    """
    title = f"{way.title}, {case.label}"
    if way not in ways or title in result.notes:
        return None
    # A slow way was warmed by its smallest case.
    pace = Pace(settings.seconds, fewest=1, wake_below=1.5, prepare=case.rows == 1 or not way.slow)
    try:
        sample = ways[way].measure(case, pace)
        if sample.value != (case.new,) * case.rows:
            raise CaseFailed(f"gave {sample.value} tokens instead of {case.new} in each of {case.rows} rows")
    except FAILURES as reason:
        result.notes[title] = f"not run: {reason}"
        if isinstance(reason, OpenFailed):
            ways.pop(way).close()
        return None
    milliseconds = 1e3 * statistics.median(sample.seconds)
    if keep:
        result.add((way.name, way.precision, case.label, "ms"), turn, milliseconds)
        result.add((way.name, way.precision, case.label, "processor ms"), turn, 1e3 * sample.cpu_seconds)
    return milliseconds


def rounds(settings: Settings, title: str, usual: int) -> Iterator[int]:
    """The numbers of the rounds, told to whoever waits; fewer where they take too long."""
    begin = time.perf_counter()
    for turn in range(settings.turns(usual)):
        if turn > 1 and not settings.rounds and time.perf_counter() - begin > settings.patience:
            return
        say(f"{title}: round {turn + 1} of {settings.turns(usual)}")
        yield turn


@contextmanager
def opened(model: Model, ways: Sequence[Way], result: Result) -> Iterator[Ways]:
    """Every way that can be opened, in a process of its own; conversions, which take much memory, come before."""
    with ExitStack() as stack:
        found: Ways = {}
        for way in prepare(model, ways, result):
            say(f"opening {way.title}, {model.name}")
            try:
                found[way] = stack.enter_context(way.open(model))
            except FAILURES as reason:
                result.notes[f"{way.title}, {model.name}"] = f"not run: {reason}"
        yield found


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


Work = Callable[[Settings], Result]
