"""The tables and goals of `bench.serve`. Ratios are medians of the ratios within a round. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.generation_figures import Key, Result, Results
from bench.report import Goal, machine_line, number, table
from bench.report import goals as goals_table
from bench.serve_doors import DOORS, STREAM_DOOR
from bench.serve_inside import PIECES, WHOLE
from bench.serve_mlserver import MLSERVER
from bench.serve_works import BURST_CASE, COUNTED, PEER_PRECISION, PRECISION, RATE_CASE

LIKE = {STREAM_DOOR: PIECES}  # what a door is held against, where that is not the whole text
SHARE_OF_ENGINE, ADDED_MS, PAUSES = 0.9, 2.0, 3.0
FIRST_OVER_TENTH = 1.1
QUIET = 1.0  # load average at the start, up to which nobody else was at work
OFFERED = 0.95  # of the seed load's rate, from the first answer to the last
TIMES_PEER, SHARE_OF_P50, SHARE_OF_BURST = 1.8, 1 / 3, 0.4
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
# MLServer 1.7.1's HuggingFace runtime on this kind of machine, measured apart from these figures.
RECORDED = {"requests/s": 26.3, "p50 ms": 3200.0, "p99 ms": 4700.0, "burst s": 21.4}
RECORDED_NAME = "MLServer's HuggingFace runtime (recorded, another run)"


def render(results: Results) -> str:
    """All tables as Markdown: goals first, then work by work."""
    parts = [goals_table(goals(results))]
    if busy := [name for name, result in results.items() if _caution(result)]:
        parts += [f"Verdicts on times of {', '.join(busy)} are not established: the machine had other work.", ""]
    for name, result in results.items():
        parts += [f"## {name}", "", machine_line(result.machine) + _caution(result), "", *TABLES[name](result)]
        parts += [f"- {who}: {note}" for who, note in result.notes.items()]
    return "\n".join(parts)


def write_page(page: Path, results: Results) -> None:
    """Put the tables where the page has its figures. Raises ValueError for a page that has no place for them."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    page.write_text(f"{head}{BEGIN}\n\n{render(results).strip()}\n\n{END}{tail}", encoding="utf-8")


def goals(results: Results) -> list[Goal]:
    """The goals of the works that were run."""
    return [goal for name, result in results.items() for goal in GOALS[name](result)]


def _caution(result: Result) -> str:
    busy = result.machine["load_average"] > QUIET
    return " The machine had other work: trust counts and ratios of processor time, not times." if busy else ""


def _load_goals(result: Result) -> list[Goal]:
    found = []
    for case in result.cases("tokens/s"):
        for door in DOORS:
            share = result.ratio(_key(door, case, "tokens/s"), _key(LIKE.get(door, WHOLE), case, "tokens/s"))
            found.append(Goal(f"{door}, {_callers(case)}: share of tokens/s in process", share, least=SHARE_OF_ENGINE))
    for case in result.cases("tokens/s"):
        added = _difference(result, _key(STREAM_DOOR, case, "first p50 ms"), _key(PIECES, case, "first p50 ms"))
        found.append(Goal(f"{_callers(case)}: added to the time to the first token, ms", added, most=ADDED_MS))
    for case in result.cases("tokens/s"):
        spread = result.ratio(_key(STREAM_DOOR, case, "pause p99 ms"), _key(STREAM_DOOR, case, "pause p50 ms"))
        found.append(Goal(f"{_callers(case)}: p99 of pauses between pieces over their p50", spread, most=PAUSES))
    return found


def _seed_goals(result: Result) -> list[Goal]:
    """Against what was recorded of MLServer, and against its run beside ours where there was one."""
    peers = {"MLServer's recorded": RECORDED}
    if measured := _peer(result):
        peers["MLServer's in this run"] = measured
    found = []
    for door in DOORS:
        rate = result.median(_key(door, RATE_CASE, "requests/s"))
        held = result.median(_key(door, RATE_CASE, "held requests/s"))
        middle = result.median(_key(door, RATE_CASE, "p50 ms"))
        burst = result.median(_key(door, BURST_CASE, "seconds"))
        offered = result.facts["offered"]
        found.append(Goal(f"{door}: requests/s held of {offered:.0f}", held, least=OFFERED * offered))
        for name, peer in peers.items():
            found += [
                Goal(f"{door}: requests/s over {name}", _over(rate, peer["requests/s"]), least=TIMES_PEER),
                Goal(f"{door}: p50 over {name}", _over(middle, peer["p50 ms"]), most=SHARE_OF_P50),
                Goal(f"{door}: seconds of the burst over {name}", _over(burst, peer["burst s"]), most=SHARE_OF_BURST),
            ]
    return found


def _peer(result: Result) -> dict[str, float]:
    """MLServer's figures where it ran; nothing where it did not, or not to the end."""
    keys = {
        "requests/s": (RATE_CASE, "requests/s"), "p50 ms": (RATE_CASE, "p50 ms"), "burst s": (BURST_CASE, "seconds"),
    }  # fmt: skip
    found = {name: result.median((MLSERVER, PEER_PRECISION, *key)) for name, key in keys.items()}
    known = {name: value for name, value in found.items() if value is not None}
    return known if len(known) == len(keys) else {}


def _first_goals(result: Result) -> list[Goal]:
    cases = (f"request {COUNTED[0]}", f"request {COUNTED[-1]}")
    return [
        Goal(
            f"{door}: first request over the tenth",
            result.ratio(*(_key(door, case, "ms") for case in cases)),
            most=FIRST_OVER_TENTH,
        )
        for door in DOORS
    ]


