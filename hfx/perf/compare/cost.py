"""What serving costs: prices of an hour, and what follows from the throughput that was measured.

Owns prices, cost and the break-even load. It must not know how anything is measured or shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hfx.errors import UsageError
from hfx.perf.results import Cost, Group, Load, Run, groups

KEPT = 0.99  # share of the requests that must keep the SLO at a load which counts as held
MOST_STEPS = 100_000  # instances of the cheap side that the search for a break-even load adds at most
HOUR = 3600.0
_PRICE = re.compile(r"(?P<label>.+)=(?P<front>[$€£]?)(?P<amount>\d+(?:\.\d+)?|\.\d+)(?P<back>[$€£]?)/(?:h|hour)")


@dataclass(frozen=True)
class Price:
    """What an hour of one instance of a side costs."""

    label: str
    per_hour: float
    currency: str = ""


@dataclass(frozen=True)
class Best:
    """The most that a side held: at which load, requests and tokens a second, share of requests that kept the SLO."""

    label: str
    load: Load
    throughput: float
    tokens_per_second: float | None = None
    kept: float | None = None
    group: Group | None = None


@dataclass(frozen=True)
class BreakEven:
    """From which load on a dear side is the cheaper one, in requests a second; None: at no load.

    Instances are whole, so cost rises in steps: `first` is where the dear side gets cheaper for the first time,
    `always` where it is cheaper at every load above.
    """

    cheap: str
    dear: str
    first: float | None
    always: float | None


def parse_price(text: str) -> Price:
    """The price in "gpu=4.10/h", "gpu=$4.10/h" or "gpu=4.10€/h". Raises UsageError."""
    found = _PRICE.fullmatch(text.strip())
    if found is None or (found["front"] and found["back"]) or float(found["amount"]) == 0:
        raise UsageError(f"--price {text!r} is no price of an hour.", "Write it like gpu=4.10/h or gpu=$4.10/h.")
    return Price(found["label"].strip(), float(found["amount"]), found["front"] or found["back"])


def parse_prices(texts: Iterable[str]) -> dict[str, Price]:
    """The prices by label. Raises UsageError for two of one side, and for two currencies."""
    found: dict[str, Price] = {}
    for text in texts:
        price = parse_price(text)
        if price.label in found:
            raise UsageError(f"--price is given twice for {price.label!r}.", "Leave one of them out.")
        found[price.label] = price
    currencies = {price.currency for price in found.values()}
    if len(currencies) > 1:
        shown = " and ".join(sorted(each or "none" for each in currencies))
        raise UsageError(f"The prices are in different currencies: {shown}.", "Give all of them in one.")
    return found


def check_labels(prices: Mapping[str, Price], labels: Iterable[str], devices: Iterable[str] = ()) -> None:
    """Raise UsageError for a price of neither a side nor a device."""
    known = list(dict.fromkeys([*labels, *devices]))
    for label in prices:
        if label not in known:
            raise UsageError(f"--price names {label!r}, which is not compared.", f"Compared are: {', '.join(known)}.")


def cost(price: Price, throughput: float, tokens_per_second: float | None = None) -> Cost | None:
    """The cost of 1000 requests and of a million tokens at a throughput a second; None without throughput."""
    if throughput <= 0:
        return None
    a_second = price.per_hour / HOUR
    tokens = 1e6 * a_second / tokens_per_second if tokens_per_second else None
    return Cost(price.per_hour, 1e3 * a_second / throughput, tokens, price.currency)


def with_costs(runs: Sequence[Run], prices: Mapping[str, Price]) -> tuple[Run, ...]:
    """RUNS, each with a price told what it cost at its own throughput."""
    return tuple(
        replace(run, cost=cost(price, run.throughput, run.tokens_per_second)) if price else run
        for run, price in ((run, price_of(run, prices)) for run in runs)
    )


def price_of(run: Run, prices: Mapping[str, Price]) -> Price | None:
    """The price of a run's side, or else of the device that it ran on."""
    return prices.get(run.subject.label) or prices.get(run.subject.device)


