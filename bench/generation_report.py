"""The tables and goals of `bench.generate`. Ratios are medians of the ratios within a round. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.generation_figures import Key, Result, Results
from bench.report import Goal, machine_line, number, table
from bench.report import goals as goals_table

CT2, OURS = ("CTranslate2", "int8"), ("hfx", "int8")
TORCH, INTEL = ("torch", "fp32"), ("OpenVINO by optimum-intel", "int8")
GENAI = ("OpenVINO GenAI", "int8")
INT4 = ("hfx, head int4", "int4")
GENAI4 = (("OpenVINO GenAI", "int4"), ("OpenVINO GenAI, head int4", "int4"))
Who = tuple[str, str]
# work -> (whose goal, against whom (the best of them), how many times as fast in each case)
SPEED_GOALS: dict[str, tuple[tuple[Who, tuple[Who, ...], tuple[float, ...]], ...]] = {
    "gpt2": (
        (OURS, (CT2,), (2.5, 2.8, 1.7, 1.3)),
        (OURS, (GENAI,), (1.1, 1.0, 1.0, 1.0)),
        (INT4, (CT2,), (5.0,)),
        (INT4, GENAI4, (1.2,)),
    ),
    "t5": ((OURS, (CT2,), (2.5, 2.1)), (OURS, (INTEL,), (1.2, 1.05)), (INT4, (CT2,), (4.0,))),
    "bart": ((OURS, (CT2,), (2.2, 1.8)), (OURS, (INTEL,), (1.8, 1.8)), (OURS, (TORCH,), (6.0, 6.0))),
}
OVERHEAD_GOALS = {"B=1": 0.15, "B=32": 0.6}
SETTINGS = {
    "hfx": "Engine.submit and result, 2 threads that spin for 20 us (the default when served), a slot for each row, "
    "float32 K/V; int8 activations row by row; int4 is the decoder's layers in blocks of 32, head and embedding int8",
    "hfx, head int4": "the form of int4 that `hfx export` tries first: head and embedding in 4 bits too, blocks of 128",
    "CTranslate2": "4.8.5, int8 on one worker of 2 threads",
    "OpenVINO GenAI": "2026.4.1, ContinuousBatchingPipeline, LATENCY, 2 threads, u8 K/V (its default); activation "
    "groups of 128, for int4 of 32; int4 weights in groups of 128, head and embedding int8 unless said",
    "OpenVINO by optimum-intel": "2.2.0, OVModelForSeq2SeqLM, LATENCY, 2 threads, activation groups of 128",
    "ONNX Runtime by optimum": "quantize_dynamic, no merged decoder, 2 threads; few rounds",
    "torch": "transformers' generate, 2 threads; few rounds",
}
SHARE_OF_PEER_MEMORY, EXPORT_SECONDS, EXPORT_BYTES = 1.25, 60.0, 4e9
GOODPUT = 2.0
MEGABYTE = 1e6


def render(results: Results) -> str:
    """All tables as Markdown: goals first, then work by work."""
    parts = [goals_table(goals(results))]
    for name, result in results.items():
        parts += [f"## {name}", "", machine_line(result.machine), ""]
        parts += TABLES[name](result)
        parts += [f"- {who}: {note}" for who, note in result.notes.items()]
    parts += ["", "## Settings", "", *(f"- {way}: {text}" for way, text in SETTINGS.items())]
    return "\n".join(parts)


def goals(results: Results) -> list[Goal]:
    """The issue's goals, for the works that were run."""
    return [goal for name, result in results.items() for goal in GOALS.get(name, _none)(name, result)]


def _none(name: str, result: Result) -> Iterator[Goal]:
    return iter(())


def _speed_goals(name: str, result: Result) -> Iterator[Goal]:
    for whose, against, wanted in SPEED_GOALS[name]:
        for case, least in zip(result.cases("ms"), wanted, strict=False):
            ratios = [result.ratio((*who, case, "ms"), (*whose, case, "ms")) for who in against]
            known = [ratio for ratio in ratios if ratio is not None]
            who = f"{against[0][0]} {against[0][1]}"
            yield Goal(f"{name} {case}: hfx {whose[1]} is x times as fast as {who}", min(known, default=None), least)


