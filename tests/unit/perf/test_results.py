"""Result files: exact round trip, damage refused by name, rounds that become medians and ratios."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import UsageError
from hfx.perf.results import cumulative, distribution, merged, read_result, to_json, write_result
from hfx.perf.rounds import groups, ratios
from tests.rigs.files.perf_runs import result, run


def test_a_result_is_read_back_as_written(tmp_path: Path) -> None:
    written = result(run(), run(round=1))
    write_result(written, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.pop("machine"), "machine: Field required"),
        (lambda value: value.update(format=1), "format: Input should be 2"),
        (lambda value: value.update(colour="red"), "colour: Unexpected keyword argument"),
        (lambda value: value["runs"][0]["load"].update(kind="open-ended"), "runs.0.load.kind: Input should be"),
        (lambda value: value["runs"][0].update(throughput="fast"), "runs.0.throughput: Input should be a valid number"),
    ],
)
def test_an_invalid_field_of_a_result_is_named(tmp_path: Path, change: Any, words: str) -> None:
    value = json.loads(to_json(result(run())))
    change(value)
    (tmp_path / "r.json").write_text(json.dumps(value))
    with pytest.raises(UsageError, match=r"r\.json is not a result file of this version") as refusal:
        read_result(tmp_path / "r.json")
    assert words in refusal.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(UsageError, match="not a result file"):
        read_result(tmp_path / "r.json")


def test_a_figure_that_is_no_number_is_never_recorded() -> None:
    with pytest.raises(ValueError, match="finite number"):
        replace(run(), throughput=float("nan"))


def test_percentiles_are_those_of_the_times() -> None:
    chance = random.Random(0)
    times = sorted(chance.expovariate(10) for _ in range(20_000))
    found = distribution(times)
    assert found is not None and found.count == len(times)
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.95, found.p95), (0.99, found.p99)):
        assert value == pytest.approx(1e3 * times[int(share * len(times))], rel=0.005)  # three significant digits
    assert found.max == pytest.approx(1e3 * times[-1], rel=0.001)
    assert found.mean == pytest.approx(1e3 * sum(times) / len(times), rel=0.005)
    points = cumulative(found)
    assert points == sorted(points) and points[-1][1] == 1.0


def test_no_values_have_no_distribution_and_times_end_at_an_hour() -> None:
    assert distribution([]) is None
    longest = distribution([1e6])
    assert longest is not None and longest.max == pytest.approx(3_600_000, rel=0.001)


def test_distributions_merge_as_if_they_were_one() -> None:
    parts = [part for part in (distribution([0.001] * 30), distribution([0.1] * 70)) if part]
    assert merged(parts) == distribution([0.001] * 30 + [0.1] * 70)
    assert merged([]) is None


def test_rounds_are_grouped_by_subject_and_load() -> None:
    found = groups([run(round=1, throughput=12), run("gpu"), run(throughput=10), run(callers=8)])
    grouped = [(group.subject.label, group.load.concurrency, len(group.runs)) for group in found]
    assert grouped == [("x", 1, 2), ("gpu", 1, 1), ("x", 8, 1)]
    spread = found[0].spread(lambda each: each.throughput)
    assert spread is not None and (spread.median, spread.least, spread.most, spread.rounds) == (11, 10, 12, 2)


def test_ratios_are_taken_round_by_round() -> None:
    variant, base = groups(
        [run("new", value, round=number) for number, value in enumerate((10, 20, 90))]
        + [run("base", value, round=number) for number, value in enumerate((5, 10, 30))]
    )
    found = ratios(variant, base, lambda each: each.throughput)
    assert found is not None and (found.median, found.least, found.most, found.rounds) == (2, 2, 3, 3)
    assert ratios(variant, groups([run("base", 5, round=7)])[0], lambda each: each.throughput) is None
