"""`python -m bench.encoder`: encoders through Triton beside their bare session, and beside the peers.

A case is so many texts at once: a batch of a session, or as many callers of the server. `ms` is of the net alone in
process and the p50 of callers; "text to label ms" has the tokenizer in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from bench import command, h2load, roofline
from bench.cases import SENTENCES, Case, Served, Texts, token_counter
from bench.child import Child
from bench.client import run_figures
from bench.command import Settings, Work, open_ways
from bench.exports import NAME
from bench.figures import Figures, Goal, take_turns
from bench.peers import Batch, Way
from bench.scenarios import CaseLoad, Turn
from hfx.client import Client
from hfx.errors import ServerBusy
from hfx.perf.load import Closed, LoadLimits, Open
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.perf.results import Run
from hfx.perf.tools.perf_analyzer import fetch
from hfx.triton import EmbeddedServer
from hfx.triton.one_hop import Steps

SHAPE, PRECISIONS, WIDTHS, SIZES = Served("distilbert-base"), ("fp32", "int8"), (16, 128), (1, 8, 64)
# fp32 files computed in bfloat16, which is optimum-intel's default where the processor can.
BFLOAT16 = ("bf16",) if "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else ()
EXPORTED = (*PRECISIONS, *BFLOAT16)
WAYS = (
    *(Way("hfx", precision) for precision in EXPORTED),
    Way("torch", "fp32"),
    *(Way(peer, precision) for precision in PRECISIONS for peer in ("optimum", "exporters", "openvino")),
    *(Way("openvino", precision) for precision in BFLOAT16),
)
MIXED_SIZES = (4, 8, 32)  # texts of many lengths in a batch
RELATIVES = tuple(Served(shape) for shape in ("mpnet-base", "modernbert-base", "deberta-v3-base"))
LONG = "fixed:128"
RELATIVE_LOADS = ((LONG, 1), (LONG, 8), (SENTENCES, 8), (SENTENCES, 32))
EMBEDDERS, EMBEDDED_SIZES = (Served("minilm-l6"), Served("bge-base")), (1, 8, 16)
EMBEDDING = (
    Way("hfx", "fp32"), Way("hfx", "int8"), Way("torch", "fp32"),
    *(Way(peer, precision) for precision in PRECISIONS for peer in ("optimum", "exporters", "openvino")),
    *(Way("llama.cpp", precision, variant) for precision in ("fp32", "q8_0") for variant in ("", "apart")),
)  # fmt: skip
SECONDS, SERVED_SECONDS = 0.4, 2.0
OVERLOAD, OVERLOAD_SECONDS, DEADLINE, PEAK_CALLERS = 4.0, 60.0, 10.0, 64
REQUESTS = 200  # before memory is read
TORCH = "torch fp32"
NATIVE, IN_PYTHON = "hfx int8 served", "hfx int8 served by Python steps"
PEAK, EXCESS = "64 callers", "4 times as much"
COLUMNS = ("requests/s", "of the limit", "ms", "p99 ms", "text to label ms", "processor ms a text", "rows a step")


def encoders(settings: Settings, figures: Figures) -> None:
    """All ways in every round, each in a process of its own."""
    sizes, widths = (SIZES[:2], WIDTHS[:1]) if settings.quick else (SIZES, WIDTHS)
    checkpoint = SHAPE.checkpoint(settings.quick)
    count = token_counter(checkpoint)
    fetch()  # perf_analyzer: on few cores a generator in Python would be what is measured
    with ExitStack() as stack:
        children = open_ways(settings.chosen(WAYS), checkpoint, figures, stack)
        ways: dict[str, Turn] = {label: partial(session_figures, child) for label, child in children.items()}
        repositories = {precision: SHAPE.repository(precision, settings.quick) for precision in EXPORTED}
        opened = [each for each in EXPORTED if f"hfx {each}" in children]
        served: dict[str, tuple[str, Steps]] = {f"hfx {each} served": (each, "native") for each in opened}
        if "int8" in opened:
            served[IN_PYTHON] = ("int8", "python")
        for label, (precision, steps) in served.items():
            server = stack.enter_context(EmbeddedServer(repositories[precision], models=[NAME], steps=steps))
            ways[label] = partial(_served, server_target(server, NAME), figures, f"hfx {precision}")
        rates = roofline.rates()
        limited = {label: repositories[label.split()[1]] for label in ways if label.split()[1] in PRECISIONS}
        ways |= {label: partial(_limited, folder, rates, ways[label]) for label, folder in limited.items()}
        cases = [_case(width, size) for width in widths for size in sizes]
        loads = {case.name: (case, case.request_set(count)) for case in cases}
        take_turns(figures, "encoder", loads, ways, settings.turns(5))


def mixed(settings: Settings, figures: Figures) -> None:
    """The int8 sessions on batches of texts of many lengths, which peers pad to the longest."""
    cases = [Case(mixed_name(size), Closed(size), Texts(lengths=SENTENCES), size) for size in MIXED_SIZES]
    _int8_sessions(settings, figures, "mixed", SHAPE, cases)


def mixed_name(size: int) -> str:
    """The name of a case of `mixed`."""
    return f"{size} texts of many lengths"


def relatives(settings: Settings, figures: Figures) -> None:
    """The int8 sessions of other architectures: on one text and on 8, of 128 tokens and of many lengths."""
    for shape in RELATIVES:
        cases = [
            Case(relative_name(shape, lengths, size), Closed(size), Texts(lengths=lengths), size)
            for lengths, size in RELATIVE_LOADS
        ]
        _int8_sessions(settings, figures, "relatives", shape, cases)


def _int8_sessions(settings: Settings, figures: Figures, work: str, shape: Served, cases: Sequence[Case]) -> None:
    """The batches of `cases` by each session in int8, in turns."""
    checkpoint = shape.checkpoint(settings.quick)
    count = token_counter(checkpoint)
    loads = {case.name: (case, case.request_set(count)) for case in cases}
    with ExitStack() as stack:
        int8 = settings.chosen([way for way in WAYS if way.precision == "int8"])
        children = open_ways(int8, checkpoint, figures, stack)
        ways: dict[str, Turn] = {label: partial(session_figures, child) for label, child in children.items()}
        take_turns(figures, work, loads, ways, settings.turns(5))


def relative_name(shape: Served, lengths: str, size: int) -> str:
    """The name of a case of `relatives`."""
    return f"{shape.shape}: {size} of {'128 tokens' if lengths == LONG else 'many lengths'}"


def embedders(settings: Settings, figures: Figures) -> None:
    """The sessions of embedders on texts of equal lengths; `cosine` is the least with torch's vectors of a case."""
    sizes, widths = (EMBEDDED_SIZES[:2], WIDTHS[:1]) if settings.quick else (EMBEDDED_SIZES, WIDTHS)
    for shape in EMBEDDERS:
        checkpoint = shape.checkpoint(settings.quick)
        count = token_counter(checkpoint)
        cases = [replace(_case(width, size), name=embedder_name(shape, width, size))
                 for width in widths for size in sizes]  # fmt: skip
        loads = {case.name: (case, case.request_set(count)) for case in cases}
        with ExitStack() as stack:
            children = open_ways(settings.chosen(EMBEDDING), checkpoint, figures, stack)
            torch = children.get(TORCH)
            ways: dict[str, Turn] = {label: partial(_embedded, child, torch) for label, child in children.items()}
            take_turns(figures, "embedders", loads, ways, settings.turns(5))


