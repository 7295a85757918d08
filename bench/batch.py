"""`python -m bench.batch`: `hfx batch` beside its model in process, rows one by one and by ten, torch, and a server."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import command
from bench.batch_spark import GOALS as SPARK_GOALS
from bench.batch_spark import spark
from bench.batch_ways import ONE, TEN, TOGETHER, Jobs, Rows, open_inside, write_rows
from bench.cases import Served
from bench.child import Child
from bench.client import run_figures
from bench.command import Settings, Work, open_ways
from bench.exports import NAME
from bench.figures import Figures, Goal, take_turns
from bench.peers import Batch, Way
from hfx.perf.load import Closed, LoadLimits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.triton import EmbeddedServer

JOB, SERVED, LOAD = "hfx batch", "hfx batch --url", "hfx perf"
TORCH, TORCH_ROWS = Way("torch", "fp32"), (1, 8)
CALLERS = (16, 32, 64)
COLUMNS = ("rows/s", "seconds", "plan s", "publish s")
Turn = Callable[[Rows], dict[str, float | None]]


@dataclass(frozen=True)
class Cases:
    """Rows by one model; `peers`: also by torch and one at a time; `served`: also behind a server."""

    shape: Served
    rows: Rows
    served: bool = False
    peers: bool = True
    rounds: int = 3

    def measure(self, settings: Settings, figures: Figures) -> None:
        """All ways in every round, each in a process of its own."""
        with ExitStack() as stack:
            ways = self._opened(settings, figures, stack)
            chosen = {label: way for label, way in ways.items()
                      if not settings.ways or any(word in label for word in settings.ways)}  # fmt: skip
            take_turns(figures, self.shape.shape, {self.rows.name: self.rows}, chosen, settings.turns(self.rounds))

    def _opened(self, settings: Settings, figures: Figures, stack: ExitStack) -> dict[str, Turn]:
        repository = self.shape.repository("int8", settings.quick)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfx-bench-")))
        source = write_rows(folder / "rows.csv", self.rows.texts)
        inside = stack.enter_context(Child(open_inside, repository=str(repository)))
        jobs = stack.enter_context(Jobs.of(repository, self.rows.settings))
        jobs.run(source)
        ways: dict[str, Turn] = {JOB: lambda rows: jobs.run(source)}
        ways |= {
            way: partial(_inside, inside, way) for way in ((TOGETHER, TEN, ONE) if self.peers else (TOGETHER, TEN))
        }
        peers = settings.chosen([TORCH]) if self.peers else []
        for child in open_ways(peers, self.shape.checkpoint(settings.quick), figures, stack).values():
            ways |= {f"torch, {size} row{'s' * (size > 1)}": partial(_torch, child, size) for size in TORCH_ROWS}
        if self.served:
            server = stack.enter_context(EmbeddedServer(repository, models=[NAME, f"{NAME}_stream"]))
            behind = stack.enter_context(Jobs.of(repository, self.rows.settings, (server.grpc_url,)))
            ways |= {SERVED: lambda rows: behind.run(source), LOAD: partial(_load, server_target(server, NAME))}
        return ways


def _inside(child: Child, way: str, rows: Rows) -> dict[str, float | None]:
    sample = child.run((way, rows))
    seconds = statistics.median(sample.seconds)
    return {"rows/s": sample.value / seconds, "seconds": seconds}


def _torch(child: Child, size: int, rows: Rows) -> dict[str, float | None]:
    texts = rows.texts[: max(size, rows.first)]
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    batches = [Batch(group, new=rows.new, beams=rows.beams, ngram=rows.ngram) for group in groups]
    seconds = sum(child.run(batch, warm=False).seconds[0] for batch in batches)
    return {"rows/s": len(texts) / seconds, "seconds": seconds}


def _load(target: Target, rows: Rows) -> dict[str, float | None]:
    """The best of several numbers of callers."""
    inputs = {name: tuple(values) for name, values in rows.settings.items()}
    requests = RequestSet(tuple(Request({"text_input": (text,), **inputs}) for text in rows.texts), rows.name)
    spec = MeasureSpec(requests, LoadLimits(requests=rows.count, warmup_requests=0), stream=False)
    found = [run_figures(measure(target, Closed(callers), spec)) for callers in CALLERS]
    return {"rows/s": max(each["requests/s to the last answer"] or 0.0 for each in found)}


def _goal(case: str, least: float, against: tuple[str, ...], way: str = JOB) -> Goal:
    return Goal(case, "rows/s", (way,), least=least, against=against)


def _work(title: str, cases: Cases, *goals: tuple[float, tuple[str, ...]]) -> Work:
    case = cases.rows.name
    found = [_goal(case, least, against) for least, against in goals]
    if cases.served:
        found.append(_goal(case, 0.9, (LOAD,), SERVED))
    return Work(title, cases.measure, COLUMNS, (JOB,), "rows/s", tuple(found))


BY_TORCH = tuple(f"torch, {size} row{'s' * (size > 1)}" for size in TORCH_ROWS)
WORKS = {
    "gpt2": _work(
        "distilgpt2's size, greedy, 50 tokens",
        Cases(Served("distilgpt2"), Rows("128 rows", 128, "lognormal:25,1.0,200", 4, new=50), served=True),
        (0.95, (TOGETHER,)), (3.0, (TEN,)),
    ),
    "barrier": _work(
        "distilgpt2's size, greedy; answers end at the first v, after 128 tokens at the latest",
        Cases(Served("distilgpt2"), Rows("128 rows", 128, "lognormal:25,1.0,200", 4, new=128, ngram=1, stop="v"),
              peers=False),
        (0.95, (TOGETHER,)), (3.0, (TEN,)),
    ),
    "t5": _work(
        "flan-t5-base's size, greedy, 32 tokens",
        Cases(Served("flan-t5-base"), Rows("96 rows", 96, "lognormal:50,0.5,150", 4, new=32), served=True),
        (0.95, (TOGETHER,)), (4.0, (ONE,)), (3.0, (TEN,)),
    ),
    "bart": _work(
        "bart-large-cnn's size, 4 beams, 32 tokens",
        Cases(Served("bart-large-cnn"), Rows("12 rows", 12, "lognormal:200,0.5,400", 2, new=32, beams=4, ngram=3)),
        (0.95, (TOGETHER,)), (2.0, (ONE,)), (6.0, BY_TORCH),
    ),
    "classifier": _work(
        "A classifier of distilbert-base's size",
        Cases(Served("distilbert-base"), Rows("512 rows", 512, "lognormal:25,1.0,200", 64)),
        (0.9, (TOGETHER,)), (3.0, (ONE,)), (4.0, BY_TORCH), (3.0, (TEN,)),
    ),
    "spark": Work(
        "A classifier of distilbert-base's size in Spark, a task of one thread for each core", spark, COLUMNS,
        (JOB,), "rows/s", SPARK_GOALS,
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("batch", WORKS))
