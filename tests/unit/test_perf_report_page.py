"""The page of a report: its text, how a browser draws it, and `hfx perf report`."""

from __future__ import annotations

import hashlib
import json
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
from hfx.perf.report.page import html, runtime
from hfx.perf.results import write_result
from tests.unit import perf_samples

MAX_BYTES = 2_000_000  # of a page of six results; the runtime is 900,000 of them
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>alert(2)</script>\"'"


class Elements(HTMLParser):
    """The elements of a page and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._parts: list[list[str]] = []
        self._inside = False
        self.feed(text)
        self.scripts = ["".join(parts) for parts in self._parts]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self._parts.append([])

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._parts[-1].append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return html([make() for make in perf_samples.ALL])


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_the_page_names_no_other_place(elements: Elements) -> None:
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


def test_the_page_has_a_sensible_size(page: str) -> None:
    assert len(runtime()) < len(page.encode()) < MAX_BYTES


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
    parts = (
        "sentiment holds 310 requests/s",
        "Bottleneck step",
        "9 of 400 requests failed",
        "Latency against",
        "<table",
    )
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_machine_facts_stand_once_for_each_machine(page: str) -> None:
    assert page.count("onnxruntime") - page.count("onnxruntime_") == 2  # one machine with a GPU, one without


def test_every_chart_has_a_description(elements: Elements) -> None:
    plots = [attributes for tag, attributes in elements.found if attributes.get("role") == "img"]
    ids = {attributes.get("id") for _, attributes in elements.found}
    assert plots
    assert all({plot["aria-labelledby"], plot["aria-describedby"]} <= ids for plot in plots)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_draws_every_chart(tmp_path: Path) -> None:
    made = [perf_samples.tuning(), perf_samples.generator()]
    (tmp_path / "page.html").write_text(html(made))
    command = [
        CHROMIUM or "",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    expected = sum(len(charts(result)) for result in made)
    assert f'data-drawn="{expected}"' in drawn
    assert "can't be drawn" not in re.sub(r"<script.*?</script>", "", drawn, flags=re.DOTALL)


def test_ids_are_unique(elements: Elements) -> None:
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_a_machine_without_a_gpu_is_not_given_one() -> None:
    text = html([perf_samples.one_device()])
    visible = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "gpu was not run: this machine has no GPU." in visible
    assert "Example GPU" not in visible


def written(folder: Path) -> list[str]:
    paths = [folder / f"{make.__name__}.json" for make in (perf_samples.concurrencies, perf_samples.cases)]
    write_result(perf_samples.concurrencies(), paths[0])
    write_result(perf_samples.cases(), paths[1])
    return [str(path) for path in paths]


def test_the_command_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    assert main(["perf", "report", *written(tmp_path), "-o", str(page)]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote {page} (")
    assert page.read_text().count("<section id=") == 2


def test_the_command_writes_pictures_in_both_themes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "svg"
    asked = ["perf", "report", written(tmp_path)[0], "-o", str(tmp_path / "r.html"), "--svg", str(folder), "--json"]
    assert main(asked) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(said["pictures"]) == sorted(map(str, folder.iterdir()))
    names = {path.name for path in folder.iterdir()}
    assert {"latency-cdf-light.svg", "latency-cdf-dark.svg", "steps-light.svg"} <= names


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "can't be read"),
        ("{", "is no result"),
        ('{"runs": []}', "is no result"),
        ("\x00", "is no result"),
    ],
)
def test_what_is_no_result_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    assert main(["perf", "report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    assert reason in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "r.html").exists()


def test_the_page_never_overwrites_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path)
    assert main(["perf", "report", *paths, "-o", paths[0]]) == 2
    assert "is one of the results" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["nowhere/r.html", "."])
def test_an_unwritable_place_is_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    assert main(["perf", "report", *written(tmp_path), "-o", str(tmp_path / output)]) == 2
    assert "can't be written" in capsys.readouterr().err
