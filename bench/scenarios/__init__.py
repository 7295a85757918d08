"""Canned measurements: a shape, its loads, the peers beside it, and what is wanted of the figures."""

from bench.scenarios.running import Options, run_scenario
from bench.scenarios.scenario import Case, Goal, Model, PeerWay, Scenario
from bench.scenarios.table import SCENARIOS
from bench.scenarios.verdicts import scenario_table, verdicts

__all__ = [
    "SCENARIOS", "Case", "Goal", "Model", "Options", "PeerWay", "Scenario", "run_scenario", "scenario_table",
    "verdicts",
]  # fmt: skip