def embedder_name(shape: Served, width: int, size: int) -> str:
    """The name of a case of `embedders`."""
    return f"{shape.shape}: {case_name(width, size)}"


def _embedded(child: Child, torch: Child | None, load: CaseLoad) -> dict[str, float | None]:
    """A bare session's figures, and how near its vectors are to torch's."""
    found = session_figures(child, load)
    if torch:
        rows, exact = (np.array(each.run(load[0].batch(load[1])).value.vectors) for each in (child, torch))
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(exact, axis=1)
        found["cosine"] = float(((rows * exact).sum(axis=1) / norms).min())
    return found


def overload(settings: Settings, figures: Figures) -> None:
    """64 callers, who wait for their answers, and four times what they got a second, with deadlines of 10 s."""
    checkpoint = SHAPE.checkpoint(settings.quick)
    cases = [Case(case_name(width, 1), Closed(PEAK_CALLERS), Texts(lengths=f"fixed:{width}")) for width in WIDTHS]
    count = token_counter(checkpoint)
    loads = {case.name: (case, case.request_set(count)) for case in cases}
    server = EmbeddedServer(SHAPE.repository("int8", settings.quick), models=[NAME])
    seconds = 5.0 if settings.quick else OVERLOAD_SECONDS
    if not h2load.is_installed():
        figures.notes["load"] = "sent by a generator in Python, which takes half a core (no h2load on PATH)"
    with server:
        target = server_target(server, NAME)

        def run(plan: Closed | Open, load: CaseLoad) -> dict[str, float | None]:
            if h2load.is_installed():
                text = load[0].batch(load[1]).texts[0]
                return h2load.run(server, NAME, text, plan, seconds, DEADLINE)
            return _answered(measure(target, plan, MeasureSpec(load[1], LoadLimits(seconds=seconds, timeout=DEADLINE))))

        def excess(load: CaseLoad) -> dict[str, float | None]:
            peak = figures.median(PEAK, load[0].name, "answers/s") or run(load[0].plan, load)["answers/s"] or 1.0
            return run(Open(rate=OVERLOAD * peak), load)

        ways: dict[str, Turn] = {PEAK: lambda load: run(load[0].plan, load), EXCESS: excess}
        take_turns(figures, "overload", loads, ways, settings.turns(3))


