"""The report in a real browser: Chromium where the machine has one (nothing installs it), by its DevTools protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.perf.report.charts import charts
from hfx.perf.report.page import html
from hfx.perf.results import Subject
from tests.unit import chromium, perf_samples

pytestmark = [pytest.mark.slow, chromium.needs_chromium]
SMALL = (perf_samples.peers, perf_samples.generator)
DESKTOP, PHONE = 1280, 390
LONG = "instances=2, max_queue_delay=500us, threads=4"
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}\"'&amp;`${x}`"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html([make() for make in perf_samples.ALL]))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "report.html"
    path.write_text(html([make() for make in SMALL]))
    return path


@pytest.fixture
def watched(page: chromium.Page) -> chromium.Page:
    page.logged.clear()
    page.fetched.clear()
    return page


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_every_chart_is_drawn_without_a_word_on_the_console_or_a_request(
    watched: chromium.Page, written: Path, width: int, dark: bool
) -> None:
    watched.open(written, width=width, dark=dark)
    expected = sum(len(charts(make())) for make in perf_samples.ALL)
    assert watched.value("document.querySelectorAll('.plot svg').length") == expected
    empty = "[...document.querySelectorAll('.plot')].filter(p => !p.querySelector('svg [role=graphics-symbol]'))"
    assert watched.value(f"{empty}.map(p => p.dataset.chart)") == []
    assert watched.logged == []
    assert [url for url in watched.fetched if not url.startswith("data:")] == [written.resolve().as_uri()]


def test_nothing_is_wider_than_a_phone_and_no_word_of_a_plot_is_cut(watched: chromium.Page, tmp_path: Path) -> None:
    made = perf_samples.devices()
    runs = tuple(replace(run, subject=replace(run.subject, label=f"{run.subject.label}, {LONG}")) for run in made.runs)
    path = tmp_path / "long.html"
    path.write_text(
        html([replace(made, runs=runs, base=f"cpu, {LONG}"), perf_samples.tuning(), perf_samples.generator()])
    )
    watched.open(path, width=PHONE)
    assert watched.value("document.documentElement.scrollWidth") <= PHONE
    cut = """[...document.querySelectorAll('.plot svg')].filter(svg => [...svg.querySelectorAll('text')].some(text => {
        const [word, plot] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
        return word.left < plot.left - 2 || word.right > Math.min(plot.right, innerWidth) + 2
            || word.top < plot.top - 2 || word.bottom > plot.bottom + 2;
    })).map(svg => svg.closest('.plot').dataset.chart)"""
    assert watched.value(cut) == []


def test_the_colours_follow_the_system_and_the_button(watched: chromium.Page, small: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    watched.open(small, width=DESKTOP, dark=True)
    dark = watched.value(paper)
    watched.value("document.getElementById('theme').click()")
    light = watched.value(paper)
    watched.open(small, width=DESKTOP)
    assert (watched.value(paper), dark) == (light, "rgb(20, 23, 27)")
    assert watched.value("getComputedStyle(document.querySelector('.plot svg text')).fill") == "rgb(27, 31, 36)"


def test_paper_is_white_and_its_values_are_open(watched: chromium.Page, small: Path) -> None:
    watched.open(small, width=DESKTOP, dark=True)
    watched.value("document.documentElement.dataset.theme = 'dark'")
    watched.ask("Emulation.setEmulatedMedia", media="print")
    assert watched.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert watched.value("getComputedStyle(document.querySelector('.plot svg text')).fill") == "rgb(27, 31, 36)"
    watched.value("dispatchEvent(new Event('beforeprint'))")
    assert watched.value("document.querySelectorAll('details:not([open])').length") == 0
    watched.value("dispatchEvent(new Event('afterprint'))")
    assert watched.value("document.querySelectorAll('details[open]').length") == 0


def test_the_keyboard_reaches_everything_and_works_it(watched: chromium.Page, small: Path) -> None:
    watched.open(small, width=DESKTOP)
    reached = []
    for _ in range(8):
        watched.press("Tab")
        reached.append(watched.value("document.activeElement.className || document.activeElement.localName"))
    assert reached[:2] == ["skip", "button"]
    assert {"scroll", "summary"} <= set(reached)
    watched.value("document.querySelector('summary').focus()")
    watched.press("Enter")
    assert watched.value("document.querySelector('details').open") is True
    watched.value("document.querySelector('.skip').focus()")
    watched.press("Enter")
    assert watched.value("document.activeElement.id") == "content"


def test_every_plot_has_a_name_and_a_description(watched: chromium.Page, small: Path) -> None:
    watched.open(small, width=DESKTOP)
    read = """[...document.querySelectorAll('.plot')].map(p => ['labelledby', 'describedby']
        .map(name => document.getElementById(p.getAttribute('aria-' + name)).textContent.trim().length))"""
    lengths = watched.value(read)
    assert lengths
    assert all(least > 3 for pair in lengths for least in pair)


def test_the_embedded_results_are_the_ones_given(watched: chromium.Page, small: Path) -> None:
    watched.open(small, width=DESKTOP)
    titles = watched.value(
        "[...document.querySelectorAll('.save')].map(b => JSON.parse(document.getElementById(b.dataset.result)"
        ".textContent).title)"
    )
    assert titles == [make().title for make in SMALL]


def test_hostile_names_stay_text(watched: chromium.Page, tmp_path: Path) -> None:
    made = perf_samples.devices()
    runs = tuple(
        replace(run, subject=replace(run.subject, label=f"{run.subject.label} {HOSTILE}"), notes=(HOSTILE,))
        for run in made.runs
    )
    assert isinstance(runs[0].subject, Subject)
    hostile = replace(
        made, title=HOSTILE, command=HOSTILE, runs=runs, base=f"cpu {HOSTILE}", notes=(HOSTILE,),
        details={HOSTILE: {HOSTILE: HOSTILE}}, machine=replace(made.machine, processor=HOSTILE),
    )  # fmt: skip
    path = tmp_path / "hostile.html"
    path.write_text(html([hostile]))
    watched.ask("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.stolen = true; };")
    watched.open(path, width=DESKTOP)
    assert watched.value("window.stolen") is None
    assert watched.value("document.images.length") == 0
    assert watched.value("document.querySelector('h1').textContent") == HOSTILE
    assert watched.value("document.scripts.length") == 4  # two of data, two of the page
    assert watched.logged == []
    drawn = "[...document.querySelectorAll('.plot text')].some(t => t.textContent.includes('onerror'))"
    assert watched.value(drawn)


def test_an_injected_script_is_refused_by_the_pages_policy(watched: chromium.Page, small: Path) -> None:
    watched.open(small, width=DESKTOP)
    watched.value(
        "{ const s = document.createElement('script'); s.textContent = 'stolen = 1'; document.body.append(s); }"
    )
    assert watched.value("typeof stolen") == "undefined"
    assert any("Content Security Policy" in line for line in watched.logged)
    assert watched.value("fetch('https://example.org').then(() => 'fetched', () => 'refused')") == "refused"
