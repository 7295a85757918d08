"""How the rates of a machine are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.machine import known_rates, measurements, probe, rates
from hfx.perf.machine import cores, processor

RATES = {"read_bytes": [1e10, "dot"], "fp32_operations": [1e11, "matmul"], "int8_operations": [4e11, "int8"]}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path))
    return tmp_path / rates.FILE


def keep(file: Path, found: object) -> None:
    file.write_text(json.dumps({f"{processor()}, {cores()} cores, method {rates.METHOD}": found}))


def test_rates_of_another_machine_are_not_taken(empty: Path) -> None:
    empty.write_text(json.dumps({"another, 64 cores, method 1": RATES}))
    assert known_rates() is None


def test_rates_are_measured_once_and_kept(empty: Path) -> None:
    keep(empty, RATES)
    assert measurements().ways["read_bytes"] == "dot"
    found = known_rates()
    assert found is not None and found.fp32_operations == 1e11


@pytest.mark.parametrize("damaged", [None, [], {"read_bytes": [1, "x"]}, dict.fromkeys(RATES, "x")])
def test_damaged_rates_are_as_none(empty: Path, damaged: object) -> None:
    keep(empty, damaged)
    assert known_rates() is None


def test_the_higher_of_two_measurements_is_kept() -> None:
    slow = {name: [rate / 2, "disturbed"] for name, (rate, _) in RATES.items()}  # type: ignore[operator]
    assert rates.best(slow, RATES) == rates.best(RATES, slow) == RATES
    assert rates.best(None, RATES) == RATES


def test_a_rate_is_the_work_of_a_step_over_its_fastest_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.0)
    import time

    rate, way = probe.best(
        iter([("slow", 100.0, lambda: time.sleep(0.02)), ("fast", 100.0, lambda: time.sleep(0.005))])
    )
    assert way == "fast" and 10_000 < rate <= 20_000


@pytest.mark.parametrize("table", [probe.multiplying_fp32, probe.multiplying_int8])
def test_every_way_of_multiplying_runs_here(table: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SIZES", (32,))
    ways = list(table())  # type: ignore[operator]
    assert len(ways) == 2
    for _, operations, step in ways:
        assert operations == 2 * 32**3
        step()
