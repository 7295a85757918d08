"""The top of a report: one sentence, and a few cards with the figures on which a decision depends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.compare.cost import GOOD_SHARE, best, by_work
from hfx.perf.report.figures import FIGURES, Figure, error_share, main, milliseconds, number, percent, ratio
from hfx.perf.report.tables import by_load, is_busy, name_of, proof, ratio_of
from hfx.perf.results import PHASES, Result, Run, Step
from hfx.perf.rounds import Group, groups, steps
from hfx.perf.settings import settings_line

FULL = 0.85  # share of busy cores above which a CPU counts as busy


@dataclass(frozen=True)
class Card:
    """A figure with its title, and details in small print."""

    title: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Answer:
    """The sentence at the top of a report, and the cards under it."""

    sentence: str
    cards: tuple[Card, ...] = ()


def answer(result: Result) -> Answer:
    """Return the answer of `result`.

    For several works (see by_work) it is about the first; for a tuning, about the proof.
    """
    runs = next(iter(by_work(proof(result).runs or result.runs)), ())
    slo, held = next((run.slo for run in runs if run.slo), ""), best(runs)
    if not held:
        return _nothing_held(runs, slo)
    figure = main(runs)
    top = max(held.values(), key=lambda group: group.median(figure.of) or 0.0)
    verdict = str(result.details.get("verdict") or "") if result.kind == "tune" else ""
    cards = (*_load_cards(top, slo), *_token_card(top), *_cost_card(top, held), *_step_card(top))
    sentence = verdict or _sentence(result, runs, held, top, figure, slo)
    return Answer(sentence, (*cards, _next_card(result, runs, top)))


def _nothing_held(runs: Sequence[Run], slo: str) -> Answer:
    if not slo:
        return Answer("Nothing was measured to its end.")
    nearest = max(runs, key=lambda run: run.goodput or 0.0)
    share, model = percent(nearest.goodput), nearest.subject.model
    sentence = f"No load kept {slo}: at best {share} of the requests did, with {nearest.load.label}."
    return Answer(sentence, (Card("Next", f"Less load, a looser --slo, or faster settings: hfx tune {model}."),))


def _sentence(result: Result, runs: Sequence[Run], held: dict[str, Group], top: Group, figure: Figure, slo: str) -> str:
    def rate(group: Group) -> float:
        return group.median(figure.of) or 0.0

    within = f" within {slo}" if slo else ""
    holds = f"{name_of(top)} holds {number(rate(top))} {figure.title}{within} with {top.load.label}"
    if len({run.subject.label for run in runs}) < 2:
        return f"{holds}."
    if (same := ratio_of(top, by_load(groups(runs)), result.base, figure)) is not None:
        return f"{holds}, {ratio(same.median)} that of {result.base} under the same load."
    others = [group for group in held.values() if group is not top]  # compare with the next best, at its own load
    if not others:
        return f"{holds}, and no other was measured{' within it' if slo else ''}."
    second = max(others, key=rate)
    return f"{holds}, {ratio(rate(top) / rate(second))} the best of {name_of(second)}."


# The cards


def _load_cards(top: Group, slo: str) -> list[Card]:
    kept = f"{percent(_median(top, 'goodput'))} of the requests within {slo}" if slo else "no SLO was given"
    title, rate = "Most load within the SLO" if slo else "Most throughput", number(_median(top, "throughput"))
    times = "until the whole answer; at a given rate from when the request was due"
    return [
        Card(title, f"{rate} requests/s", f"{top.load.label}; {kept}"),
        Card("p50 / p99 there", _pair(top, "p50", "p99"), times),
    ]


def _token_card(top: Group) -> list[Card]:
    if FIGURES["ttft p50"].of(top.runs[0]) is None:
        return []
    between = _pair(top, "tpot p50", "tpot p99")
    return [Card("First token, p50 / p99", _pair(top, "ttft p50", "ttft p99"), f"then a token every {between}")]


def _cost_card(top: Group, held: dict[str, Group]) -> list[Card]:
    costs = {label: cost for label, group in held.items() if (cost := _median(group, "cost 1m requests")) is not None}
    if not costs:
        return []
    currency = next((run.cost.currency for run in top.runs if run.cost), "")
    cheapest = min(costs, key=lambda label: costs[label])
    others = [f"{label} {currency}{number(cost)}" for label, cost in costs.items() if label != cheapest]
    return [Card("Cost per million requests", f"{currency}{number(costs[cheapest])}", "; ".join([cheapest, *others]))]


def _step_card(top: Group) -> list[Card]:
    slowest = _slowest(top)
    if slowest is None:
        return []
    phase = max(PHASES, key=lambda name: float(getattr(slowest, name)))
    part = f"{milliseconds(getattr(slowest, phase))} of {milliseconds(_total(slowest))} ms in {phase}"
    return [Card("Bottleneck step", slowest.model, part)]


def _next_card(result: Result, runs: Sequence[Run], top: Group) -> Card:
    if result.kind != "tune":
        return Card("Next", _next(result, runs, top))
    settings = result.details.get("settings")
    detail = settings_line(settings) if isinstance(settings, dict) else ""
    if applied := result.details.get("applied"):
        return Card("Next", f"Serve {applied} again: the settings are written.", detail)
    proven = bool(result.details.get("proven"))
    return Card("Next", "Write the settings: --apply." if proven else "Keep the published settings.", detail)


def _next(result: Result, runs: Sequence[Run], top: Group) -> str:
    """Return the advice of the first rule that applies.

    The rules are, in order: failures, other work, the client, more load, computing, waiting.
    """
    model, (slowest, server) = top.subject.model, (_slowest(top), top.runs[-1].server)
    loads = [group for group in groups(runs) if group.subject.label == top.subject.label]
    heaviest = max(loads, key=lambda group: group.load.rate or group.load.concurrency or 0)
    cores = 0.0 if server is None or top.subject.device == "gpu" else server.cores or 0.0
    rules = (
        (
            any((error_share(each) or 0.0) > 1 - GOOD_SHARE for each in runs),
            "Look at the failed requests first: they are named below.",
        ),
        (is_busy(result.machine), "Measure again on an idle machine: other work had part of the cores."),
        (
            any(each.client and each.client.saturated for each in runs),
            "Measure with --tool perf_analyzer: the load generator itself was the limit.",
        ),
        (len(loads) > 1 and top == heaviest, "Try more load: throughput still rose at the heaviest one."),
        (
            cores > FULL * result.machine.cores,
            f"The cores are busy: a smaller precision (hfx perf compare {model} --precisions), or more machines.",
        ),
        (
            slowest is not None and slowest.queue > slowest.infer,
            f"Requests wait for {slowest and slowest.model}: let hfx tune {model} look for instances and threads.",
        ),
    )
    return next((advice for holds, advice in rules if holds), f"Let hfx tune {model} look for faster settings.")


def _median(group: Group, name: str) -> float | None:
    return group.median(FIGURES[name].of)


def _pair(group: Group, first: str, second: str) -> str:
    return f"{milliseconds(_median(group, first))} / {milliseconds(_median(group, second))} ms"


def _slowest(group: Group) -> Step | None:
    return max(steps(group.runs), key=_total, default=None)


def _total(step: Step) -> float:
    return float(sum(getattr(step, phase) for phase in PHASES))
