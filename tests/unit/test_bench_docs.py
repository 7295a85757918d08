"""README's performance section follows from the committed result files, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import docs
from bench.scenarios import SCENARIOS
from hfx.errors import UsageError
from hfx.perf.results import Result, write_result
from tests.unit import scenario_runs
from tests.unit.scenario_runs import result

ROOT = Path(__file__).parents[2]
PLACE = f"# Page\n\nbefore\n\n{docs.BEGIN}\nold\n{docs.END}\n\nafter\n"


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [result(name) for name in SCENARIOS]


@pytest.fixture
def checkout(tmp_path: Path, results: list[Result]) -> Path:
    for folder in (docs.RESULTS, docs.PAGE.parent):
        (tmp_path / folder).mkdir(parents=True)
    for name, each in zip(SCENARIOS, results, strict=True):
        write_result(each, tmp_path / docs.RESULTS / f"{name}.json")
    for page in (docs.README, docs.PAGE):
        (tmp_path / page).write_text(PLACE)
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("page", [docs.README, docs.PAGE], ids=str)
def test_the_committed_pages_say_what_the_committed_results_say(page: Path) -> None:
    found = docs.read_results(ROOT / docs.RESULTS)
    pictures = {path.name: "" for path in (ROOT / docs.PICTURES).glob("perf-*.svg")}
    section = docs.readme_section if page == docs.README else docs.page_section
    text = (ROOT / page).read_text(encoding="utf-8")
    assert docs.replaced(text, section(found, pictures), str(page)) == text, "run make bench-docs"


def test_pages_and_pictures_are_written_and_the_second_time_nothing_changes(checkout: Path) -> None:
    assert docs.main([str(checkout)]) == 0
    first = contents(checkout)
    assert docs.main([str(checkout)]) == 0
    assert contents(checkout) == first
    readme = first["README.md"]
    assert readme.startswith("# Page\n\nbefore\n") and readme.endswith("\nafter\n") and "old" not in readme
    assert all(name in readme or name in first["docs/perf-scenarios.md"] for name in SCENARIOS)
    assert any(name.startswith("docs/img/perf-classify") for name in first)


def test_pictures_of_results_that_are_gone_go_too(checkout: Path) -> None:
    docs.main([str(checkout)])
    stale = checkout / docs.PICTURES / "perf-gone.svg"
    stale.write_text("<svg/>")
    own = checkout / docs.PICTURES / "logo.svg"
    own.write_text("<svg/>")
    docs.main([str(checkout)])
    assert own.is_file() and not stale.exists()


def test_the_section_has_the_ratio_to_each_peer(results: list[Result]) -> None:
    text = docs.readme_section(results)
    row = next(line for line in text.splitlines() if line.startswith("| mlserver-burst"))
    assert row.count("3.00×") == 4  # mlserver, ctranslate2, openvino, torch: 30 requests a second to 10
    assert "in process" not in text.split("\n\n")[1]


def test_the_section_says_which_goals_are_missed_and_by_how_much() -> None:
    text = " ".join(docs.readme_section([result("billsum")]).split())
    assert "4 of 6 goals are met. Missed: billsum: documents, 1 caller: requests/s, in times of torch fp32" in text
    assert "(3.00, wanted at least 6.00)" in text


def test_lines_of_prose_are_not_longer_than_the_pages_others(results: list[Result]) -> None:
    lines = docs.readme_section(results).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "<"))] == []


def test_published_figures_stand_apart_with_their_source(results: list[Result]) -> None:
    page = docs.page_section(results)
    part = page.split("\n## ")[0]
    assert "21.4 s" in part.split("### Published by others")[1]
    assert "21.4" not in part.split("### Published by others")[0]
    assert "21.4" not in docs.readme_section(results)


def test_without_results_the_section_says_how_to_get_them() -> None:
    assert "make bench" in docs.readme_section([]) and docs.page_section([]) == docs.NONE


def test_a_smoke_run_is_no_result(tmp_path: Path) -> None:
    made = result("faq")
    write_result(replace(made, details={**made.details, "quick": True}), tmp_path / "faq.json")
    with pytest.raises(UsageError, match="a smoke run"):
        docs.read_results(tmp_path)


@pytest.mark.parametrize("text", ["", docs.BEGIN, PLACE + PLACE])
def test_a_page_without_its_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lacks the lines"):
        docs.replaced(text, "body", "README.md")


def test_a_way_that_was_not_measured_has_no_ratio() -> None:
    scenario = SCENARIOS["billsum"]
    runs = [run for run in scenario_runs.everything(scenario) if run.subject.peer != "openvino"]
    text = docs.readme_section([result("billsum", runs)])
    assert "openvino" not in text
