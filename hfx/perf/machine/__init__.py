"""The machine under the figures: what it is, what it can do at most, and how near a model comes to that."""

from hfx.perf.machine.facts import machine
from hfx.perf.machine.needs import Needs, needs, tokens_read
from hfx.perf.machine.rates import Measured, known_rates, measured_rates, measurements
from hfx.perf.machine.roofline import roofline

__all__ = [
    "Measured",
    "Needs",
    "known_rates",
    "machine",
    "measured_rates",
    "measurements",
    "needs",
    "roofline",
    "tokens_read",
]