def _load_tables(result: Result) -> list[str]:
    header = (
        "way", "tokens/s", "least-most", "rounds", "x in process", "first p50 ms", "p99", "pause p50 ms", "p99",
        "tokens a message", "texts as in process",
    )  # fmt: skip
    figures = (
        "first p50 ms", "first p99 ms", "pause p50 ms", "pause p99 ms", "tokens a message", "texts as in process",
    )  # fmt: skip
    parts = []
    for case in result.cases("tokens/s"):
        rows = []
        for way in _ways(result, case, "tokens/s"):
            key = _key(way, case, "tokens/s")
            least, most = result.spread(key) or (0.0, 0.0)
            ratio = result.ratio(key, _key(LIKE.get(way, WHOLE), case, "tokens/s"))
            others = [number(result.median(_key(way, case, figure))) for figure in figures]
            spread = f"{least:.0f}-{most:.0f}"
            rows.append(
                (way, number(result.median(key)), spread, str(len(result.figures[key])), number(ratio), *others)
            )
        requests = result.median(_key(WHOLE, case, "requests")) or 0
        prompt = result.median(_key(WHOLE, case, "prompt tokens")) or 0
        written = (result.median(_key(WHOLE, case, "tokens")) or 0) / max(requests, 1)
        title = f"{_callers(case)}: {requests:.0f} requests a turn, {prompt:.0f} to {written:.0f} tokens on average"
        parts += [table(title, header, rows), *_cost_table(result, case)]
    return parts


def _cost_table(result: Result, case: str) -> list[str]:
    """Where the processor's time goes. A shared machine slows time down, but not this as much."""
    figures = ("engine us", "server us", "relay us", "client us", "all us")
    rows = []
    for way in _ways(result, case, "all us"):
        share = result.ratio(_key(LIKE.get(way, WHOLE), case, "all us"), _key(way, case, "all us"))
        rows.append((way, *(number(result.median(_key(way, case, figure))) for figure in figures), number(share)))
    header = ("way", "engine's process", "tritonserver", "relay", "client", "all", "x in process, by processor time")
    return [table(f"{_callers(case)}: microseconds of a processor a token", header, rows)]


def _seed_tables(result: Result) -> list[str]:
    figures = ("requests", "seconds", "requests/s", "held requests/s", "mean ms", "p50 ms", "p99 ms", "first p50 ms")
    header = (
        "way", "requests", "seconds to the last answer", "requests/s", "between first and last answer", "mean ms",
        "p50 ms", "p99 ms", "first token p50 ms", "errors",
    )  # fmt: skip
    parts = []
    for case in (RATE_CASE, BURST_CASE):
        rows = [
            (name, *(number(result.median((name, precision, case, figure))) for figure in figures), errors)
            for name, precision, errors in _seed_ways(result, case)
        ]
        parts.append(table(f"The seed load, {case}", header, [*rows, _recorded(case)]))
    return parts


def _seed_ways(result: Result, case: str) -> list[tuple[str, str, str]]:
    """(way, precision, errors); ways of ours with an error have no figures."""
    ours = [(way, PRECISION, "0") for way in _ways(result, case, "requests/s")]
    if (MLSERVER, PEER_PRECISION, case, "requests/s") not in result.figures:
        return ours
    errors = result.notes.get(f"{MLSERVER}, {case}", "0 ").split()[0]
    return [*ours, (MLSERVER, PEER_PRECISION, errors)]


def _recorded(case: str) -> tuple[str, ...]:
    if case == BURST_CASE:
        return (RECORDED_NAME, "512", number(RECORDED["burst s"]), *("-" * 7))
    rate, middle, most = (number(RECORDED[name]) for name in ("requests/s", "p50 ms", "p99 ms"))
    return (RECORDED_NAME, "150", "-", rate, "-", "-", middle, most, "-", "-")


def _first_tables(result: Result) -> list[str]:
    rows = []
    cases = [f"request {count}" for count in COUNTED]
    for way in _ways(result, cases[0], "ms"):
        ratio = result.ratio(_key(way, cases[0], "ms"), _key(way, cases[-1], "ms"))
        rows.append((way, *(number(result.median(_key(way, case, "ms"))) for case in cases), number(ratio)))
    header = ("way", *(f"{case}, ms" for case in cases), "first over tenth")
    return [table("After a start, one request after the other", header, rows)]


def _ways(result: Result, case: str, figure: str) -> list[str]:
    order = (WHOLE, PIECES, *DOORS)
    found = {key[0] for key in result.figures if key[1:] == (PRECISION, case, figure)}
    return [*(way for way in order if way in found), *sorted(found.difference(order))]


def _key(way: str, case: str, figure: str) -> Key:
    return way, PRECISION, case, figure


def _callers(case: str) -> str:
    return f"{case} caller{'s' * (case != '1')}"


def _difference(result: Result, over: Key, under: Key) -> float | None:
    """Median over the rounds that both took part in."""
    first, second = result.figures.get(over, {}), result.figures.get(under, {})
    found = [first[turn] - second[turn] for turn in first if turn in second]
    return statistics.median(found) if found else None


def _over(value: float | None, other: float) -> float | None:
    return None if value is None else value / other


GOALS: dict[str, Callable[[Result], Sequence[Goal]]] = {
    "load": _load_goals, "seed": _seed_goals, "first": _first_goals,
}  # fmt: skip
TABLES: dict[str, Callable[[Result], Sequence[str]]] = {
    "load": _load_tables, "seed": _seed_tables, "first": _first_tables,
}  # fmt: skip
