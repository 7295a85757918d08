"""`python -m bench.encoder`: a classifier through Triton beside its bare session, and beside the peers.

A case is so many texts at once: a batch of a session, or as many callers of the server. `ms` is of the net alone in
process and the p50 of callers; "text to label ms" has the tokenizer in it.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack

from bench import command
from bench.cases import Case, Served, Texts, token_counter
from bench.child import Child
from bench.command import Settings, Work
from bench.exports import NAME
from bench.figures import Figures, Goal, noted, rotated, rounds, say
from bench.peers import Batch, Model, Way
from hfx.perf.load import Closed, RequestSet
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.perf.tools.install import fetch
from hfx.triton import EmbeddedServer

SHAPE, PRECISIONS, WIDTHS, SIZES = Served("distilbert-base"), ("fp32", "int8"), (16, 128), (1, 8, 64)
WAYS = (
    *(Way("hfx", precision) for precision in PRECISIONS),
    Way("torch", "fp32"),
    *(Way(peer, precision) for precision in PRECISIONS for peer in ("optimum", "openvino")),
)
SECONDS, SERVED_SECONDS = 0.4, 2.0
COLUMNS = ("requests/s", "ms", "p99 ms", "text to label ms", "processor ms a text", "rows a batch")


def encoders(settings: Settings, figures: Figures) -> None:
    """All ways in every round, each in a process of its own."""
    sizes, widths = (SIZES[:2], WIDTHS[:1]) if settings.quick else (SIZES, WIDTHS)
    checkpoint = SHAPE.checkpoint(settings.quick)
    count = token_counter(checkpoint)
    fetch()  # perf_analyzer: on few cores a generator in Python would be what is measured
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for way in settings.chosen(WAYS):
            say(f"opening {way.label}")
            with noted(figures, way.label):
                children[way.label] = stack.enter_context(way.open(Model.of(checkpoint)))
        targets = {}
        for precision in PRECISIONS:
            server = EmbeddedServer(SHAPE.repository(precision, settings.quick), models=[NAME])
            targets[f"hfx {precision} served"] = server_target(stack.enter_context(server), NAME)
        for width in widths:
            for size in sizes:
                case = Case(f"{width} tokens, {size} at once", Closed(size), Texts(lengths=f"fixed:{width}"), size)
                requests = case.request_set(count)
                for turn in rounds(case.name, settings.turns(5)):
                    for label in rotated([*children, *targets], turn):
                        with noted(figures, f"{label}, {case.name}"):
                            if label in targets:
                                known = figures.median(label.removesuffix(" served"), case.name, "requests/s") or 100.0
                                found = _served(targets[label], case, requests, known)
                            else:
                                found = _session(children[label], case, requests)
                            figures.add(label, case.name, turn, **found)


def _session(child: Child, case: Case, requests: RequestSet) -> dict[str, float | None]:
    batch = case.batch(requests)
    text, net = (child.run(each, SECONDS) for each in (batch, Batch(batch.texts, net_only=True)))
    ms = 1e3 * statistics.median(net.seconds)
    return {
        "requests/s": 1e3 * case.rows / ms,
        "ms": ms,
        "text to label ms": 1e3 * statistics.median(text.seconds),
        "processor ms a text": 1e3 * net.processor / case.rows,
    }


def _served(target: Target, case: Case, requests: RequestSet, known: float) -> dict[str, float | None]:
    """About two seconds by perf_analyzer, of at least five requests of each caller."""
    from dataclasses import replace

    from bench.scenarios import rows_a_step

    limits = replace(case.limits, requests=max(5 * case.rows, round(known * SERVED_SECONDS)))
    run = measure(target, case.plan, MeasureSpec(requests, limits, tool="perf_analyzer", stream=False))
    assert run.latency
    figures = {"requests/s": run.throughput, "ms": run.latency.p50, "p99 ms": run.latency.p99}
    return {**figures, "rows a batch": rows_a_step(run)}


def _goals(width: int) -> list[Goal]:
    cases = {size: f"{width} tokens, {size} at once" for size in SIZES}
    found = []
    for way in (f"hfx {precision}" for precision in PRECISIONS):
        served = (f"{way} served",)
        found.append(Goal(cases[1], "ms", served, most=1.0, against=(way,), relation="difference"))
        found.append(Goal(cases[SIZES[-1]], "requests/s", served, least=0.85, against=(way,)))
    for peer, least in {"torch fp32": 4.0, "optimum int8": 1.5, "openvino int8": 1.0}.items():
        found += [
            Goal(cases[size], "text to label ms", ("hfx int8",), least=least, against=(peer,), relation="inverse")
            for size in SIZES[:2]
        ]
    return found


WORKS = {
    "encoder": Work(
        "A classifier of distilbert-base's size: bare sessions, through Triton, and peers",
        encoders, COLUMNS, ("hfx int8",), "text to label ms", tuple(goal for width in WIDTHS for goal in _goals(width)),
    )
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("encoder", WORKS))
