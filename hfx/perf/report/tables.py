"""The tables of a Result: its runs, the server's steps, cost, goals, published figures, and what stands at its top.

Medians over rounds, with least and most. It must not know how tables are printed, and measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.report.figures import RUN, SERVER, present
from hfx.perf.report.numbers import NOTHING, count, heading, number, size, spread
from hfx.perf.report.table import Table, without_empty_columns
from hfx.perf.results.schema import Result, Run, Scalar, Step
from hfx.perf.results.summary import Group, groups

NUMBER = re.compile(r"[0-9.,]+")
BUSY = 0.5  # load average a core, above which other work went on
GOAL = "goal: "  # prefix of `Result.details`: "goal: words" -> {"value": 2.1, "least": 1.8} or {"value": …, "most": …}


@dataclass(frozen=True)
class Goal:
    """What was wanted of a figure: at least `least`, or at most `most`. `value` None: it was not measured."""

    words: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where it was not measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def detail(self) -> dict[str, Scalar]:
        """The value under `GOAL + words` in `Result.details`."""
        known = {"value": self.value, "least": self.least, "most": self.most}
        return {name: value for name, value in known.items() if value is not None}


def run_table(result: Result, names: tuple[str, ...] = RUN) -> Table:
    """What callers saw: one row for each way and load, the figures of NAMES that were measured."""
    found = groups(result.runs)
    figures = present(names, result.runs)
    rows = [
        (
            way(group),
            group.load.label,
            _answered(group),
            *(spread(group.spread(figure.of), figure.unit) for figure in figures),
        )
        for group in found
    ]
    columns = ("way", "load", "answered", *(heading(figure.title, figure.unit) for figure in figures))
    return Table("Load", columns, tuple(rows), words=2, notes=_rounds(found))


def server_table(result: Result, names: tuple[str, ...] = SERVER) -> Table:
    """What the server used: batch, cores, memory, GPUs, share of the roofline; empty where nothing was read."""
    figures = present(names, result.runs)
    if not figures:
        return Table("Server", (), ())
    rows = [
        (way(group), group.load.label, *(spread(group.spread(figure.of), figure.unit) for figure in figures))
        for group in groups(result.runs)
        if any(group.spread(figure.of) for figure in figures)
    ]
    columns = ("way", "load", *(heading(figure.title, figure.unit) for figure in figures))
    return Table("Server", columns, tuple(rows), words=2)


def steps_table(result: Result) -> Table:
    """Where a request's time goes: each model of the server, a request's average (ms) over all rounds."""
    rows = [
        (
            way(group), group.load.label, step.model, number(step.queue), number(step.input), number(step.infer),
            number(step.output), number(step.batch), count(step.executions),
        )
        for group in groups(result.runs)
        for step in steps(group.runs)
    ]  # fmt: skip
    columns = (
        "way", "load", "model", "queue ms", "input ms", "infer ms", "output ms", "batch", "executions",
    )  # fmt: skip
    return Table("Steps of the server", columns, tuple(rows), words=3)


def steps(runs: Sequence[Run]) -> list[Step]:
    """The steps of several rounds as one: a request's average over all requests, in the order of the first round."""
    found: dict[str, list[Step]] = {}
    for run in runs:
        for step in run.server.steps if run.server else ():
            found.setdefault(step.model, []).append(step)
    return [_joined(same) for same in found.values()]


def cost_table(result: Result) -> Table:
    """Price an hour, and what 1,000 requests and a million tokens cost at the throughput measured."""
    rows = []
    for group in groups(result.runs):
        costs = [run.cost for run in group.runs if run.cost]
        if costs:
            price = f"{number(costs[0].price_per_hour)} {costs[0].currency}".strip()
            thousand = group.spread(lambda run: run.cost.per_1k_requests if run.cost else None)
            million = group.spread(lambda run: run.cost.per_1m_tokens if run.cost else None)
            rows.append((way(group), group.load.label, price, spread(thousand, "money"), spread(million, "money")))
    if not rows:
        return Table("Cost", (), ())
    columns = ("way", "load", "an hour", "per 1k requests", "per 1M tokens")
    table = without_empty_columns(columns, rows, keep=2, nothing=NOTHING)
    return Table("Cost", table.columns, table.rows, 2)


def goals(result: Result) -> tuple[Goal, ...]:
    """The goals that `Result.details` holds."""
    found = []
    for name, detail in result.details.items():
        if name.startswith(GOAL) and isinstance(detail, dict):
            values = {key: _float(detail.get(key)) for key in ("value", "least", "most")}
            found.append(Goal(name.removeprefix(GOAL), **values))
    return tuple(found)


def goals_table(wanted: Sequence[Goal]) -> Table:
    """Goals with their verdicts; "not measured" is no verdict."""
    verdicts = {True: "met", False: "missed", None: "not measured"}
    rows = tuple((goal.words, verdicts[goal.met], number(goal.value), _wanted(goal)) for goal in wanted)
    return Table("Goals", ("goal", "verdict", "measured", "wanted"), rows, words=2)


def published_table(result: Result) -> Table:
    """Figures of others, by others: never part of a ratio."""
    rows = tuple(
        (each.subject, each.load, each.figure, each.source, f"{number(each.value)} {each.unit}".strip())
        for each in result.published
    )
    notes = ("Measured by others on other machines: for orientation, no ratio is taken of them.",) if rows else ()
    return Table("Published by others", ("what", "load", "figure", "source", "value"), rows, words=4, notes=notes)