def _overhead_goals(name: str, result: Result) -> Iterator[Goal]:
    for case in result.cases("added"):
        for suffix, most in OVERHEAD_GOALS.items():
            if case.startswith("distilgpt2") and case.endswith(suffix):
                yield Goal(f"{case}: ms a step outside ONNX Runtime", result.median((*OURS, case, "added")), most=most)


def _memory_goals(name: str, result: Result) -> Iterator[Goal]:
    for case in result.cases("after"):
        own, pool, peers = (
            result.median(key) for key in ((*OURS, case, "after"), (*OURS, case, "pool"), (*CT2, case, "after"))
        )
        share = own / (SHARE_OF_PEER_MEMORY * peers + pool) if own and pool and peers else None
        yield Goal(f"{case}: memory, of 1.25 x CTranslate2's and the K/V pool", share, most=1.0)


def _arrivals_goals(name: str, result: Result) -> Iterator[Goal]:
    for model, facts in result.facts.items():
        own = facts["ways"].get(OURS[0], {}).get("goodput")
        static = [way["goodput"] for title, way in facts["ways"].items() if "static" in title]
        ratio = own / max(static) if own is not None and static and max(static) else None
        yield Goal(f"{model}: goodput, times that of CTranslate2's static batches", ratio, least=GOODPUT)


def _export_goals(name: str, result: Result) -> Iterator[Goal]:
    took = result.facts.get("hfx", {}).get("took", {})
    yield Goal("hfx export of bart-large-cnn, gate included: seconds", took.get("seconds"), most=EXPORT_SECONDS)
    peak = took.get("peak_bytes")
    yield Goal("the same: GB at most", peak / 1e9 if peak else None, most=EXPORT_BYTES / 1e9)


GOALS: dict[str, Callable[[str, Result], Iterator[Goal]]] = {
    **dict.fromkeys(SPEED_GOALS, _speed_goals),
    "overhead": _overhead_goals,
    "memory": _memory_goals,
    "arrivals": _arrivals_goals,
    "export": _export_goals,
}


def _speed(result: Result) -> list[str]:
    """A table a case: milliseconds of an answer, and what hfx int8 is beside it."""
    parts = []
    for case in result.cases("ms"):
        new, rows = _counts(case)
        lines = []
        for who in result.ways("ms"):
            key: Key = (*who, case, "ms")
            middle, spread = result.median(key), result.spread(key)
            if middle is None or spread is None:
                continue
            least, most = (number(end) for end in spread)
            ratio = result.ratio(key, (*OURS, case, "ms"))
            processor = result.median((*who, case, "processor ms"))
            rate = number(1e3 * new * rows / middle)
            turns = str(len(result.figures[key]))
            lines.append((*who, number(middle), f"{least}-{most}", turns, rate, number(processor), number(ratio)))
        header = ("way", "precision", "ms", "least-most", "rounds", "tokens/s", "processor ms", "x hfx int8's time")
        parts.append(table(case, header, lines))
    return parts


def _counts(case: str) -> tuple[int, int]:
    """(new tokens, rows) of a case's label, "8 to 50 tokens, B=1"."""
    return int(case.split(" to ")[1].split()[0]), int(case.rsplit("B=", 1)[1])


def _growth(result: Result) -> list[str]:
    ways = result.ways("ms")
    rows = [
        (case, *(number(result.median((*who, case, "ms"))) for who in ways), *_ratio(result, case, "ms"))
        for case in result.cases("ms")
    ]
    header = ["case", *(f"{way}, ms" for way, _ in ways), "x CTranslate2"]
    parts = [table("By rows", header, rows)]
    for figure in ("step ms", "prompt ms"):
        lines = [
            (case, *(number(result.median((*who, case, figure))) for who in ways), *_ratio(result, case, figure))
            for case in result.cases(figure)
        ]
        header = ["positions, 8 rows", *(f"{way}, {figure}" for way, _ in ways), "x CTranslate2"]
        parts.append(table(f"By length: {figure}", header, lines))
    return parts


