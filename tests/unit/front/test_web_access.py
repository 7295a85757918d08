"""Web pages that may use the front, by requests as browsers send them and by pages in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hfx.front.settings import Settings
from hfx.triton.front import Front
from tests.rigs.clients import chromium
from tests.rigs.servers.front_rig import GENERATE, Seen, ask, fronted, upstream

FRIEND = "https://app.example"
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
BINARY = {"Content-Type": "application/octet-stream"}
OWN = {"Host": "localhost:8000", "Origin": "http://localhost:8000"}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Front, Seen]]:
    with upstream() as (port, seen), fronted(port) as front:
        yield front, seen


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    """A front that also answers as models.example, and to pages of FRIEND."""
    with upstream() as (port, _), fronted(port, hosts=["models.example"], origins=[FRIEND]) as front:
        yield front


def send(front: Front, method: str = "POST", path: str = GENERATE, **headers: str) -> tuple[int, dict[str, str]]:
    """Return status and headers of the answer to a request with `headers`, whose names have _ for -."""
    host, port = front.url.rpartition("/")[2].split(":")
    names = {"Host": f"{host}:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    body = "{}" if method == "POST" else ""
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in names.items())]
    status, answered, _ = ask(front, "\r\n".join([*lines, "", body]).encode("latin-1"))
    return status, {name.lower(): value for name, value in answered.items()}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:9", "[::1]:8000"])
def test_a_server_of_this_machine_answers_by_its_names(host: str, served: tuple[Front, Seen]) -> None:
    assert send(served[0], Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "localhost@evil.example",
     "127.0.0.1:8000:80", "[::1]evil", "", "\xff"],
)  # fmt: skip
def test_a_foreign_host_reaches_nothing_but_health(host: str, served: tuple[Front, Seen]) -> None:
    front, seen = served
    seen.requests.clear()
    answers = [
        send(front, *request, Host=host)[0] for request in (("POST", GENERATE), ("GET", "/models"), ("GET", "/"))
    ]
    assert answers == [403] * 3
    assert seen.requests == []
    assert send(front, "GET", "/health", Host=host)[0] == 200


def test_a_request_of_http_1_1_has_one_host(served: tuple[Front, Seen]) -> None:
    answers = [
        ask(served[0], f"GET /v2 HTTP/{version}\r\n{hosts}\r\n".encode())[0]
        for version, hosts in (("1.1", ""), ("1.1", "Host: localhost\r\nHost: localhost\r\n"), ("1.0", ""))
    ]
    assert answers == [400, 400, 200]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example", **JSON}, 403),
        ({"Origin": "http://localhost:3000", **JSON}, 403),
        ({"Origin": "null", **JSON}, 403),
        ({"Origin": "", **JSON}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),  # a form
        (OWN | JSON, 200),
        (OWN | BINARY, 200),
        (OWN | TEXT, 415),
        (OWN, 415),
        # Behind a proxy that names another host.
        ({"Origin": "https://models.example", "Sec-Fetch-Site": "same-origin", **JSON}, 200),
        (TEXT, 200),  # not sent by a page
    ],
)
def test_a_page_of_another_origin_is_refused(headers: dict[str, str], status: int, served: tuple[Front, Seen]) -> None:
    assert send(served[0], **headers)[0] == status


def test_a_link_of_another_page_opens_the_playground(served: tuple[Front, Seen]) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert send(served[0], "GET", "/", **link)[0] == 200


def test_what_is_allowed_by_name_is_answered_with_cors_headers(shared: Front) -> None:
    assert send(shared, Host="Models.Example:80")[0] == 200
    assert send(shared, Host="other.example")[0] == 403
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    status, headers = send(shared, "OPTIONS", Origin=FRIEND, **asked)
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, FRIEND, "Origin")
    assert headers["access-control-allow-methods"] == "GET, POST"
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert send(shared, "OPTIONS", Origin="https://evil.example", **asked)[0] == 403
    for path, expected in ((GENERATE, 200), ("/nothing", 404)):
        status, headers = send(shared, path=path, Origin=FRIEND, **JSON)
        assert (status, headers["access-control-allow-origin"]) == (expected, FRIEND)


def test_a_front_beyond_this_machine_answers_by_any_name_unless_there_are_some() -> None:
    with upstream() as (port, _):
        for allowed, status in (([], 200), (["models.example"], 403)):
            front = Front("0.0.0.0", 0, Settings(hosts=allowed))
            front.start(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")
            try:
                assert send(front, Host="10.0.0.7:8000")[0] == status
                assert send(front, Host="models.example")[0] == 200
            finally:
                front.kill()


def test_every_answer_forbids_content_type_sniffing(served: tuple[Front, Seen]) -> None:
    for method, path in (("POST", GENERATE), ("POST", "/nothing"), ("GET", "/openapi.json"), ("GET", "/")):
        assert send(served[0], method, path)[1]["x-content-type-options"] == "nosniff"


# In a browser

FETCH = """
(async () => {
  try {
    const response = await fetch(%s, {method: 'POST', body: '{}', ...%s})
    return [response.status, response.type === 'opaque' ? '' : (await response.json()).path ?? '']
  } catch (error) { return [0, error.name] }
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.tab(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a page on another server of this machine."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "index.html").write_text("<title>page</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def fetched(tab: chromium.Page, page: str, url: str, **options: object) -> list[object]:
    """Return status and answer of a POST to `url` by a script of `page`; [0, 'TypeError'] if the browser blocks it."""
    tab.command("Page.navigate", url=page)
    tab.wait_for(f"location.href.startsWith({json.dumps(page)}) && document.readyState === 'complete'")
    return list(tab.value(FETCH % (json.dumps(url), json.dumps(options))))


@chromium.needs_chromium
@pytest.mark.parametrize("options", [{}, {"mode": "no-cors"}, {"mode": "no-cors", "headers": TEXT}])
def test_a_page_of_another_origin_starts_no_inference(
    options: dict[str, object], tab: chromium.Page, stranger: str, served: tuple[Front, Seen]
) -> None:
    front, seen = served
    seen.requests.clear()
    for url in (front.url, front.url.replace("127.0.0.1", "localhost")):
        assert fetched(tab, stranger, url + GENERATE, **options) in ([0, "TypeError"], [0, ""])
    assert seen.requests == []


@chromium.needs_chromium
def test_a_name_that_is_resolved_to_this_machine_gets_no_page(tab: chromium.Page, served: tuple[Front, Seen]) -> None:
    tab.command("Page.navigate", url=f"http://evil.localhost:{served[0].url.rpartition(':')[2]}/models")
    assert "does not answer as" in tab.wait_for("document.body?.textContent")


@chromium.needs_chromium
def test_a_page_of_the_server_may_ask_it_by_each_of_its_names(tab: chromium.Page, served: tuple[Front, Seen]) -> None:
    for url in (served[0].url, served[0].url.replace("127.0.0.1", "localhost")):
        assert fetched(tab, url + "/", GENERATE, headers=JSON) == [200, GENERATE]


@chromium.needs_chromium
def test_a_page_of_an_allowed_origin_reads_the_answer(tab: chromium.Page, stranger: str) -> None:
    origin = stranger.removesuffix("/index.html")
    with upstream() as (port, _), fronted(port, origins=[origin]) as front:
        headers = JSON | {"Authorization": "Bearer x"}  # wants a preflight
        assert fetched(tab, stranger, front.url + GENERATE, headers=headers) == [200, GENERATE]
        assert fetched(tab, stranger, front.url + GENERATE) == [415, ""]
