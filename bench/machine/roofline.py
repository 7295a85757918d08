"""How fast a model could be at most on this machine, and the share of that which was reached.

The limit is whichever takes longer: to read the weights, or to multiply with them. Source: Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model", 2009. It must not know how needs or rates are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bench.machine.needs import Needs, needs
from bench.machine.weights import Weights
from hfx.perf.results.schema import Rates, Roofline

OPERATIONS = 2.0  # a multiplication and an addition

Unit = Literal["requests", "tokens"]


def roofline(
    repository: Path,
    name: str,
    device: str,
    rates: Rates,
    batch: float,
    throughput: float | None,
    unit: Unit,
    read: float | None = None,
    written: float | None = None,
) -> Roofline | None:
    """The limit of model NAME with BATCH rows in each run or step, and how near THROUGHPUT (UNIT a second) came.

    READ and WRITTEN are tokens of an average request. A net that only reads needs READ; of a generator, what its
    prompts cost is left out without both, so that the limit is too high and the share too low. None where that, the
    throughput or the graphs are missing, and on a GPU: RATES are those of the processor.
    """
    if device == "gpu" or not throughput or batch <= 0:
        return None
    found = needs(repository, name)
    return None if found is None else limit(found, rates, batch, throughput, unit, read, written)


def limit(
    needs: Needs,
    rates: Rates,
    batch: float,
    throughput: float,
    unit: Unit,
    read: float | None = None,
    written: float | None = None,
) -> Roofline | None:
    """As `roofline`, of known NEEDS."""
    each = _of_net(needs, batch, read) if unit == "requests" else _of_generator(needs, batch, read, written)
    if each is None:
        return None
    size, integer, floating = each
    reading, computing = size / rates.read_bytes, integer / rates.int8_operations + floating / rates.fp32_operations
    seconds = max(reading, computing)
    if seconds <= 0:
        return None
    return Roofline(
        unit=unit,
        bytes_each=size,
        operations_each=integer + floating,
        limit=1 / seconds,
        bound="memory" if reading >= computing else "compute",
        share=throughput * seconds,
    )


Each = tuple[float, float, float]  # bytes, operations on integers, operations on floats: of one request or token


def _of_net(needs: Needs, batch: float, read: float | None) -> Each | None:
    """A request of a net: the weights are read once for all rows of a batch."""
    if read is None or needs.decoder.numbers:
        return None
    return _each(needs.encoder, needs.encoder.bytes / batch, read)


def _of_generator(needs: Needs, batch: float, read: float | None, written: float | None) -> Each | None:
    """A token: its share of a step, and of reading the request's prompt or source once."""
    if not needs.decoder.numbers:
        return None
    step = _each(needs.decoder, needs.decoder.bytes / batch, 1.0)
    if not read or not written:
        return step
    if needs.encoder.numbers:
        reader = _each(needs.encoder, needs.encoder.bytes / written, read / written)
    else:  # a prompt is read by the decoder, which has just been counted
        reader = _each(needs.decoder, needs.decoder.bytes / written, read / written)
    return step[0] + reader[0], step[1] + reader[1], step[2] + reader[2]


def _each(weights: Weights, size: float, tokens: float) -> Each:
    operations = OPERATIONS * weights.numbers * tokens
    return (size, operations, 0.0) if weights.integers else (size, 0.0, operations)
