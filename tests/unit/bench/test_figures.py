"""Ratios, goals and the guard's verdicts, as the benchmarks compute them from rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import guard
from bench.command import Settings, Work, run, write_page
from bench.figures import Figures, Goal, load, save, take_turns, ways_table
from bench.scenarios import SCENARIOS
from hfx.errors import LoadFailed, UsageError

REPOSITORY = Path(__file__).parents[3]
CASE, OURS, PEER = guard.LABELS[0].name, guard.HFX, "torch fp32"
QUIET = (3.0, 3.02, 2.98, 3.01, 2.99, 3.0, 3.01)


def figures(**rates: Sequence[float]) -> Figures:
    """Return the requests a second of candidates (`_` is a blank), round by round."""
    found = Figures()
    for way, values in rates.items():
        for turn, value in enumerate(values):
            found.add(way.replace("_", " "), "one", turn, ms=value)
    return found


def measured(ratios: Sequence[float], base: Sequence[float] = (100.0,) * 7) -> Figures:
    """Return figures of hfx at `ratios` times a peer's requests a second."""
    found = Figures()
    for turn, (ratio, rate) in enumerate(zip(ratios, base, strict=False)):
        found.add(OURS, CASE, turn, **{guard.FIGURE: ratio * rate})
        found.add(PEER, CASE, turn, **{guard.FIGURE: rate})
    return found


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    found = figures(ours=(10, 20, 90), peer=(20, 40, 45))
    assert found.ratio(("ours", "one", "ms"), ("peer", "one", "ms")) == 0.5
    assert found.ratio(("ours", "one", "ms"), ("missing", "one", "ms")) is None
    found = figures(ours=(10, 20, 90), peer=(20,))  # which missed two rounds
    assert found.ratio(("ours", "one", "ms"), ("peer", "one", "ms")) == 0.5


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal("one", "ms", ("a",), most=10.0), 10.0, True),
        (Goal("one", "ms", ("a",), least=11.0), 10.0, False),
        (Goal("one", "ms", ("a",), least=2.0, against=("b",)), 0.5, False),
        (Goal("one", "ms", ("a",), least=2.0, against=("b",), relation="inverse"), 2.0, True),
        (Goal("one", "ms", ("a",), most=0.0, against=("b",), relation="difference"), -10.0, True),
        (Goal("one", "ms", ("b", "a"), least=2.0, against=("b", "c"), relation="inverse", lower=True), 2.0, True),
        (Goal("one", "ms", ("a",), least=1.0, against=("missing",)), None, None),
    ],
)
def test_a_goal_compares_the_best_candidate_of_each_side(goal: Goal, value: float | None, met: bool | None) -> None:
    assert goal.judge(figures(a=(10,), b=(20,), c=(30,)))[1:] == (value, met)


def test_a_table_says_how_many_times_as_fast_the_best_of_ours_is() -> None:
    table = ways_table(figures(ours=(10,), ours_too=(20,), peer=(40,)), "one", ("ms",), ("ours", "ours too"), "ms")
    assert "| peer | 40.0 | 4.00 |" in table and "ours is x" in table


def test_figures_of_a_file_are_those_that_were_saved(tmp_path: Path) -> None:
    found = figures(ours=(10, 20.5), peer=(20,))
    found.notes, found.stamp = {"peer": "not run"}, {"cores": 2}
    save(tmp_path / "f.jsonl", {"work": found})
    assert load(tmp_path / "f.jsonl") == {"work": found}
    (tmp_path / "f.jsonl").write_text("[1]\n")
    with pytest.raises(UsageError):
        load(tmp_path / "f.jsonl")


def test_a_failed_load_is_repeated_once_and_two_failures_end_the_candidate() -> None:
    calls: list[int] = []

    def unlucky(case: str) -> dict[str, float]:
        calls.append(len(calls))
        if len(calls) in (2, 4, 5):
            raise LoadFailed("Bad file descriptor.", "Again.")
        return {"ms": float(len(calls))}

    found = Figures()
    take_turns(found, "title", {"one": "a case"}, {"way": unlucky}, 5)
    assert found.rounds("way", "one", "ms") == {0: 1.0, 1: 3.0} and len(calls) == 5
    assert found.notes == {
        "way, one, round 2": "repeated after: Bad file descriptor.",
        "way, one, round 3": "repeated after: Bad file descriptor.",
        "way, one": "not run: Bad file descriptor.",
    }


