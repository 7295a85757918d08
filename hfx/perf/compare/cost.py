"""The cost of serving: prices per hour, the best load of each variant, and break-even loads between variants."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hfx.errors import UsageError
from hfx.perf.results import Cost, Result, Run
from hfx.perf.rounds import Group, groups

GOOD_SHARE = 0.99  # share of requests that must meet the SLO (or succeed, without an SLO) for a variant to hold a load
MAX_STEPS = 100_000  # the most instances of the cheaper variant for which a break-even load is searched
CURRENCY = "$"  # the currency of a price without a currency sign
_PRICE = re.compile(r"(?P<label>.+)=(?P<front>[$€£]?)(?P<amount>\d+(?:\.\d+)?|\.\d+)(?P<back>[$€£]?)/(?:h|hour)")


@dataclass(frozen=True)
class Price:
    """The price per hour of one instance of a variant or device."""

    per_hour: float
    currency: str = CURRENCY


def parse_prices(texts: Iterable[str]) -> dict[str, Price]:
    """Parse texts such as "gpu=4.10/h" (dollars) or "gpu=€4.10/h". Returns label -> price.

    Raises UsageError for a malformed text, two prices for one label, and two currencies.
    """
    prices: dict[str, Price] = {}
    for text in texts:
        match = _PRICE.fullmatch(text.strip())
        if match is None or (match["front"] and match["back"]) or float(match["amount"]) == 0:
            raise UsageError(
                f"--price {text!r} is not a price per hour.", "Write it like gpu=4.10/h (dollars) or gpu=€4.10/h."
            )
        label = match["label"].strip()
        if label in prices:
            raise UsageError(f"--price is given twice for {label!r}.", "Leave one of them out.")
        prices[label] = Price(float(match["amount"]), match["front"] or match["back"] or CURRENCY)
    currencies = sorted({price.currency for price in prices.values()})
    if len(currencies) > 1:
        raise UsageError(f"The prices are in different currencies: {' and '.join(currencies)}.", "Give all in one.")
    return prices


def check_labels(prices: Mapping[str, Price], labels: Iterable[str]) -> None:
    """Raise UsageError for a price whose label is not among `labels`."""
    known = list(dict.fromkeys(labels))
    for label in prices:
        if label not in known:
            raise UsageError(f"--price names {label!r}, which is not compared.", f"Compared are: {', '.join(known)}.")


def with_prices(result: Result, prices: Mapping[str, Price]) -> Result:
    """Return `result` with the cost of each run at its own throughput, and with the break-even loads."""
    if not prices:
        return result
    notes, evens = list(result.notes), dict[str, bool | int | float | str]()
    for work in by_work(result.runs):
        held, where = best(work), f" ({work[0].load.case})" if work[0].load.case else ""
        known = {run.subject.label: price for run in work if (price := _price_of(run, prices))}
        notes += [f"{label}{where} held the SLO at no load: no break-even." for label in known if label not in held]
        for cheap, dear in ((a, b) for a in held for b in held if a in known and b in known):
            if known[cheap].per_hour < known[dear].per_hour:
                load = break_even(known[cheap], capacity(held[cheap]), known[dear], capacity(held[dear]))
                above = f"above {load:.3g} requests/s" if load is not None else "at no load in the long run"
                evens[f"{cheap} → {dear}{where}"] = f"{dear} is cheaper than {cheap} {above}"
    runs = tuple(
        replace(run, cost=cost(price, run) if (price := _price_of(run, prices)) else None) for run in result.runs
    )
    details = {**result.details, "break even": evens} if evens else result.details
    return replace(result, runs=runs, notes=tuple(notes), details=details)


def cost(price: Price, run: Run) -> Cost | None:
    """Return the cost of 1,000 requests and of a million tokens at the run's throughput; None without throughput."""
    if run.throughput <= 0:
        return None
    a_second = price.per_hour / 3600
    tokens = 1e6 * a_second / run.tokens_per_second if run.tokens_per_second else None
    return Cost(price.per_hour, 1e3 * a_second / run.throughput, tokens, price.currency)


def by_work(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    """Group `runs` by case and data, because throughputs are comparable only for equal work."""
    works: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        works.setdefault((run.load.case, run.load.data), []).append(run)
    return [tuple(work) for work in works.values()]


def capacity(group: Group) -> float:
    """Return the requests per second, as the median over the rounds."""
    return group.median(lambda run: run.throughput) or 0.0


def best(runs: Sequence[Run]) -> dict[str, Group]:
    """Return label -> the load with the highest throughput at which GOOD_SHARE of the requests met the SLO.

    Without an SLO, GOOD_SHARE of the requests must have succeeded. Labels without such a load are left out. Interrupted
    runs are ignored.
    """
    found: dict[str, Group] = {}
    for group in groups([run for run in runs if not run.interrupted]):
        good, label = group.median(lambda run: run.good_share) or 0.0, group.subject.label
        if good >= GOOD_SHARE and capacity(group) > (capacity(found[label]) if label in found else 0.0):
            found[label] = group
    return found


def break_even(cheap: Price, cheap_capacity: float, dear: Price, dear_capacity: float) -> float | None:
    """Return the load (requests/s) above which the dearer variant always costs less, or None if there is no such load.

    A load of L requests/s needs ceil(L / c) instances of a variant with the capacity c. Per hour they cost

        cost(L) = ceil(L / c) * price

    The cost of the cheaper variant rises at L = k * c for k = 1, 2, …, so the dearer variant can become the cheaper one
    only there. If the dearer variant has the lower price / c, it costs less from L = price_dear / (price_cheap /
    c_cheap - price_dear / c_dear) on; the steps up to there are checked one by one.
    """
    gain = cheap.per_hour / cheap_capacity - dear.per_hour / dear_capacity  # saved per request/s, for large loads
    if gain <= 1e-9 * cheap.per_hour / cheap_capacity:
        return None
    steps = math.ceil(dear.per_hour / gain / cheap_capacity) + 1
    if steps > MAX_STEPS:  # the difference is too small to be measured
        return None
    costs = ((k, _instances(k * cheap_capacity / dear_capacity) * dear.per_hour) for k in range(1, steps + 1))
    return max(k * cheap_capacity for k, of_dear in costs if k * cheap.per_hour <= of_dear * (1 + 1e-9))


def _instances(capacities: float) -> int:
    """Round `capacities` up to an integer. Rounding errors of an integer do not count."""
    whole = round(capacities)
    return whole if math.isclose(capacities, whole, rel_tol=1e-9) else math.ceil(capacities)


def _price_of(run: Run, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a run's variant, or else of its device."""
    return prices.get(run.subject.label) or prices.get(run.subject.device)
