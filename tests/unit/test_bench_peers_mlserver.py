"""What MLServer is given and says: files that it can read, posts on kept connections, answers row by row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import CaseFailed, OpenFailed
from bench.peers.cases import Wanted
from bench.peers.mlserver_client import answer, request, rows
from bench.peers.mlserver_files import readable
from bench.peers.model import Reading
from bench.peers.posts import PostFailed, connected, post_request

DECODER = Reading("text-generation", "decoder", "", 100)
CLASSIFIER = Reading("text-classification", "classifier", "", 100)


def checkpoint(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any], **settings: Any) -> Path:
    folder.mkdir()
    for name, values in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    (folder / "model.safetensors").write_text("weights")
    (folder / "vocab.json").write_text("{}")
    return folder


def bpe(**ids: int) -> dict[str, Any]:
    return {"added_tokens": [{"content": "<end>", "id": 0}], "model": {"vocab": ids, "merges": [["a", "b"], "c d"]}}


def test_a_decoder_for_exactly_so_many_tokens(tmp_path: Path) -> None:
    config = {"vocab_size": 50, "eos_token_id": 0, "bos_token_id": 0}
    source = checkpoint(tmp_path / "source", config, bpe(a=1, ab=9), pad_token="<end>")
    readable(source, tmp_path / "target", Wanted(50, 4, 3), "bf16")
    target = {path.name: path for path in (tmp_path / "target").iterdir()}
    assert "vocab.json" not in target
    assert target["model.safetensors"].is_symlink()
    settings = json.loads(target["generation_config.json"].read_text())
    assert settings["max_new_tokens"] == settings["min_new_tokens"] == 50
    assert (settings["num_beams"], settings["no_repeat_ngram_size"]) == (4, 3)
    assert settings["eos_token_id"] == 49 and settings["pad_token_id"] == 9  # id 0 is taken for none
    assert json.loads(target["config.json"].read_text())["torch_dtype"] == "bfloat16"
    assert json.loads(target["tokenizer.json"].read_text())["model"]["merges"] == ["a b", "c d"]
    tokenizer = json.loads(target["tokenizer_config.json"].read_text())
    assert (tokenizer["pad_token"], tokenizer["padding_side"]) == ("ab", "left")
    assert json.loads((source / "tokenizer_config.json").read_text()) == {"pad_token": "<end>"}  # as it was


def test_an_encoder_decoder_keeps_its_start_and_prefix(tmp_path: Path) -> None:
    tasks = {"summarization": {"prefix": "summarize: ", "min_length": 30, "num_beams": 4}}
    config = {"is_encoder_decoder": True, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    unigram = {"added_tokens": [], "model": {"vocab": [["<pad>", 0.0], ["</s>", 0.0], ["a", -1.0]]}}
    source = checkpoint(tmp_path / "source", {**config, "task_specific_params": tasks}, unigram, pad_token="<pad>")
    readable(source, tmp_path / "target", Wanted(8), "fp32")
    found = json.loads((tmp_path / "target" / "config.json").read_text())
    assert found["task_specific_params"] == {"summarization": {"prefix": "summarize: "}}
    settings = json.loads((tmp_path / "target" / "generation_config.json").read_text())
    assert (settings["decoder_start_token_id"], settings["eos_token_id"], settings["pad_token_id"]) == (0, 1, 0)


def test_a_classifier_keeps_its_settings(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", {"vocab_size": 50}, bpe(a=1), pad_token="a")
    readable(source, tmp_path / "target", None, "fp32")
    assert not (tmp_path / "target" / "generation_config.json").exists()
    assert json.loads((tmp_path / "target" / "tokenizer_config.json").read_text())["pad_token"] == "a"


def test_a_checkpoint_without_a_fast_tokenizer(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", {}, bpe())
    (source / "tokenizer.json").unlink()
    with pytest.raises(OpenFailed, match=r"needs tokenizer\.json"):
        readable(source, tmp_path / "target", None, "fp32")


def test_requests_and_answers() -> None:
    tensor = json.loads(request(["a", "b"]))["inputs"][0]
    assert (tensor["name"], tensor["shape"], tensor["data"]) == ("array_inputs", [2], ["a", "b"])

    def body(*each: object) -> bytes:
        return json.dumps({"outputs": [{"data": [json.dumps(one) for one in each]}]}).encode()

    texts = rows(body([{"generated_text": "a and more"}], [{"generated_text": "b it is"}]))
    found = answer(texts, ["a", "b"], Wanted(5), DECODER)
    assert found.texts == (" and more", " it is")
    assert found.written == (5, 5)
    labels = rows(body({"label": "good", "score": 0.9}))
    assert answer(labels, ["a"], None, CLASSIFIER).labels == ("good",)
    with pytest.raises(CaseFailed, match="1 answers to 2 texts"):
        answer(labels, ["a", "b"], None, CLASSIFIER)


async def served(answers: list[bytes], ask: Callable[[str], Awaitable[list[bytes]]]) -> tuple[list[bytes], list[bytes]]:
    """What `ask(address)` gives with a server that says `answers` in turn, and what that server got."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            got.append(await reader.readexactly(length))
            for part in answers.pop(0).split(b"|"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await ask(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"), got


def test_posts_on_one_connection() -> None:
    async def ask(address: str) -> list[bytes]:
        connection = await connected(address)
        return [await connection.post(post_request(address, "/x", body)) for body in (b"one", b"two")]

    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe|llo",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n|2\r\nde\r\n0\r\n\r\n",
    ]
    assert asyncio.run(served(answers, ask)) == ([b"hello", b"abcde"], [b"one", b"two"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 500 Error\r\nContent-Length: 21\r\n\r\nTraceback\nValueError!!", "500 error: ValueError!!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", "the connection ended"),
    ],
)
def test_posts_that_fail(said: bytes, words: str) -> None:
    async def ask(address: str) -> list[bytes]:
        connection = await connected(address)
        return [await asyncio.wait_for(connection.post(post_request(address, "/x", b"one")), 5)]

    with pytest.raises(PostFailed, match=words):
        asyncio.run(served([said], ask))
