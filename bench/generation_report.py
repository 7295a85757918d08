"""The tables of `bench.generate`. Ratios are medians of the ratios within a round. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.generation_figures import Key, Result, Results
from bench.generation_goals import CT2, SPEED, fastest_of_ours, goals, standing
from bench.generation_peers import is_ours
from bench.report import goals as goals_table
from bench.report import machine_line, number, table

SETTINGS = {
    "hfx": "Engine.submit and result, 2 threads, a slot for each row; int4 is the decoder's layers in blocks of 32, "
    "head and embedding int8; with head int4, the form that `hfx export` tries first, 4 bits in both, blocks of 128",
    "hfx on ONNX Runtime": "threads spin for 20 us (the default when served), float32 K/V; int8 activations row by row",
    "hfx on OpenVINO": "K/V in pages: u8 of GPT-2, float16 of encoder-decoders; int8 activations row by row where the "
    "processor has AMX, else in groups of 128; computed in float32",
    "CTranslate2": "4.8.5, int8 on one worker of 2 threads",
    "OpenVINO GenAI": "2026.4.1, ContinuousBatchingPipeline, LATENCY, 2 threads, u8 K/V (its default), groups of 128 "
    "activations, for one row of int4 of 32; int4 weights in groups of 128, head and embedding int8 unless said; "
    'float32 between products of integers or, as "bf16", its default, which is bfloat16 where the processor has it',
    "OpenVINO by optimum-intel": "2.2.0, OVModelForSeq2SeqLM, LATENCY, 2 threads; activations, int4 and bf16 likewise",
    "ONNX Runtime by optimum": "quantize_dynamic, no merged decoder, 2 threads; one round",
    "torch": "transformers' generate, 2 threads; one round",
}
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


def _speed(result: Result) -> list[str]:
    """hfx beside the best peers; then a table a case: milliseconds of an answer, and what hfx is beside it."""
    return [_standings(result), *(_case(result, case) for case in result.cases("ms"))]


def _standings(result: Result) -> str:
    rows = []
    for case in result.cases("ms"):
        for precision in ("int8", "int4"):
            if found := standing(result, case, precision):
                times = (result.median((*who, case, "ms")) for who in (found.ours, found.peer))
                own, theirs = (number(each) for each in times)
                rows.append((case, precision, found.ours[0], own, found.peer[0], theirs, number(found.ratio)))
    header = ("case", "precision", "hfx's fastest", "ms", "the fastest peer", "ms", "x as fast")
    return table("hfx beside the best peer of the same precision", header, rows)


def _case(result: Result, case: str) -> str:
    new, rows = _counts(case)
    lines = []
    for who in result.ways("ms"):
        key: Key = (*who, case, "ms")
        middle, spread = result.median(key), result.spread(key)
        if middle is None or spread is None:
            continue
        least, most = (number(end) for end in spread)
        ours = fastest_of_ours(result, case, who[1]) or fastest_of_ours(result, case, "int8")
        ratio = result.ratio(key, (*ours, case, "ms")) if ours else None
        processor = result.median((*who, case, "processor ms"))
        rate = number(1e3 * new * rows / middle)
        turns = str(len(result.figures[key]))
        lines.append((*who, number(middle), f"{least}-{most}", turns, rate, number(processor), number(ratio)))
    header = ("way", "precision", "ms", "least-most", "rounds", "tokens/s", "processor ms", "x hfx's time")
    return table(case, header, lines)


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
    ratios = [
        result.ratio((*CT2, case, figure), (*who, case, figure)) for who in result.ways(figure) if is_ours(who[0])
    ]
    return (number(max((ratio for ratio in ratios if ratio is not None), default=None)),)


def _overhead(result: Result) -> list[str]:
    figures = ("step", "inside", "added", "bare")
    rows = [
        (case, way[0], *(number(result.median((*way, case, figure))) for figure in figures))
        for case in result.cases("added")
        for way in result.ways("added")
    ]
    header = ("case", "way", "ms a step of the engine", "in the runtime", "added", "the bare runs alone")
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
        bound = f"p99 within {number(facts['bound'])} s, {facts['reference']}'s at 70 % of its burst"
        parts.append(table(f"{model}: requests/s with {bound}", header, rows))
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
        title = f"{profile['model']}, {profile['way']}, {profile['case']}: {number(profile['run'])} us a run{shares}"
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
    **dict.fromkeys(SPEED, _speed),
    "growth": _growth,
    "overhead": _overhead,
    "memory": _memory,
    "arrivals": _arrivals,
    "documents": _arrivals,
    "ops": _operators,
    "export": _export,
}
