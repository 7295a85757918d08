"""`python -m bench.generate`: hfx's generation in process beside CTranslate2, OpenVINO, optimum and torch.

Every way runs in a process of its own, in turn with the others; prompts are token ids, and all write equally many.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import command
from bench.arrivals import Load, Point, goodput, point
from bench.cases import Served, prompts
from bench.child import Child, PeerFailed, apart
from bench.command import Settings, Work
from bench.exports import export
from bench.figures import Figures, Goal, noted, rounds, say
from bench.packages import conversion, timed
from bench.peers import Batch, Model, Way

# hfx is the faster of its runtimes, which `hfx export --cpu-runtime auto` publishes; peers have their best settings.
OURS = {precision: tuple(Way("hfx", precision, runtime) for runtime in ("openvino", "onnxruntime"))
        for precision in ("int8", "int4")}  # fmt: skip
CT2, ORT = Way("ctranslate2", "int8"), Way("optimum", "int8")
GENAI = {precision: (Way("genai", precision, "f32"), Way("genai", precision)) for precision in ("int8", "int4")}
INTEL = {precision: (Way("openvino", precision, "f32"), Way("openvino", precision)) for precision in ("int8", "int4")}
TORCH = (Way("torch", "fp32"), Way("torch", "bf16"))
SLOW, SLOW_ROWS, PATIENCE, SECONDS = frozenset({ORT, *TORCH}), 32, 150.0, 0.3
SHARES, USUAL, WARM = (0.55, 0.7, 0.85, 1.0), 1, 4  # rates tried, as shares of what a burst gave
COLUMNS = ("ms", "tokens/s", "processor ms", "memory MB")


@dataclass(frozen=True)
class Cases:
    """Batches of (rows, prompt, new tokens) of a model by `ways`; slow ones in the first round and with few rows."""

    shape: str
    batches: tuple[tuple[int, int, int], ...]
    ways: tuple[Way, ...]
    beams: int = 1
    ngram: int = 0
    rounds: int = 5

    def measure(self, settings: Settings, figures: Figures) -> None:
        """All ways in every case of every round."""
        batches = [(min(rows, 8), min(prompt, 64), min(new, 8)) for rows, prompt, new in self.batches[:2]]
        with ExitStack() as stack:
            children = opened(self.shape, settings.chosen(self.ways), settings, figures, stack)
            for turn in rounds(self.shape, settings.turns(self.rounds), PATIENCE):
                for size in batches if settings.quick else self.batches:
                    for way, child in children.items():
                        title = f"{way.label}, {name(*size)}"
                        if title in figures.notes or (way in SLOW and (turn or size[0] > SLOW_ROWS)):
                            continue
                        with noted(figures, title):
                            figures.add(way.label, name(*size), turn, **self._run(child, size, way in SLOW))

    def _run(self, child: Child, size: tuple[int, int, int], slow: bool) -> dict[str, float]:
        rows, prompt, new = size
        batch = Batch(ids=prompts(rows, prompt), new=new, beams=self.beams, ngram=self.ngram)
        sample = child.run(batch, SECONDS, warm=not slow)
        if sample.value.written != (new,) * rows:
            raise PeerFailed(f"wrote {sample.value.written} tokens instead of {new} in each of {rows} rows")
        ms = 1e3 * statistics.median(sample.seconds)
        memory = sample.memory / 1e6
        return {
            "ms": ms,
            "tokens/s": 1e3 * new * rows / ms,
            "processor ms": 1e3 * sample.processor,
            "memory MB": memory,
        }


def name(rows: int, prompt: int, new: int) -> str:
    """The name of a case."""
    return f"{prompt} to {new} tokens, {rows} row{'s' * (rows > 1)}"


def opened(shape: str, ways: Sequence[Way], settings: Settings, figures: Figures, stack: ExitStack) -> dict[Way, Child]:
    """The ways that can be opened; conversions, which take much memory, come before."""
    model, found = Model.of(Served(shape).checkpoint(settings.quick)), {}
    for step in (lambda way: way.folder(model), lambda way: found.update({way: stack.enter_context(way.open(model))})):
        for way in ways:
            say(f"{shape}: {way.label}")
            if way.label not in figures.notes:
                with noted(figures, way.label):
                    step(way)
    return found


@dataclass(frozen=True)
class Traffic:
    """Ragged requests by a Poisson process: `count` of them at once, then for about `seconds` at rates below that."""

    shape: str
    count: int
    seconds: float
    peer: Way
    rows: tuple[int, ...] = (8,)  # of a static batch; each is tried

    def measure(self, settings: Settings, figures: Figures) -> None:
        """Bursts, then every way at its rates; the bound on p99 is the best peer's at 70 % of its burst."""
        load = Load(math.inf, self.count)
        load = replace(load, count=8, longest_prompt=32, longest_answer=16) if settings.quick else load
        found: dict[str, list[Point]] = {}
        with ExitStack() as stack:
            ways = settings.chosen((*OURS["int8"], self.peer))
            for way, child in opened(self.shape, ways, settings, figures, stack).items():
                for rows in self.rows if way == self.peer else self.rows[:1]:
                    label = f"{way.label}, batches of {rows}" if len(self.rows) > 1 and way == self.peer else way.label
                    say(f"{self.shape}: load on {label}")
                    with noted(figures, label):
                        found[label] = self._points(child, replace(load, batch=rows, unlike=math.inf), settings)
        bursts = {label: points[0].requests_per_second for label, points in found.items()}
        peers = [label for label in bursts if not label.startswith("hfx")] or list(bursts)
        best = max(peers, key=lambda label: bursts[label], default="")
        bound = found[best][1 + USUAL].p99 if best else math.inf
        case = f"ragged arrivals, p99 of at most {bound:.3g} s"
        for label, (burst, *points) in found.items():
            figures.add(label, case, 0, **{
                "burst requests/s": burst.requests_per_second, "burst tokens/s": burst.tokens_per_second,
                "goodput requests/s": goodput(points, bound), "p99 s at 70 %": points[USUAL].p99,
            })  # fmt: skip
        figures.facts["best peer"] = best

    def _points(self, child: Child, load: Load, settings: Settings) -> list[Point]:
        def at(count: int, rate: float = math.inf) -> Point:
            tried = replace(load, rate=rate, count=count)
            return point(tried, child.run(tried, warm=False).value)

        at(WARM)
        burst = at(load.count)
        rates = [share * burst.requests_per_second for share in SHARES]
        seconds = 0.5 if settings.quick else self.seconds
        return [burst, *(at(max(8, round(rate * seconds)), rate) for rate in rates)]


