"""What this machine can do at most, and how near a model comes to that."""

from bench.machine.needs import Needs, needs, tokens_read
from bench.machine.rates import Measured, known_rates, machine, measured_rates, measurements
from bench.machine.roofline import roofline

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
