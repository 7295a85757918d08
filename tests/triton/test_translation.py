"""A translator on a real Triton: each request names its languages, through every interface and the client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import HfxError
from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.tiny_translators import TRANSLATORS
from tests.rigs.clients.generation_requests import Answer, Ask, AskFailed
from tests.rigs.servers.generation_server import DOORS, TRANSLATOR, in_process

pytestmark = pytest.mark.triton

TEXT = "the cat sat on the mat."
MASK = "<mask>"
PAIRS = TRANSLATORS["mbart"].pairs


ASKS = [Ask(TRANSLATOR, TEXT, {"source_lang": source, "target_lang": target}) for source, target in PAIRS]


@pytest.fixture(scope="module")
def expected(writers: Path) -> list[Answer]:
    """The answers to ASKS."""
    return in_process(writers, ASKS)


def test_every_interface_takes_languages(writing_server: EmbeddedServer, expected: list[Answer]) -> None:
    assert len({answer.text for answer in expected}) > 1
    for name, door in DOORS.items():
        assert [door(writing_server, ask) for ask in ASKS] == expected, name


def test_the_client_takes_languages(writing_server: EmbeddedServer, expected: list[Answer]) -> None:
    for url in (writing_server.grpc_url, writing_server.http_url):
        with Client(url) as client:
            answers = [client.generate(TRANSLATOR, TEXT, source_lang=a, target_lang=b) for a, b in PAIRS]
        assert [answer.text for answer in answers] == [answer.text for answer in expected]


def test_a_text_with_a_token_without_embedding_is_refused_alone(
    writing_server: EmbeddedServer, expected: list[Answer]
) -> None:
    good, bad = ASKS[0], Ask(TRANSLATOR, f"the {MASK} sat.")
    for name, door in DOORS.items():
        with ThreadPoolExecutor() as pool:
            refused, *answers = [pool.submit(door, writing_server, ask) for ask in (bad, good, good)]
            with pytest.raises(AskFailed, match=f"text_input has the token '{MASK}'.*no embedding"):
                refused.result()
            assert [answer.result() for answer in answers] == [expected[0]] * 2, name
    for url in (writing_server.grpc_url, writing_server.http_url):
        with Client(url) as client, pytest.raises(HfxError, match=MASK):
            client.generate(TRANSLATOR, bad.text)


@pytest.mark.parametrize("field", ["source_lang", "target_lang"])
def test_an_unknown_language_is_refused_with_some_that_there_are(field: str, writing_server: EmbeddedServer) -> None:
    for door in DOORS.values():
        with pytest.raises(AskFailed, match=f"{field} is .*(it must be|leave)") as refused:
            door(writing_server, Ask(TRANSLATOR, TEXT, {field: "x" * 2**20}))
        assert len(refused.value.message) < 1000