def exporting(settings: Settings, figures: Figures) -> None:
    """What `hfx export` took, gate included, and what optimum's export took when it was made for the cache."""
    model = Model.of(Served("bart-large-cnn").checkpoint(settings.quick))
    with noted(figures, "hfx int8"), tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint": model.folder, "precision": "int8", "gate": True}
        apart(timed, convert=export, folder=folder, arguments=options)
        figures.add("hfx int8", "export", 0, **conversion(Path(folder)))
    with noted(figures, ORT.label):
        figures.add(ORT.label, "export", 0, **conversion(ORT.folder(model) or Path()))


def labels(*groups: Sequence[Way]) -> tuple[str, ...]:
    """The names of ways."""
    return tuple(way.label for group in groups for way in group)


def _goals(sizes: Sequence[tuple[int, int, int]], *wanted: tuple[int, str, Sequence[Way], float]) -> tuple[Goal, ...]:
    """In the case of so many rows hfx in a precision is so many times as fast as the best of peers."""
    cases = {size[0]: name(*size) for size in sizes}
    return tuple(
        Goal(cases[rows], "ms", labels(OURS[precision]), least=least, against=labels(peers),
             relation="inverse", lower=True)
        for rows, precision, peers, least in wanted
    )  # fmt: skip


def _speed(title: str, cases: Cases, *goals: Goal) -> Work:
    return Work(title, cases.measure, COLUMNS, labels(OURS["int8"]), "ms", goals)


def _arrivals(traffic: Traffic) -> Work:
    columns = ("burst requests/s", "burst tokens/s", "goodput requests/s", "p99 s at 70 %")
    title = f"{traffic.shape}: ragged requests that arrive one by one"
    return Work(title, traffic.measure, columns, labels(OURS["int8"]), "goodput requests/s")


GPT2 = tuple((rows, 8, 50) for rows in (1, 8, 32, 128))
T5, BART = ((1, 64, 64), (16, 64, 64)), ((1, 768, 64), (4, 768, 64))
GROWTH = (*((2**power, 8, 50) for power in range(8)), *((8, length - 33, 33) for length in (128, 256, 512, 1024)))
ALL = (*OURS["int8"], *OURS["int4"], CT2, ORT, *TORCH)
HEAD = Way("genai", "int4", "head")
WORKS = {
    "gpt2": _speed(
        "distilgpt2, greedy", Cases("distilgpt2", GPT2, (*ALL, *GENAI["int8"], *GENAI["int4"], HEAD)),
        *_goals(GPT2, (1, "int4", (*GENAI["int4"], HEAD), 1.2), (1, "int4", (CT2,), 5.0)),
        *_goals(GPT2, *((rows, each, GENAI[each], 1.05) for rows in (8, 32, 128) for each in GENAI)),
        *_goals(GPT2, *((rows, "int8", (CT2,), least)
                        for rows, least in ((1, 2.5), (8, 2.8), (32, 1.7), (128, 1.3)))),
    ),
    "t5": _speed(
        "flan-t5-base, greedy", Cases("flan-t5-base", T5, (*ALL, *INTEL["int8"], *INTEL["int4"])),
        *_goals(T5, (1, "int8", INTEL["int8"], 1.7), (16, "int8", INTEL["int8"], 1.15), (1, "int4", (CT2,), 4.0)),
        *_goals(T5, (1, "int8", (CT2,), 2.5), (16, "int8", (CT2,), 2.1)),
    ),
    "bart": _speed(
        "bart-large-cnn, 4 beams", Cases("bart-large-cnn", BART, (*ALL, INTEL["int8"][1]), 4, 3, rounds=4),
        *_goals(BART, *((rows, "int8", peers, least) for rows in (1, 4)
                        for peers, least in (((INTEL["int8"][1],), 2.2), ((CT2,), 2.4)))),
        *_goals(BART, (1, "int8", TORCH[:1], 6.0)),
    ),
    "growth": _speed(
        "distilgpt2 by rows and by length", Cases("distilgpt2", GROWTH, (*OURS["int8"], CT2), rounds=2)
    ),
    "arrivals": _arrivals(Traffic("distilgpt2", 64, 10.0, GENAI["int8"][0])),
    "documents": _arrivals(Traffic("bart-large-cnn", 16, 15.0, CT2, (8, 16))),
    "export": Work("Export of bart-large-cnn", exporting, ("seconds", "gigabytes", "disk"), goals=(
        Goal("export", "seconds", ("hfx int8",), most=60.0), Goal("export", "gigabytes", ("hfx int8",), most=4.0),
    )),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("generate", WORKS))
