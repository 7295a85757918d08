"""The page of a report: its text, its charts in a browser, and `hfx perf report`."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.perf.report.charts import charts
from hfx.perf.report.page import html
from hfx.perf.results import write_result
from tests.rigs.files import perf_samples

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>alert(2)</script>\"'"


class Elements(HTMLParser):
    """The elements of a page and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page() -> str:
    return html([make() for make in perf_samples.ALL])


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_the_report_page_loads_nothing_from_elsewhere(elements: Elements) -> None:
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)


def test_only_its_own_scripts_may_run(elements: Elements) -> None:
    policy = next(a["content"] for t, a in elements.found if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline'" not in policy.partition("style-src")[0]
    assert "unsafe-eval" not in policy
    for script in elements.scripts[-2:]:
        assert f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


def test_hostile_text_is_no_markup() -> None:
    made = perf_samples.concurrencies()
    runs = tuple(
        replace(
            run, notes=(HOSTILE,), subject=replace(run.subject, label=HOSTILE), load=replace(run.load, case=HOSTILE),
            requests=replace(run.requests, errors={HOSTILE: 1}, words={HOSTILE: HOSTILE}),
        )
        for run in made.runs
    )  # fmt: skip
    details = {HOSTILE: HOSTILE}
    hostile = replace(made, title=HOSTILE, command=HOSTILE, notes=(HOSTILE,), runs=runs, details=details)  # type: ignore[arg-type]
    text = html([hostile])
    elements = Elements(text)
    assert not [tag for tag, _ in elements.found if tag in ("img", "iframe", "object")]
    assert len(elements.scripts) == 3
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]


def test_the_answer_stands_before_warnings_charts_and_tables(page: str) -> None:
    parts = ("sentiment holds 310", "Bottleneck step", "9 of 400 requests failed", "Latency against", "<table")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert page.count("Example Processor") == 2, "a machine stands once: the one with a GPU, and the one without"


def test_every_chart_has_a_description(elements: Elements) -> None:
    plots = [attributes for tag, attributes in elements.found if attributes.get("role") == "img"]
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert plots
    assert all({plot["aria-labelledby"], plot["aria-describedby"]} <= set(ids) for plot in plots)
    assert len(ids) == len(set(ids))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_draws_every_chart(tmp_path: Path) -> None:
    made = [perf_samples.tuning(), perf_samples.generator()]
    (tmp_path / "page.html").write_text(html(made))
    flags = "--headless --no-sandbox --disable-gpu --virtual-time-budget=10000 --dump-dom"
    command = [CHROMIUM or "", *flags.split()]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    expected = sum(len(charts(result)) for result in made)
    assert f'data-drawn="{expected}"' in drawn
    assert "can't be drawn" not in re.sub(r"<script.*?</script>", "", drawn, flags=re.DOTALL)


def test_a_machine_without_a_gpu_is_not_given_one() -> None:
    text = html([perf_samples.one_device()])
    assert "gpu was not run: this machine has no GPU." in text
    assert "Example GPU" not in text


def written(folder: Path) -> list[str]:
    """Two result files."""
    paths = [folder / f"{make.__name__}.json" for make in (perf_samples.concurrencies, perf_samples.cases)]
    write_result(perf_samples.concurrencies(), paths[0])
    write_result(perf_samples.cases(), paths[1])
    return [str(path) for path in paths]


def test_the_command_writes_the_page_and_pictures_in_both_themes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, folder = tmp_path / "out.html", tmp_path / "made" / "svg"
    assert main(["perf", "report", *written(tmp_path), "-o", str(page), "--svg", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote {page} (")
    assert page.read_text().count("<section id=") == 2
    names = {path.name for path in folder.iterdir()}
    assert {"1-latency-cdf-light.svg", "1-latency-cdf-dark.svg", "2-throughput-light.svg"} <= names


@pytest.mark.parametrize(
    ("result", "output", "reason"),
    [
        (None, "r.html", "can't be read"),
        ("{", "r.html", "is not a result"),
        ("{}", "other.json", "is one of the results"),
        ("{}", "nowhere/r.html", "can't be written"),
        ("{}", ".", "can't be written"),
    ],
)
def test_wrong_files_are_one_clear_line_and_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: str | None, output: str, reason: str
) -> None:
    path = tmp_path / "other.json"
    if result is not None:
        path.write_text(result)
    assert main(["perf", "report", str(path), "-o", str(tmp_path / output)]) == 2
    assert reason in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "r.html").exists()
    assert result is None or path.read_text() == result