def details_table(result: Result) -> Table:
    """What else the command wrote down, goals aside: chosen settings, break-even loads, machines."""
    rows = []
    for name, detail in result.details.items():
        if name.startswith(GOAL) or detail is None:
            continue
        parts = detail.items() if isinstance(detail, dict) else [("", detail)]
        rows += [(f"{name}: {part}" if part else name, _plain(value)) for part, value in parts]
    return Table("Details", ("what", "value"), tuple(rows), words=2)


def machine_table(result: Result) -> Table:
    """Where it was measured, and with which versions."""
    machine = result.machine
    rows = [
        ("processor", f"{machine.processor}, {machine.cores} cores"),
        ("memory", size(machine.memory)),
        ("system", machine.system),
        *(("GPU", gpu) for gpu in machine.gpus),
        ("load average at the start", number(machine.load)),
    ]
    if rates := machine.rates:
        rows += [
            ("memory read", f"{number(rates.read_bytes / 1e9)} GB/s"),
            ("fp32 / int8", f"{number(rates.fp32_operations / 1e9)} / {number(rates.int8_operations / 1e9)} GOP/s"),
        ]
    rows += [*machine.versions.items()]
    return Table("Machine", ("what", "value"), tuple(rows), words=2)


def warnings(result: Result) -> tuple[str, ...]:
    """What a reader must know before any figure: failures, then saturation and notes, then what else went on."""
    found = [(f"{way(group)}, {group.load.label}", group) for group in groups(result.runs)]
    failures = [f"{name}: {words}" for name, group in found if (words := _failures(group))]
    busy = result.machine.load > result.machine.cores * BUSY
    work = [f"The machine had other work at the start (load average {number(result.machine.load)})."] if busy else []
    return (*failures, *_cautions([group for _, group in found]), *result.notes, *work)


def way(group: Group) -> str:
    """A group's name in tables: the label, and the peer, tool or protocol where the label alone could mislead."""
    subject = group.subject
    words = [subject.label or subject.model]
    if subject.tool not in ("builtin", "peer"):
        words.append(f"by {subject.tool}")
    return " ".join(words)


def _failures(group: Group) -> str:
    """How many requests failed and of what, with one message of each kind; empty where none did."""
    failed = sum(run.requests.failed for run in group.runs)
    sent = sum(run.requests.sent for run in group.runs)
    return f"{count(failed)} of {count(sent)} requests failed{_kinds(group.runs)}." if failed else ""


def _kinds(runs: Sequence[Run]) -> str:
    kinds: dict[str, int] = {}
    words: dict[str, str] = {}
    for run in runs:
        for kind, times in run.requests.errors.items():
            kinds[kind] = kinds.get(kind, 0) + times
        words |= run.requests.words
    parts = [_kind(count(times), kind, words.get(kind, "")) for kind, times in kinds.items()]
    if late := sum(run.requests.timeouts for run in runs):
        parts.append(_kind(count(late), "timed out", words.get("RequestTimeout", "")))
    return f": {', '.join(parts)}" if parts else ""


def _kind(times: str, kind: str, message: str) -> str:
    return f"{times} {kind} ({message.rstrip('.')})" if message else f"{times} {kind}"


def _cautions(found: Sequence[Group]) -> list[str]:
    """What else is said of runs; what differs only in its numbers stands once, with the other loads."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for group in found:
        for words in (words for run in group.runs for words in _said(run)):
            alike.setdefault((way(group), NUMBER.sub("", words)), []).append((group.load.label, words))
    lines = []
    for (name, _), said in alike.items():
        load, words = said[0]
        others = [other for other in dict.fromkeys(load for load, _ in said) if other != load]
        also = f" Alike: {', '.join(others)}." if others else ""
        lines.append(f"{name}, {load}: {words.rstrip('.')}.{also}")
    return lines


def _said(run: Run) -> list[str]:
    return [
        *([run.client.saturated] if run.client and run.client.saturated else []),
        *(["interrupted: figures are of what was done until then."] if run.interrupted else []),
        *(["did not become stable."] if run.stable is False else []),
        *run.notes,
    ]


def _answered(group: Group) -> str:
    succeeded = sum(run.requests.succeeded for run in group.runs)
    sent = sum(run.requests.sent for run in group.runs)
    return count(sent) if succeeded == sent else f"{count(succeeded)} of {count(sent)}"


def _rounds(found: Sequence[Group]) -> tuple[str, ...]:
    most = max((len(group.runs) for group in found), default=0)
    return (f"Medians of {most} rounds (least–most).",) if most > 1 else ()


def _joined(same: Sequence[Step]) -> Step:
    requests, executions = sum(step.requests for step in same), sum(step.executions for step in same)

    def average(part: str) -> float:
        return float(sum(getattr(step, part) * step.requests for step in same) / requests) if requests else 0.0

    parts = {part: average(part) for part in ("queue", "input", "infer", "output")}
    batch = requests / executions if executions else 0.0
    return Step(same[0].model, requests, executions, batch, **parts)


def _wanted(goal: Goal) -> str:
    least = [f"≥ {number(goal.least)}"] if goal.least is not None else []
    most = [f"≤ {number(goal.most)}"] if goal.most is not None else []
    return ", ".join([*least, *most])


def _plain(value: Scalar | list[Scalar]) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return number(value) if isinstance(value, float) else str(value)


def _float(value: Scalar | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None
