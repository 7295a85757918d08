"""Texts on which the tokenizers library panics: pyo3's PanicException is not a subclass of Exception."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hfx.errors import RequestRefused
from hfx.local.encoder import LocalModel
from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.servers.serve_process import infer, post
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton

# Two white-space tokens: one strips the spaces before it, one those behind it.
SPACES = ({"content": " ", "lstrip": True}, {"content": "\t", "rstrip": True}, {"content": "  ", "rstrip": True})
USUAL = "a lovely garden"


def break_tokenizer(path: Path) -> str:
    """Replace other tokens in the tokenizer.json at `path` by SPACES; return a text on which it panics."""
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary, merges = content["model"]["vocab"], content["model"].get("merges", [])
    last = ["".join(merge) for merge in merges[-len(SPACES) :]] or list(vocabulary)[-len(SPACES) :]
    del merges[-len(SPACES) :]
    ids = [vocabulary.pop(text) for text in last]
    vocabulary |= {token["content"]: id_ for token, id_ in zip(SPACES, ids, strict=True)}
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"] += [{"id": id_, **usual, **token} for token, id_ in zip(SPACES, ids, strict=True)]
    content["added_tokens"].sort(key=lambda token: token["id"])
    path.unlink()
    path.write_text(json.dumps(content), encoding="utf-8")
    tokenizer, draw = Tokenizer.from_file(str(path)), random.Random(1)
    for _ in range(3000):
        text = "x" + "".join(draw.choices(" \tx", k=draw.randrange(1, 9)))
        try:
            tokenizer.encode_batch([text])
        except Exception:
            raise
        except BaseException:
            return text
    raise AssertionError("no text panics")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, dict[str, str]]]:
    """A server of an encoder and a generator, and for each model a text on which its tokenizer panics."""
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", folder, "sentiment", "fp32", "onnxruntime")
    export_zoo("stories-gpt2", folder, "stories", "fp32", "onnxruntime", slots=8)
    texts = {
        "sentiment": break_tokenizer(folder / "sentiment_tokenize" / "1" / "tokenizer.json"),
        "stories": break_tokenizer(folder / "stories_stream" / "1" / "tokenizer.json"),
    }
    with started(folder, steps="python") as server:
        yield server, texts


@pytest.mark.parametrize("path", ["stories/infer", "stories/generate", "stories_stream/generate"])
def test_a_generators_request_is_answered_with_an_error_that_is_logged_once(
    broken: tuple[EmbeddedServer, dict[str, str]], path: str
) -> None:
    server, texts = broken

    def logged() -> int:
        return server.log.read_text().count("a request ended with an unexpected error")

    before = logged()
    body = {"text_input": texts["stories"], "max_tokens": 2}
    if path.endswith("infer"):
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [texts["stories"]]}
        body = {"inputs": [tensor]}
    status, answer = post(f"{server.http_url}/v2/models/{path}", body, 30)
    assert status >= 400
    assert "[hfx:FAILED] an unexpected PanicException" in answer["error"]
    assert "/" not in answer["error"].partition("[hfx:FAILED]")[2]
    assert infer(server.http_url, "stories", "Once upon a time", max_tokens=2)
    deadline = time.monotonic() + 10  # the line may reach the log after the answer
    while logged() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert logged() == before + 1


def test_an_encoders_request_is_answered_and_its_neighbours_have_their_answers(
    broken: tuple[EmbeddedServer, dict[str, str]],
) -> None:
    server, texts = broken

    def ask(*rows: str) -> tuple[int, dict[str, object]]:
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [len(rows), 1], "data": list(rows)}
        return post(f"{server.http_url}/v2/models/sentiment/infer", {"inputs": [tensor]}, 30)

    status, answer = ask(texts["sentiment"])
    assert status >= 400 and "PanicException" in str(answer["error"])
    assert ask(USUAL, texts["sentiment"])[0] >= 400
    assert ask(USUAL, USUAL)[0] == 200


def test_a_model_in_this_process_refuses_the_text_alone(
    broken: tuple[EmbeddedServer, dict[str, str]], tmp_path: Path
) -> None:
    server, texts = broken
    folder = Path(shutil.copytree(server.repository, tmp_path / "repository"))
    encoder = LocalModel.open(folder, "sentiment")
    refused, answered = encoder.answer_each([{"text_input": texts["sentiment"]}, {"text_input": USUAL}])
    assert isinstance(refused, RequestRefused) and "PanicException" in refused.message
    assert not isinstance(answered, RequestRefused)
