"""The guard tells noise from change, by ratios to peers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench import guard
from bench.errors import PerformanceRegression
from hfx.errors import LoadFailed
from hfx.perf.results import Result, read_result, write_result
from tests.unit.scenario_runs import MACHINE, rounds

CASE = guard.LABELS[0]
QUIET = (3.0, 3.02, 2.98, 3.01, 2.99, 3.0, 3.01)


def measured(ratios: Sequence[float], peer: Sequence[float] | None = None) -> Result:
    """hfx at RATIOS times torch's requests a second, round by round."""
    base = peer or [100.0] * len(ratios)
    ours = [ratio * rate for ratio, rate in zip(ratios, base, strict=True)]
    runs = (*rounds(CASE, "hfx int8", ours), *rounds(CASE, "torch fp32", base))
    return Result("scenario", "guard", "guard", "2026-01-01", MACHINE, runs, base="hfx int8")


def verdict(before: Sequence[float], now: Sequence[float]) -> str:
    (change,) = guard.changes(measured(before), measured(now))
    return change.verdict


def test_the_same_figures_are_as_before() -> None:
    assert verdict(QUIET, QUIET) == "as before"


@pytest.mark.parametrize(("factor", "expected"), [(0.8, "slower"), (0.95, "as before"), (1.3, "faster")])
def test_a_change_counts_where_it_is_larger_than_the_floor(factor: float, expected: str) -> None:
    assert verdict(QUIET, [factor * ratio for ratio in QUIET]) == expected


def test_a_change_within_the_noise_of_the_rounds_is_none() -> None:
    noisy = (3.0, 2.8, 3.2, 2.9, 3.1, 2.85, 3.15)
    assert verdict(noisy, [0.8 * ratio for ratio in noisy]) == "as before"


def test_one_disturbed_round_makes_no_noise() -> None:
    assert verdict((*QUIET[:-1], 0.5), [0.8 * ratio for ratio in QUIET]) == "slower"


def test_a_slow_machine_slows_both_and_moves_no_ratio() -> None:
    fast, slow = measured(QUIET), measured(QUIET, peer=[10.0, 12.0, 9.0, 11.0, 10.0, 8.0, 10.0])
    assert guard.changes(fast, slow)[0].verdict == "as before"


def test_what_is_slower_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        PerformanceRegression, match=r"1 of 1 ratios .* torch fp32, labels for 1 caller \(-30%\)"
    ) as error:
        guard.judge(measured(QUIET), measured([0.7 * ratio for ratio in QUIET]))
    assert error.value.exit_code == 1 and "--write" in error.value.fix
    assert "slower" in capsys.readouterr().out


def test_what_is_faster_is_said_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    guard.judge(measured(QUIET), measured([2 * ratio for ratio in QUIET]))
    assert "+100%" in capsys.readouterr().out


def test_nothing_in_common_is_an_error() -> None:
    alone = replace(measured(QUIET), runs=tuple(rounds(CASE, "hfx int8", QUIET)))
    with pytest.raises(LoadFailed, match="No ratio"):
        guard.judge(measured(QUIET), alone)


def test_a_machine_that_is_too_busy_tells_nothing_and_says_so() -> None:
    busy = measured((3.0, 1.0, 6.0, 2.0, 5.0, 1.5, 4.0))
    assert guard.changes(busy, measured(QUIET))[0].verdict == guard.TOO_NOISY
    with pytest.raises(LoadFailed, match="nothing can be told"):
        guard.judge(busy, measured(QUIET))


def test_too_few_rounds_tell_nothing() -> None:
    assert guard.changes(measured(QUIET), measured(QUIET[:2])) == []


def test_another_machine_and_a_missing_peer_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    before = measured(QUIET)
    optimum = tuple(rounds(CASE, "optimum int8", QUIET))
    here = replace(before, machine=replace(MACHINE, processor="Other CPU"))
    guard.judge(replace(before, runs=(*before.runs, *optimum)), here)
    said = capsys.readouterr().out
    assert (
        "The baseline is of Test CPU with 2 cores" in said and "optimum int8, labels for 1 caller: not measured" in said
    )


def test_a_missing_baseline_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main(["--baseline", str(tmp_path / "none.json")]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_the_committed_baseline_has_every_ratio_that_is_measured() -> None:
    baseline = read_result(Path(__file__).parents[2] / guard.BASELINE)
    wanted = {(case.key, way.label) for each in guard.MEASURED for case in each.cases for way in each.peers}
    assert len(guard.changes(baseline, baseline)) == len(wanted)


def test_a_result_of_the_guard_can_be_kept(tmp_path: Path) -> None:
    write_result(measured(QUIET), tmp_path / "kept.json")
    assert guard.changes(read_result(tmp_path / "kept.json"), measured(QUIET))[0].verdict == "as before"