def test_cases_have_another_order_in_each_round_and_the_same_at_every_call() -> None:
    def order() -> list[str]:
        cases: list[str] = []

        def measure(case: str) -> dict[str, float]:
            cases.append(case)
            return {}

        take_turns(Figures(), "title", {case: case for case in "abcdef"}, {"way": measure}, 3)
        return cases

    cases = order()
    rounds = [tuple(cases[at : at + 6]) for at in (0, 6, 12)]
    assert rounds[0] == (*"abcdef",)
    assert len(set(rounds)) == 3 and all(sorted(each) == list("abcdef") for each in rounds)
    assert order() == cases


def test_a_benchmark_that_ends_early_keeps_and_prints_the_figures_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "kept" / "f.jsonl"

    def measure(settings: Settings, figures: Figures) -> None:
        figures.add("way", "one", 0, ms=10.0)
        assert load(output)["work"].median("way", "one", "ms") == 10.0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("any", {"work": Work("Title", measure, ("ms",))}, ["--output", str(output)])
    assert "| way | 10.0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (QUIET, QUIET, "as before"),
        (QUIET, [0.8 * each for each in QUIET], "slower"),
        (QUIET, [0.95 * each for each in QUIET], "as before"),  # less than a tenth
        (QUIET, [1.3 * each for each in QUIET], "faster"),
        ((*QUIET[:-1], 0.5), [0.8 * each for each in QUIET], "slower"),  # one disturbed round is no noise
        ((3.0, 2.8, 3.2, 2.9, 3.1, 2.85, 3.15), (2.4, 2.24, 2.56, 2.32, 2.48, 2.28, 2.52), "as before"),
        ((3.0, 1.0, 6.0, 2.0, 5.0, 1.5, 4.0), QUIET, guard.TOO_NOISY),
    ],
)
def test_the_guard_tells_a_change_from_noise(before: Sequence[float], now: Sequence[float], verdict: str) -> None:
    (change,) = guard.changes(measured(before), measured(now))
    assert change.verdict == verdict


def test_the_guard_fails_for_slower_ratios_but_not_for_a_slower_machine() -> None:
    slow = measured(QUIET, (10.0, 12.0, 9.0, 11.0, 10.0, 8.0, 10.0))  # slows both, and moves no ratio
    assert guard.changes(measured(QUIET), slow)[0].verdict == "as before"
    with pytest.raises(guard.Slower):
        guard.judge({guard.PEERS: guard.changes(measured(QUIET), measured([0.7 * each for each in QUIET]))})
    with pytest.raises(LoadFailed):
        guard.judge({guard.PEERS: guard.changes(measured(QUIET), measured(QUIET[:2]))})  # too few rounds


def test_a_version_is_compared_with_a_checkout_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no checkout of hfx"):
        guard.speeds(tmp_path, quick=True)


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "kind"),
    [
        ("AuthenticAMD", 25, 17, "avx512_vnni", "Zen 4"),
        ("AuthenticAMD", 25, 1, "avx2", "Zen 3"),
        ("AuthenticAMD", 25, 80, "avx2", "Zen 3"),
        ("AuthenticAMD", 23, 49, "avx2", "AuthenticAMD family 23 model 49"),
        ("AuthenticAMD", 26, 2, "avx512_vnni", "Zen 5"),
        ("GenuineIntel", 6, 143, "amx_int8", "Sapphire Rapids"),
        ("GenuineIntel", 6, 207, "avx512_vnni", "Emerald Rapids without AMX"),
    ],
)
def test_a_baseline_is_kept_for_each_kind_of_processor(
    vendor: str, family: int, model: int, flags: str, kind: str
) -> None:
    text = (
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X\nflags\t\t: fpu {flags}\n"
    )
    assert guard.processor_kind(text, "x86_64") == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "CPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n",
            "aarch64 implementer 0x41 part 0xd4f",
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", guard.EMULATED),  # a file for tests under emulation
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n", guard.EMULATED),  # of the emulator's machine
        ("processor\t: 0\n", guard.EMULATED),
    ],
)
def test_an_emulated_processor_has_no_baseline_of_a_real_one(text: str, kind: str) -> None:
    assert guard.processor_kind(text, "aarch64") == kind