def priced(runs: Sequence[Run], prices: Mapping[str, Price]) -> dict[str, Price]:
    """The price of every side that has one, by its label."""
    found = {run.subject.label: price_of(run, prices) for run in runs}
    return {label: price for label, price in found.items() if price}


def best(runs: Sequence[Run]) -> dict[str, Best]:
    """The load with the highest throughput (median of its rounds) of each label.

    Where there is an SLO, only loads count at which KEPT of the requests kept it; a label without such is not there.
    """
    found: dict[str, Best] = {}
    for group in groups([run for run in runs if not run.interrupted]):
        mine = _held(group)
        if mine and (mine.label not in found or mine.throughput > found[mine.label].throughput):
            found[mine.label] = mine
    return found


def _held(group: Group) -> Best | None:
    throughput = group.spread(lambda run: run.throughput)
    tokens = group.spread(lambda run: run.tokens_per_second)
    kept = group.spread(lambda run: run.goodput)
    if throughput is None or not throughput.median or (kept is not None and kept.median < KEPT):
        return None
    return Best(
        group.subject.label,
        group.load,
        throughput.median,
        tokens.median if tokens else None,
        kept.median if kept else None,
        group,
    )


def break_evens(held: Mapping[str, Best], prices: Mapping[str, Price]) -> list[BreakEven]:
    """Every pair of sides with a price of which one costs more an hour, in the order of the sides."""
    priced = [label for label in held if label in prices]
    return [
        break_even(held[cheap], prices[cheap], held[dear], prices[dear])
        for cheap in priced
        for dear in priced
        if prices[cheap].per_hour < prices[dear].per_hour
    ]


def break_even(cheap: Best, cheap_price: Price, dear: Best, dear_price: Price) -> BreakEven:
    """The load above which the dear side costs less.

    A load of L requests a second needs ceil(L / c) instances of a side that holds c, so an hour of it costs

        cost(L) = ceil(L / c) * price

    and the side with less of that is the cheaper one per request too, since both answer the same L. The cheap side's
    cost rises at L = k * c_cheap for k = 1, 2, …: only there can the dear side become cheaper. In the long run it is
    cheaper where price / c is less, and stays so from L = price_dear / (price_cheap/c_cheap - price_dear/c_dear) at the
    latest; the steps up to there are looked at one by one.
    """
    steps, forever = _steps(cheap, cheap_price, dear, dear_price)
    first = always = None
    for k in range(1, steps + 1):
        share = k * cheap.throughput / dear.throughput
        if first is None and _more((k + 1) * cheap_price.per_hour, _just_above(share) * dear_price.per_hour):
            first = k * cheap.throughput
        if not _more(k * cheap_price.per_hour, _at(share) * dear_price.per_hour):  # the cheap side is no dearer yet
            always = k * cheap.throughput
    return BreakEven(cheap.label, dear.label, first, always if forever else None)


def _steps(cheap: Best, cheap_price: Price, dear: Best, dear_price: Price) -> tuple[int, bool]:
    """After how many steps of the cheap side nothing new can come, and whether the dear side is the cheaper one then.

    Where it is not in the long run, each dear instance that is full loses `lost` against the cheap side, and the next
    one, still empty, can win back no more than one cheap instance's price: there are that many to look at.
    """
    a_request = cheap_price.per_hour / cheap.throughput  # in the long run, for one request a second
    lost = dear_price.per_hour - dear.throughput * a_request
    instances = dear_price.per_hour / -lost if lost < 0 else 1 + cheap_price.per_hour / lost if lost > 0 else math.inf
    steps = instances * dear.throughput / cheap.throughput
    if steps > MOST_STEPS:  # the two cost the same but for less than can be measured
        return MOST_STEPS, False
    return math.ceil(steps) + 1, lost < 0


def _more(one: float, other: float) -> bool:
    return one > other and not math.isclose(one, other, rel_tol=1e-9)


def _at(share: float) -> int:
    """Instances for so many times the capacity of one; what is whole but for rounding is whole."""
    return round(share) if math.isclose(share, round(share), rel_tol=1e-9) else math.ceil(share)


def _just_above(share: float) -> int:
    return round(share) + 1 if math.isclose(share, round(share), rel_tol=1e-9) else math.ceil(share)