def footprint(settings: Settings, figures: Figures) -> None:
    """A server of its own in each round: from ready to the first answer, and the memory of all its processes."""
    folder = SHAPE.repository("int8", settings.quick)
    ways: dict[str, Turn] = {
        NATIVE: partial(_footprint, folder, "native"),
        IN_PYTHON: partial(_footprint, folder, "python"),
    }
    case = Case("start", Closed(1), Texts(lengths=f"fixed:{WIDTHS[0]}"))
    loads = {case.name: (case, case.request_set(token_counter(SHAPE.checkpoint(settings.quick))))}
    take_turns(figures, "footprint", loads, ways, settings.turns(5))


def _footprint(repository: Path, steps: Steps, load: CaseLoad) -> dict[str, float | None]:
    [text, *_] = load[0].batch(load[1]).texts
    began = time.perf_counter()
    with EmbeddedServer(repository, models=[NAME], steps=steps) as server:
        ready = time.perf_counter()
        with Client(server.grpc_url) as client:
            client.infer(NAME, {"text_input": [text]})
            answered = time.perf_counter()
            for _ in range(REQUESTS):
                client.infer(NAME, {"text_input": [text]})
        root = psutil.Process(server.pid)
        pss = [each.memory_full_info().pss for each in (root, *root.children(recursive=True))]
    return {
        "seconds to ready": ready - began,
        "first answer ms": 1e3 * (answered - ready),
        "processes": len(pss),
        "PSS MiB": sum(pss) / (1 << 20),
    }


def _answered(run: Run) -> dict[str, float | None]:
    """Answers and refusals a second of the load, and the requests whose deadline passed."""
    return {
        "answers/s": run.requests.succeeded / run.seconds,
        "refused/s": run.requests.errors.get(ServerBusy.__name__, 0) / run.seconds,
        "late": float(run.requests.timeouts),
        "p99 ms": run.latency.p99 if run.latency else None,
    }


def _limited(repository: Path, rates: roofline.Rates, turn: Turn, load: CaseLoad) -> dict[str, float | None]:
    """What `turn` gives, and its rate over the most that this machine's memory and products allow the net."""
    found, case = turn(load), load[0]
    width = int(case.texts.lengths.removeprefix("fixed:"))
    work = (found.get("rows a step") or case.rows, found["requests/s"] or 0.0, float(width), 0.0)
    return {**found, "of the limit": roofline.share_of_limit(repository, NAME, rates, *work)}


def session_figures(child: Child, load: CaseLoad) -> dict[str, float | None]:
    """A bare session on a case's texts: the net alone, and from texts to labels."""
    case, requests = load
    batch = case.batch(requests)
    text, net = (child.run(each, SECONDS) for each in (batch, Batch(batch.texts, net_only=True)))
    ms = 1e3 * statistics.median(net.seconds)
    return {
        "requests/s": 1e3 * case.rows / ms,
        "ms": ms,
        "text to label ms": 1e3 * statistics.median(text.seconds),
        "processor ms a text": 1e3 * net.processor / case.rows,
    }


def _served(target: Target, figures: Figures, session: str, load: CaseLoad) -> dict[str, float | None]:
    """About two seconds by perf_analyzer, of at least five requests of each caller; waits until the server is idle."""
    case, requests = load
    known = figures.median(session, case.name, "requests/s") or 100.0
    limits = replace(case.limits, requests=max(5 * case.rows, round(known * SERVED_SECONDS)))
    found = run_figures(measure(target, case.plan, MeasureSpec(requests, limits, tool="perf_analyzer", stream=False)))
    with Client(target.grpc_url) as client:  # its text comes after those whose answers perf_analyzer left
        client.infer(target.model, requests.at(0).inputs)
    return {**found, "ms": found["p50 ms"]}


