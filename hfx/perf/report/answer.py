"""What a result says, first: one sentence, and a few cards with the figures that a decision needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.compare.cost import KEPT, Best, best, by_work
from hfx.perf.report.figures import FIGURES, Figure, error_share, main
from hfx.perf.report.numbers import milliseconds, number, percent, ratio
from hfx.perf.report.tables import PHASES, by_load, name_of, ratio_of, steps
from hfx.perf.report.trials import proof
from hfx.perf.results import Group, Result, Run, Step, groups

FULL = 0.85  # share of the cores above which a CPU counts as busy


@dataclass(frozen=True)
class Card:
    """A figure with its title and what it is of."""

    title: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """The sentence at the top of a report, and the cards under it."""

    sentence: str
    cards: tuple[Card, ...] = ()


def answer(result: Result) -> Answer:
    """What `result` says; of several works (texts, lengths) of the first one."""
    runs = _runs(result)
    held = best(runs)
    if not held:
        return _nothing_held(runs)
    top = max(held.values(), key=lambda each: _rate(each, runs))
    cards = (_load_card(top), _latency_card(top), *_token_card(top), *_cost_card(top, held), *_step_card(top))
    return Answer(_sentence(result, runs, held, top), (*cards, _next_card(result, runs, top)))


def _runs(result: Result) -> tuple[Run, ...]:
    """The runs that are compared: of a tuning those of the proof, where there was one."""
    return next(iter(by_work(proof(result).runs or result.runs)), ())


# The sentence


def _sentence(result: Result, runs: Sequence[Run], held: dict[str, Best], top: Best) -> str:
    if result.kind == "tune":
        return str(result.details.get("verdict") or "") or _holds(top, runs)
    if len({run.subject.label for run in runs}) < 2:
        return f"{_holds(top, runs)}."
    return f"{_holds(top, runs)}, {_against(result, runs, held, top)}."


def _holds(top: Best, runs: Sequence[Run]) -> str:
    figure, slo = main(runs), _slo(runs)
    within = f" within {slo}" if slo else ""
    return f"{name_of(top.group)} holds {number(_rate(top, runs))} {figure.title}{within} with {top.group.load.label}"


def _against(result: Result, runs: Sequence[Run], held: dict[str, Best], top: Best) -> str:
    """The best variant against the base under the same load; the base against the next best at its own."""
    found = by_load(groups(runs))
    figure = main(runs)
    if (same := ratio_of(top.group, found, result.base, figure)) is not None:
        return f"{ratio(same.median)} that of {result.base} under the same load"
    others = [each for each in held.values() if each is not top]
    if not others:
        return "and no other was measured within it" if _slo(runs) else "and no other was measured"
    second = max(others, key=lambda each: _rate(each, runs))
    return f"{ratio(_rate(top, runs) / _rate(second, runs))} the best of {name_of(second.group)}"


def _nothing_held(runs: Sequence[Run]) -> Answer:
    slo = _slo(runs)
    if not slo or not runs:
        return Answer("Nothing was measured to its end.")
    nearest = max(runs, key=lambda run: run.goodput or 0.0)
    share, model = percent(nearest.goodput), nearest.subject.model
    sentence = f"No load kept {slo}: at best {share} of the requests did, with {nearest.load.label}."
    return Answer(sentence, (Card("Next", f"Less load, a looser --slo, or faster settings: hfx tune {model}."),))


# The cards


def _load_card(top: Best) -> Card:
    slo = _slo(top.group.runs)
    kept = f"{percent(top.kept)} of the requests within {slo}" if slo else "no SLO was given"
    title = "Most load within the SLO" if slo else "Most throughput"
    return Card(title, f"{number(top.throughput)} requests/s", f"{top.group.load.label}; {kept}")


def _latency_card(top: Best) -> Card:
    return Card(
        "p50 / p99 there",
        _pair(top, "p50", "p99"),
        "until the whole answer; at a given rate from when the request was due",
    )


def _token_card(top: Best) -> list[Card]:
    if FIGURES["ttft p50"].of(top.group.runs[0]) is None:
        return []
    first = _pair(top, "ttft p50", "ttft p99")
    between = _pair(top, "tpot p50", "tpot p99")
    return [Card("First token, p50 / p99", first, f"then a token every {between}")]


def _cost_card(top: Best, held: dict[str, Best]) -> list[Card]:
    costs = {label: cost for label, each in held.items() if (cost := _median(each, FIGURES["cost 1k"])) is not None}
    if not costs:
        return []
    currency = next((run.cost.currency for run in top.group.runs if run.cost), "")
    cheapest = min(costs, key=lambda label: costs[label])
    others = [f"{label} {number(cost)}" for label, cost in costs.items() if label != cheapest]
    return [Card("Cost per 1,000 requests", f"{currency}{number(costs[cheapest])}", "; ".join([cheapest, *others]))]


def _step_card(top: Best) -> list[Card]:
    slowest = _slowest(top)
    if slowest is None:
        return []
    phase = max(PHASES, key=lambda each: float(getattr(slowest, each)))
    part = f"{milliseconds(getattr(slowest, phase))} of {milliseconds(_total(slowest))} ms in {phase}"
    return [Card("Bottleneck step", slowest.model, part)]


# What to change next


def _next_card(result: Result, runs: Sequence[Run], top: Best) -> Card:
    if result.kind != "tune":
        return Card("Next", _next(result, runs, top))
    settings = result.details.get("settings")
    detail = ", ".join(f"{name}={value}" for name, value in settings.items()) if isinstance(settings, dict) else ""
    if applied := result.details.get("applied"):
        return Card("Next", f"Serve {applied} again: the settings are written.", detail)
    proven = bool(result.details.get("proven"))
    return Card("Next", "Write the settings: --apply." if proven else "Keep the published settings.", detail)


def _next(result: Result, runs: Sequence[Run], top: Best) -> str:
    """The first of these rules that holds: failures, the client, more load, computing, waiting."""
    run, model = top.group.runs[-1], top.group.subject.model
    if any((error_share(each) or 0.0) > 1 - KEPT for each in runs):
        return "Look at the failed requests first: they are named below."
    if run.client and run.client.saturated:
        return "Measure with --tool perf_analyzer: the load generator itself was the limit."
    loads = [group for group in groups(runs) if group.subject.label == top.group.subject.label]
    if len(loads) > 1 and top.group == _heaviest(loads):
        return "Try more load: throughput still rose at the heaviest one."
    slowest, cores = _slowest(top), run.server.cores if run.server else None
    if cores and cores > FULL * result.machine.cores and top.group.subject.device != "gpu":
        return f"The cores are busy: a smaller precision (hfx perf compare {model} --precisions), or more machines."
    if slowest and slowest.queue > slowest.infer:
        return f"Requests wait for {slowest.model}: let hfx tune {model} look for instances and threads."
    return f"Let hfx tune {model} look for faster settings."


# Figures


def _rate(held: Best, runs: Sequence[Run]) -> float:
    return _median(held, main(runs)) or 0.0


def _median(held: Best, figure: Figure) -> float | None:
    values = held.group.spread(figure.of)
    return values.median if values else None


def _pair(held: Best, one: str, other: str) -> str:
    return " / ".join(milliseconds(_median(held, FIGURES[name])) for name in (one, other)) + " ms"


def _slo(runs: Sequence[Run]) -> str:
    return next((run.slo for run in runs if run.slo), "")


def _heaviest(loads: Sequence[Group]) -> Group:
    return max(loads, key=lambda group: group.load.rate or group.load.concurrency or 0)


def _slowest(held: Best) -> Step | None:
    return max(steps(held.group.runs), key=_total, default=None)


def _total(step: Step) -> float:
    return float(sum(getattr(step, phase) for phase in PHASES))
