"""The playground in a real browser, on a real server that requires a key."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.client import Client
from tests.rigs.checkpoints.reciting_generator import ENDLESS
from tests.rigs.clients import chromium
from tests.rigs.clients.dialect_calls import API_KEY, ENCODERS, RANKER
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import SECONDS, ServeProcess
from tests.triton.test_dialects import SOON, slots_used

pytestmark = [pytest.mark.triton, chromium.needs_chromium]
GENERATORS = ("stories", "summaries", RECITAL)
LANGUAGES = {  # of the code that the page shows; hfx's client has no chat
    **dict.fromkeys((*ENCODERS, RANKER), frozenset({"curl", "Python"})),
    **dict.fromkeys(("similar-int8", "stories", "summaries"), frozenset({"curl", "Python", "OpenAI"})),
    RECITAL: {"curl", "OpenAI"},
}
HOSTILE = "<img src=x onerror=alert(1)> Anna 👩‍👩‍👧‍👦 met Erik in Oslo </p><script>alert(2)</script>"
IDLE = "document.body.dataset.state === 'idle'"
ANSWER = "document.querySelector('#answer').textContent"
ERROR = "(document.querySelector('#error').hidden ? '' : document.querySelector('#error').textContent)"


@pytest.fixture(scope="module")
def tab(dialects: ServeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    """The page, after its user has entered the key."""
    with chromium.tab(tmp_path_factory.mktemp("profile")) as opened:
        opened.resize(1400)
        opened.command("Page.navigate", url=dialects.http_url)
        opened.wait_for("document.activeElement?.id === 'key'")
        assert opened.value("document.querySelectorAll('#models a').length") == 0
        opened.type(API_KEY)
        opened.press("Enter")
        opened.wait_for("document.querySelectorAll('#models a').length")
        opened.logged.clear()  # the answer 401
        yield opened
        assert opened.logged == []
        assert all(url.startswith((dialects.http_url, "data:")) for url in opened.fetched)


def choose(tab: chromium.Page, model: str) -> None:
    tab.value(f"location.hash = '#model={model}'")
    tab.wait_for(f"document.querySelector('#name').textContent === '{model}' && {IDLE}")


def fill(tab: chromium.Page, path: str, text: str) -> None:
    control = f"document.getElementById('field-{path}')"
    tab.value(f"({control}.value = {text!r}, {control}.dispatchEvent(new Event('input', {{bubbles: true}})), 0)")


def run(tab: chromium.Page) -> str:
    """Send the form by keyboard, and return the text of the answer."""
    tab.value("document.querySelector('#inputs textarea, #inputs input').focus()")
    tab.press("Enter", chromium.CONTROL)
    tab.wait_for(f"{IDLE} && !document.querySelector('#time').hidden || {ERROR}")
    assert tab.value(ERROR) == ""
    return str(tab.value(ANSWER))


def codes(tab: chromium.Page) -> dict[str, str]:
    names = tab.value("[...document.querySelectorAll('#languages input')].map(each => each.value)")
    texts = {}
    for name in names:
        tab.value(f"document.getElementById('language-{name}').click()")
        texts[name] = str(tab.value("document.querySelector('#code').textContent"))
    return texts


def output_of(name: str, code: str) -> str:
    """Return the output of the displayed code."""
    if name == "curl":
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, name, "exec"), {})
    return printed.getvalue()


@pytest.mark.parametrize("model", LANGUAGES)
def test_each_task_is_answered_and_its_code_runs_as_it_stands(
    model: str, tab: chromium.Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFX_TOKEN", API_KEY)
    choose(tab, model)
    if model in GENERATORS:
        fill(tab, "parameters.max_tokens", "12")
        fill(tab, "parameters.stop_words", "a text that's not there")
    answer = run(tab)
    outputs = {name: output_of(name, code) for name, code in codes(tab).items()}
    assert outputs.keys() == LANGUAGES[model]
    assert all(outputs.values()), outputs
    if model in ("stories", "summaries"):
        assert answer.endswith(outputs["Python"]) and outputs["Python"] == outputs["OpenAI"]
    elif model == RECITAL:
        assert answer == outputs["OpenAI"]


def test_labels_are_those_of_the_client_with_their_scores(tab: chromium.Page, grpc: Client) -> None:
    choose(tab, "sentiment-fp32")
    run(tab)
    rows = tab.value("[...document.querySelectorAll('.bars li')].map(li => [...li.children].map(e => e.textContent))")
    best = grpc.classify("sentiment-fp32", "What a lovely garden!")
    assert rows[0][:2] == [best.label, f"{best.score:.4f}"]


def test_the_time_of_an_encoder_is_divided_by_the_statistics_of_triton(tab: chromium.Page) -> None:
    choose(tab, "sentiment-fp32")
    run(tab)
    names = tab.wait_for("[...document.querySelectorAll('.legend li')].map(li => li.textContent.split(' ')[0])")
    assert names[:4] == ["queue", "tokenize", "net", "answer"]


def test_each_part_of_the_time_has_a_colour_of_its_own(tab: chromium.Page) -> None:
    choose(tab, "sentiment-fp32")
    run(tab)
    colours = "[...document.querySelectorAll('#time .swatch')].map(part => getComputedStyle(part).backgroundColor)"
    shown = tab.wait_for(f"{colours}.length && {colours}")
    assert len(set(shown)) == len(shown) and "rgba(0, 0, 0, 0)" not in shown


def test_a_model_of_two_precisions_keeps_its_name_in_one_line(tab: chromium.Page) -> None:
    tab.resize(1400)
    link = "document.querySelector('#models a[href$=sentiment-fp32]')"
    height = tab.value(f"{link}.firstChild.getBoundingClientRect().height")
    tab.value(f"{link}.lastChild.textContent = 'fp32 CPU, fp16 GPU'")
    assert tab.value(f"{link}.firstChild.getBoundingClientRect().height") == height < 30
    assert tab.value(f"{link}.scrollWidth <= {link}.clientWidth")
    long = "a" * 128
    tab.value(f"{link}.firstChild.textContent = {long!r}")
    assert tab.value(f"{link}.scrollWidth <= {link}.clientWidth")
    tab.value(f"({link}.firstChild.textContent = 'sentiment-fp32', {link}.lastChild.textContent = 'fp32')")


def test_marks_stand_at_the_characters_of_the_entities_and_markup_stays_text(tab: chromium.Page, grpc: Client) -> None:
    choose(tab, "entities-fp32")
    fill(tab, "inputs", HOSTILE)
    run(tab)
    found = grpc.label_tokens("entities-fp32", HOSTILE).entities
    marked = tab.value("[...document.querySelectorAll('#answer mark')].map(mark => mark.firstChild.data)")
    assert marked == [HOSTILE[entity.start : entity.end] for entity in found] and found
    tab.value("document.querySelectorAll('#answer .tag').forEach(tag => tag.remove())")
    assert tab.value("document.querySelector('#answer .passage').textContent") == HOSTILE
    assert tab.value("document.querySelectorAll('#answer img, #answer script').length") == 0


def test_stop_ends_a_stream_and_frees_its_slot(tab: chromium.Page, dialects: ServeProcess) -> None:
    choose(tab, RECITAL)
    for name, value in ENDLESS.items():
        fill(tab, f"parameters.{name}", str(value))
    tab.value("document.querySelector('#run').click()")
    tab.wait_for("document.querySelector('.written')?.textContent")
    wait_until(lambda: slots_used(dialects) == 1, "its request runs", SECONDS)
    tab.value("document.querySelector('#stop').focus()")
    tab.press("Enter")
    tab.wait_for(IDLE)
    wait_until(lambda: slots_used(dialects) == 0, "its slot is free", SOON)
    assert "stopped" in tab.value("document.querySelector('#timing').textContent")
    assert tab.value("document.activeElement.id") == "run"


def test_rankings_have_the_scores_of_the_client_best_first(tab: chromium.Page, grpc: Client) -> None:
    choose(tab, RANKER)
    texts = ["a garden", "a train", "snow"]
    fill(tab, "inputs.query", "a town")
    fill(tab, "inputs.texts", "\n".join(texts))
    run(tab)
    labels = tab.value("[...document.querySelectorAll('.bars .label')].map(label => label.textContent)")
    assert labels == [texts[rank.index] for rank in grpc.rank(RANKER, "a town", texts)]


def test_the_api_key_appears_nowhere_on_the_page(tab: chromium.Page) -> None:
    choose(tab, "sentiment-fp32")
    run(tab)
    assert API_KEY not in tab.value("document.documentElement.outerHTML")
    assert API_KEY not in "".join(codes(tab).values())
    assert tab.value("document.querySelector('#key').value + document.cookie") == ""
    assert API_KEY not in tab.value("JSON.stringify({ ...localStorage })")


def test_what_the_server_refuses_is_shown_in_its_words(tab: chromium.Page) -> None:
    choose(tab, "stories")
    fill(tab, "parameters.top_p", "7")
    tab.value("document.querySelector('#run').click()")
    assert "top_p is 7" in tab.wait_for(ERROR)
    tab.logged.clear()  # the answer 400


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_window_and_every_control_has_a_label(width: int, tab: chromium.Page) -> None:
    tab.resize(width)
    try:
        for model in ("sentiment-fp32", "similar-int8", "stories"):
            choose(tab, model)
            run(tab)
            assert tab.value("document.documentElement.scrollWidth") <= width, model
            unlabelled = "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length)"
            assert tab.value(f"{unlabelled}.map(e => e.id)") == [], model
    finally:
        tab.resize(1400)


def test_a_text_that_will_be_cut_is_marked_before_it_is_sent(tab: chromium.Page, grpc: Client) -> None:
    choose(tab, "sentiment-fp32")
    cut = (length for length in range(1, 600) if grpc.classify("sentiment-fp32", "a " * length).truncated_tokens)
    longest = next(cut) - 1
    fill(tab, "inputs", "a " * (longest + 7))
    tab.wait_for("!document.querySelector('#cut').hidden")
    assert "the last 13 characters" in str(tab.value("document.querySelector('#cut').textContent"))
    fill(tab, "inputs", "a " * longest)
    tab.wait_for("document.querySelector('#cut').hidden")


def test_the_models_are_searched_and_the_last_one_is_opened_again(tab: chromium.Page, dialects: ServeProcess) -> None:
    choose(tab, "similar-int8")
    tab.command("Page.navigate", url=f"{dialects.http_url}/?again")
    tab.wait_for("location.search && document.querySelector('#name')?.textContent === 'similar-int8'")
    tab.value("document.querySelector('#search').value = 'SIMILAR feature'")
    tab.value("(document.querySelector('#search').dispatchEvent(new Event('input')), 0)")
    shown = "[...document.querySelectorAll('#models a')].filter(link => link.offsetParent).map(link => link.hash)"
    assert tab.value(shown) == ["#model=similar-int8"]


def test_a_link_to_an_unknown_model_shows_a_notice(tab: chromium.Page) -> None:
    tab.value("location.hash = '#model=senti%20ment'")
    tab.wait_for("document.querySelector('#model').hidden")
    assert "no model senti ment." in tab.value("document.querySelector('#notice').textContent")
    assert tab.value("document.querySelectorAll('#models a[aria-current]').length") == 0
    choose(tab, "sentiment-fp32")
    assert tab.value("document.querySelector('#notice').hidden && !document.querySelector('#model').hidden")


def test_the_pages_of_the_server_are_linked_where_they_need_no_key(tab: chromium.Page) -> None:
    shown = "[...document.querySelectorAll('.links a')].filter(e => !e.hidden).map(e => e.textContent)"
    assert tab.value(shown) == ["API"]


def test_the_theme_is_changed_by_a_button_and_kept(tab: chromium.Page) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.value(paper)
    tab.value("document.querySelector('#theme').click()")
    assert tab.value(paper) != light
    assert tab.value("localStorage.getItem('hfx-theme')") == "dark"
    tab.value("document.querySelector('#theme').click()")
    assert tab.value(paper) == light
    tab.value("localStorage.clear()")


def test_a_classifier_shows_all_labels_unless_a_number_is_given(tab: chromium.Page) -> None:
    choose(tab, "sentiment-fp32")
    assert "top_k" not in codes(tab)["curl"]
    run(tab)
    assert tab.value("document.querySelectorAll('#answer .label').length") == 3


def test_a_long_text_is_wrapped_in_the_code(tab: chromium.Page) -> None:
    choose(tab, "sentiment-fp32")
    fill(tab, "inputs", "a lovely garden " * 60)
    assert tab.value("document.querySelector('pre').scrollWidth <= document.querySelector('pre').clientWidth")


def test_the_docs_page_lists_the_fields_of_each_body(dialects: ServeProcess, tmp_path: Path) -> None:
    with chromium.tab(tmp_path) as page:
        page.command("Page.navigate", url=f"{dialects.http_url}/docs")
        page.wait_for("document.querySelectorAll('#paths details').length > 20")
        completion = (
            "[...document.querySelectorAll('details')].find(e => e.textContent.includes('POST /v1/completions'))"
        )
        text = page.value(f"{completion}.textContent")
        assert "promptstring or list of string or list of integer" in text and "min_tokens" in text
        assert "OpenAI" in page.value(f"{completion}.parentElement.querySelector('h2').textContent")
        assert page.logged == []