def _case(width: int, size: int) -> Case:
    return Case(case_name(width, size), Closed(size), Texts(lengths=f"fixed:{width}"), size)


def case_name(width: int, size: int) -> str:
    """The name of a case."""
    return f"{width} tokens, {size} at once"


def _goals(width: int) -> list[Goal]:
    cases = {size: case_name(width, size) for size in SIZES}
    found = []
    for way in (f"hfx {precision}" for precision in EXPORTED):
        served = (f"{way} served",)
        most = 0.8 if width == WIDTHS[0] else 1.0
        found.append(Goal(cases[1], "ms", served, most=most, against=(way,), relation="difference"))
        found.append(Goal(cases[SIZES[-1]], "requests/s", served, least=0.92, against=(way,)))
    peers = {("int8", TORCH): 4.0, ("int8", "optimum int8"): 1.5, ("int8", "exporters int8"): 1.0}
    peers |= {(precision, f"openvino {precision}"): 1.0 for precision in ("int8", *BFLOAT16)}
    for (precision, peer), least in peers.items():
        way = (f"hfx {precision}",)
        found += [
            Goal(cases[size], "text to label ms", way, least=least, against=(peer,), relation="inverse")
            for size in SIZES[:2]
        ]
    return found


WORKS = {
    "encoder": Work(
        "A classifier of distilbert-base's size: bare sessions, through Triton, and peers",
        encoders, COLUMNS, ("hfx int8",), "text to label ms", tuple(goal for width in WIDTHS for goal in _goals(width)),
    ),
    "mixed": Work(
        "A classifier of distilbert-base's size on texts of many lengths at once, without Triton",
        mixed, ("requests/s", "ms", "text to label ms", "processor ms a text"), ("hfx int8",), "ms",
        tuple(Goal(mixed_name(size), "ms", ("hfx int8",), least=1.3, against=(peer,), relation="inverse")
              for size in MIXED_SIZES for peer in ("optimum int8", "openvino int8")),
    ),
    "relatives": Work(
        "Classifiers of the sizes of MPNet, ModernBERT and DeBERTa, without Triton",
        relatives, ("requests/s", "ms", "text to label ms", "processor ms a text"), ("hfx int8",), "ms",
        tuple(Goal(relative_name(shape, *load), "ms", ("hfx int8",), least=1.2, against=(peer,), relation="inverse")
              for shape in RELATIVES for load in RELATIVE_LOADS for peer in ("optimum int8", "openvino int8")),
    ),
    "embedders": Work(
        "Embedders of the sizes of MiniLM (6 layers) and bge-base, without Triton",
        embedders, ("requests/s", "ms", "text to label ms", "processor ms a text", "cosine"), ("hfx int8",), "ms",
        tuple(Goal(embedder_name(shape, width, size), "ms", ("hfx int8",), least=1.0, against=peers, lower=True,
                   relation="inverse")
              for shape in EMBEDDERS for width in WIDTHS for size in EMBEDDED_SIZES
              for peers in (("exporters int8",), ("llama.cpp q8_0", "llama.cpp q8_0 apart"))),
    ),
    "overload": Work(
        "A classifier of distilbert-base's size at four times its peak, deadlines of 10 s",
        overload, ("answers/s", "refused/s", "late", "p99 ms", "refused p99 ms"), (EXCESS,), "answers/s",
        tuple(goal for width in WIDTHS for goal in (
            Goal(case_name(width, 1), "answers/s", (EXCESS,), least=0.95, against=(PEAK,)),
            Goal(case_name(width, 1), "refused p99 ms", (EXCESS,), most=5.0))),
    ),
    "footprint": Work(
        "Start and memory of a server with a classifier of distilbert-base's size in int8",
        footprint, ("seconds to ready", "first answer ms", "processes", "PSS MiB"), (NATIVE,), "PSS MiB",
        (Goal("start", "PSS MiB", (NATIVE,), most=0.6, against=(IN_PYTHON,)),
         Goal("start", "first answer ms", (NATIVE,), most=1000.0)),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("encoder", WORKS))