@pytest.mark.parametrize("arguments", [[], ["--write"]])
def test_the_guard_measures_nothing_under_emulation(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.jsonl"
    save(baseline, {guard.processor_kind(): Figures()})
    before = baseline.read_bytes()
    monkeypatch.setattr(guard, "processor_kind", lambda: guard.EMULATED)
    assert guard.main(["--baseline", str(baseline), *arguments]) == LoadFailed.exit_code
    assert guard.EMULATED in capsys.readouterr().err and baseline.read_bytes() == before


def test_the_committed_results_are_of_the_scenarios_and_give_the_pages_sections() -> None:
    from bench.docs import PAGE, README, proof, scenarios, summary

    results = load(REPOSITORY / "bench" / "results" / "scenarios.jsonl")
    assert list(results) == list(SCENARIOS)
    for name, found in results.items():
        assert all(goal.judge(found)[1] is not None for goal in SCENARIOS[name].goals), name
    assert proof(results).strip() in (REPOSITORY / README).read_text(encoding="utf-8")
    assert summary(results) in (REPOSITORY / PAGE).read_text(encoding="utf-8")
    assert [line for line in scenarios(results).splitlines() if line.startswith("### ")] == [
        f"### {name}" for name in SCENARIOS
    ]


def test_the_committed_results_of_gpus_give_the_page_s_section(tmp_path: Path) -> None:
    from bench.docs import CHANGED, GPU_PAGE, on_gpus
    from bench.gpu import ON_GPU, RESULTS

    results = load(REPOSITORY / RESULTS)
    page = (REPOSITORY / GPU_PAGE).read_text(encoding="utf-8")
    assert on_gpus(results).strip() in page
    assert ("has not been measured on a GPU yet" in page) is all(r.stamp["created"] < CHANGED for r in results.values())
    later = Figures(stamp={**next(iter(results.values())).stamp, "created": CHANGED})
    for turn, rate in enumerate((5.0, 7.0, 6.0)):
        later.add(ON_GPU, "one", turn, **{"requests/s": rate})
    text = on_gpus({**results, f"served, X, {CHANGED}": later})
    assert f"| one | {ON_GPU} | 6.00 (5.00–7.00) |" in text and "not been measured" not in text


def test_the_committed_results_of_published_weights_give_the_page_s_section() -> None:
    from bench.docs import PUBLISHED_PAGE, published
    from bench.published import CHECKPOINT, COPIES, EXPORTS, RESULTS, WORKS

    results = load(REPOSITORY / RESULTS)
    assert list(results) == list(WORKS)
    for found in results.values():
        assert {CHECKPOINT, *EXPORTS, *COPIES} <= {*found.ways()} and found.notes == {}
    assert published(results).strip() in (REPOSITORY / PUBLISHED_PAGE).read_text(encoding="utf-8")


def test_a_work_is_kept_under_its_title_and_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "f.jsonl"
    save(output, {"any, X, 2026-11-27": figures(ours=(10,))})
    work = Work("Title", lambda settings, figures: figures.add("way", "one", 0, ms=1.0), ("ms",))
    assert run("any", {"any": work}, ["--output", str(output)], title=lambda name, date: f"{name}, Y, today") == 0
    kept = load(output)
    assert list(kept) == ["any, X, 2026-11-27", "any, Y, today"]
    assert kept["any, Y, today"].median("way", "one", "ms") == 1.0


def test_a_page_keeps_what_is_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    write_page(page, "new", "figures")
    assert page.read_text() == "before\n<!-- figures: begin -->\n\nnew\n\n<!-- figures: end -->\nafter\n"
    page.write_text("no marks")
    with pytest.raises(UsageError):
        write_page(page, "new", "figures")