def _ratio(result: Result, case: str, figure: str) -> tuple[str]:
    return (number(result.ratio((*CT2, case, figure), (*OURS, case, figure))),)


def _overhead(result: Result) -> list[str]:
    figures = ("step", "inside", "added", "bare")
    rows = [
        (case, *(number(result.median((*OURS, case, figure))) for figure in figures)) for case in result.cases("added")
    ]
    header = ("case", "ms a step of the engine", "in ONNX Runtime", "added", "the bare binding alone")
    return [table("Overhead", header, rows)]


def _memory(result: Result) -> list[str]:
    figures = ("before", "loaded", "after", "peak", "pool")
    rows = [
        (way, precision, *(_megabytes(result.median((way, precision, case, figure))) for figure in figures))
        for way, precision in result.ways("after")
        for case in result.cases("after")
    ]
    header = ("way", "precision", "MB before", "with the model open", "after the run", "at most", "of which K/V pool")
    return [table(f"Memory of a process: {', '.join(result.cases('after'))}", header, rows)]


def _megabytes(value: float | None) -> str:
    return f"{value / MEGABYTE:.0f}" if value else "-"


def _arrivals(result: Result) -> list[str]:
    parts = []
    for model, facts in result.facts.items():
        rows = []
        for name, way in facts["ways"].items():
            most, mark = way["burst"], ">= " if way["at_least"] else ""
            points = "; ".join(" ".join(number(p[key]) for key in ("rate", "p50", "p99")) for p in way["points"])
            figures = (number(most["requests_per_second"]), number(most["tokens_per_second"]))
            rows.append((name, *figures, mark + number(way["goodput"]), points))
        header = ("way", "burst, requests/s", "tokens/s", "goodput", "tried: requests/s, p50 s, p99 s")
        parts.append(table(f"{model}: requests/s with p99 within {number(facts['bound'])} s", header, rows))
    return parts


def _operators(result: Result) -> list[str]:
    limits = result.facts.get("limits")
    parts = []
    if limits:
        bandwidth, products = limits["bytes_per_second"] / 1e9, limits["multiplications_per_second"] / 1e9
        parts.append(f"Limits: {bandwidth:.1f} GB/s from memory, {products:.0f} G int8 multiplications/s.\n")
    for profile in result.facts["profiles"]:
        total = sum(spent for _, spent, _ in profile["operators"])
        rows = [
            (name, number(spent), f"{spent / total:.0%}", f"{times:.0f}")
            for name, spent, times in profile["operators"][:8]
        ]
        shares = _shares(profile, limits) if limits else ""
        title = (
            f"{profile['model']} {profile['precision']}, {profile['case']}: {number(profile['run'])} us a run{shares}"
        )
        parts.append(table(title, ("operator", "us", "share", "times"), rows))
    return parts


def _shares(profile: dict[str, Any], limits: dict[str, float]) -> str:
    """The least that a step can take by the machine's limits, as shares of what it took (with the profiler on)."""
    seconds = profile["run"] / 1e6
    memory = profile["weight_bytes"] / limits["bytes_per_second"] / seconds
    products = profile["multiplications"] / limits["multiplications_per_second"] / seconds
    return f"; {memory:.0%} of the limit by weights read, {products:.0%} by multiplications"


def _export(result: Result) -> list[str]:
    rows = []
    for title, facts in result.facts.items():
        took = facts.get("took", facts)
        outcome = "" if facts.get("published", True) else f"refused: {facts['said']}"
        disk = "-" if outcome else f"{took['disk_bytes'] / 1e9:.2f}"
        rows.append((title, number(took["seconds"]), f"{took['peak_bytes'] / 1e9:.2f}", disk, outcome))
    return [table("Export of bart-large-cnn", ("way", "seconds", "GB at most", "GB on disk", ""), rows)]


TABLES: dict[str, Callable[[Result], Sequence[str]]] = {
    **dict.fromkeys(SPEED_GOALS, _speed),
    "growth": _growth,
    "overhead": _overhead,
    "memory": _memory,
    "arrivals": _arrivals,
    "ops": _operators,
    "export": _export,
}
