"""Encoders as one native model give the same bytes and errors as the same models with Python steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from hfx.manifest import hash_file, read_manifest, write_manifest
from hfx.names import MANIFEST_FILE
from hfx.native.build import LIBRARY
from hfx.python_backends.errors import split_prefixes
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.conftest import publish
from tests.rigs.checkpoints.published import export_random, export_zoo
from tests.rigs.checkpoints.sentence_models import (
    Recipe,
    dense,
    normalize,
    pooling,
    static_embedding,
    write_cross_encoder,
    write_embedder,
)
from tests.rigs.checkpoints.tiny_checkpoints import HIDDEN, cross_encoder, save
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.machine.tiers import few
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton

RANKER, PROMPTED, PROMPTED_RANKER, STATIC = "ranker", "prompted", "prompted-ranker", "static"
BFLOAT16 = "sentiment-bf16"
CLASSIFIERS = ("sentiment-fp32", "topics-int8", *([BFLOAT16] if HAS_NATIVE else []))
NATIVE = (*CLASSIFIERS, "nli-int8", "similar-int8", RANKER, PROMPTED, PROMPTED_RANKER, STATIC)
WRITTEN = (RANKER, PROMPTED, PROMPTED_RANKER, STATIC, BFLOAT16)  # here; the others are the repository's
PROMPTS = {"query": "the dog: ", "passage": "a cat? "}
RECIPES = {
    PROMPTED: Recipe(
        (pooling("mean", "max", include_prompt=False), dense(2 * HIDDEN, 24), normalize),
        {"prompts": PROMPTS, "default_prompt_name": "passage"},
    ),
    PROMPTED_RANKER: Recipe((), {"prompts": PROMPTS, "max_length": 30}),
}
HELD_OUT = 40
THREADS = 16


@dataclass(frozen=True)
class Sent:
    """A request: its tensors by name, rows first, and its parameters."""

    tensors: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)


def rows(*texts: str | bytes) -> Any:
    return np.array([[text.encode() if isinstance(text, str) else text] for text in texts], np.object_)


def numbers(*values: int) -> Any:
    return np.array([[value] for value in values], np.int32)


def flags(*values: bool) -> Any:
    return np.array([[value] for value in values], np.bool_)


TEXTS: tuple[str | bytes, ...] = (
    "", " ", "\t\n", "a", "I love it", "I LOVE  it\u3000!", "caf\u00e9 cafe\u0301 CAFE\u0301",
    "\u1e9b\u0323 \ufb01 \u0130",
    "a\0b", "\0", "\ufffd\ufeff", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u4f60\u597d world", "\u1100\u1161\u11a8",
    "[SEP] [CLS] [MASK] </s> <s>", "<mask>", "##a", "x" * 300, "word " * 3000, "x" * 100_000, "\u0301" * 5000,
    b"\xff", b"abc\xe9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ok \xc3", b"y" * (16 * 2**20 + 1),
)  # fmt: skip
PARAMETERS: tuple[Mapping[str, Any], ...] = (
    {"top_k": 1}, {"top_k": 2}, {"top_k": 2**40}, {"top_k": 0}, {"top_k": -3}, {"top_k": True}, {"top_k": "2"},
    {"top_k": 1.5}, {"topk": 2}, {"triton_x": 1}, {"id": "x"}, {"multi_label": True}, {"multi_label": 1},
    {"raw_scores": True}, {"dimensions": 3}, {"dimensions": 25}, {"dimensions": 0}, {"dimensions": "3"},
    {"prompt_name": "query"}, {"prompt_name": "none"}, {"prompt_name": 1}, {"prompt": "a b "}, {"prompt": ""},
    {"\u00fc" * 200: 1},
)  # fmt: skip


def of_texts() -> Iterator[Sent]:
    yield from (Sent({"text_input": rows(text)}) for text in TEXTS)
    yield from (Sent({"text_input": rows("one text")}, parameters) for parameters in PARAMETERS)
    yield Sent({"text_input": rows("short", "a longer one with more words " * 5, "")})
    yield Sent({"text_input": rows("good", b"\xff", "good")})
    yield from (Sent({"text_input": rows(example.text)}) for example in zoo.heldout("sentiment", HELD_OUT))


def of_classifiers() -> Iterator[Sent]:
    yield from of_texts()
    for k in (1, 2, 3, 100, 0, -1):
        yield Sent({"text_input": rows("one text"), "top_k": numbers(k)})
    yield Sent({"text_input": rows("one", "two"), "top_k": numbers(1, 2)})
    yield Sent({"text_input": rows("one", "two"), "top_k": numbers(2, 2)}, {"top_k": 2})
    yield Sent({"text_input": rows("one"), "top_k": numbers(2)}, {"top_k": 1})


def of_labels() -> Iterator[Sent]:
    labels = np.array([[b"travel", b"food", b"music"]], np.object_)
    yield from (Sent({"text_input": rows(text), "candidate_labels": labels}) for text in TEXTS)
    yield from (Sent({"text_input": rows("a trip"), "candidate_labels": labels}, each) for each in PARAMETERS)
    for label in ("", "  ", "one", "{}", "x" * 5000, "word " * 400, b"\xfe"):
        yield Sent({"text_input": rows("a trip"), "candidate_labels": rows(label)})
        yield Sent({"text_input": rows("a trip " * 500), "candidate_labels": rows(label)})
    for many in (True, False):
        yield Sent({"text_input": rows("a trip"), "candidate_labels": labels, "multi_label": flags(many)})
    yield Sent({"text_input": rows("a", "b"), "candidate_labels": np.repeat(labels, 2, 0), "top_k": numbers(2, 2)})
    yield Sent({"text_input": rows("a trip"), "candidate_labels": np.array([[b"same", b"same", b"other"]], np.object_)})
    yield Sent({"text_input": rows("a trip"), "candidate_labels": np.full((1, 1001), b"x", np.object_)})
    yield Sent({"text_input": rows("a", "b"), "candidate_labels": labels})


def of_queries() -> Iterator[Sent]:
    yield from (Sent({"query": rows("who"), "text_input": rows(text)}) for text in TEXTS)
    yield from (Sent({"query": rows(text), "text_input": rows("an answer of some words")}) for text in TEXTS)
    yield from (Sent({"query": rows("who"), "text_input": rows("he")}, each) for each in PARAMETERS)
    yield Sent({"query": rows("a", "b"), "text_input": rows("one", "two"), "raw_scores": flags(True, False)})


def of_prompts(sent: Iterator[Sent]) -> Iterator[Sent]:
    """Yield the requests themselves, and each with prompts."""
    for each in sent:
        yield each
        for name in PROMPTS:
            named = rows(*[name] * len(each.tensors["text_input"]))
            yield replace(each, tensors={**each.tensors, "prompt_name": named})
    yield replace(each, parameters={"prompt_name": "query"})
    for prompts in (("", "in "), ("a dog" * 50, "\u00e9"), ("x" * 5000, "[SEP]"), (b"\xff", "a"), ("cat", "[SEP] the")):
        texts = {name: rows("the cat", "s of a film") for name in each.tensors if name in ("text_input", "query")}
        yield Sent({**texts, "prompt": rows(*prompts)})
        yield Sent({**texts, "prompt": rows(*prompts)}, {"prompt": "in "})
    yield Sent({**texts, "prompt_name": rows("query", "unknown")})
    yield Sent(texts, {"prompt": "a", "prompt_name": "query"})


def of_embedders() -> Iterator[Sent]:
    yield from of_texts()
    for dimensions in ((24, 24), (5, 5), (5, 6), (25, 25), (0, 0)):
        yield Sent({"text_input": rows("one", "two three"), "dimensions": numbers(*dimensions)})


REQUESTS = {
    **dict.fromkeys((PROMPTED, STATIC), lambda: of_prompts(of_embedders())),
    PROMPTED_RANKER: lambda: of_prompts(of_queries()),
    **dict.fromkeys(CLASSIFIERS, of_classifiers),
    "nli-int8": of_labels,
    "similar-int8": of_texts,
    RANKER: of_queries,
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Servers of the same models: as native models, and with Python steps."""
    folder = tmp_path_factory.mktemp("both")
    export_random(save(tmp_path_factory.mktemp("checkpoint") / RANKER, cross_encoder()), folder, name=RANKER)
    for name, recipe in RECIPES.items():
        write = write_embedder if name == PROMPTED else write_cross_encoder
        written = tmp_path_factory.mktemp(name)
        write(written, recipe)
        export_random(written / "model", folder, name=name, dimensions=name == PROMPTED)
    static = tmp_path_factory.mktemp(STATIC)
    static_embedding(static, normalize, prompts=PROMPTS)
    export_random(static, folder, name=STATIC, dimensions=True)
    if BFLOAT16 in NATIVE:
        export_zoo("sentiment-distilbert", folder, BFLOAT16, "fp32", "native", cpu_math="bf16")
    for name in set(NATIVE).difference(WRITTEN):
        publish(name, folder)
    with started(folder) as native, started(folder, steps="python") as python:
        yield native, python


def outcome(client: triton.InferenceServerClient, name: str, sent: Sent) -> object:
    """Return the answer's tensors as bytes with their shapes, or the refusal's status and message."""
    inputs = []
    for tensor, array in sent.tensors.items():
        inputs.append(triton.InferInput(tensor, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    try:
        answer = client.infer(name, inputs, parameters=dict(sent.parameters) or None, client_timeout=60)
    except InferenceServerException as error:
        return error.status(), split_prefixes(error.message())
    made = answer.get_response().outputs
    return {each.name: (list(each.shape), answer.as_numpy(each.name).tolist(), each.datatype) for each in made}


@pytest.mark.parametrize("name", NATIVE)
def test_answers_and_refusals_are_those_of_the_python_steps(
    name: str, both: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    native, python = (triton.InferenceServerClient(server.grpc_url) for server in both)
    assert name in both[0].statistics() and f"{name}_net" not in both[0].statistics()
    assert f"{name}_net" in both[1].statistics()
    with native, python:
        for sent in REQUESTS[name]():
            assert outcome(native, name, sent) == outcome(python, name, sent), _shown(sent)


def _shown(sent: Sent) -> str:
    return f"{sent!r}"[:400]


@pytest.mark.parametrize("name", few(NATIVE, "topics-int8", "nli-int8", RANKER, PROMPTED, BFLOAT16))
def test_a_request_has_the_same_answer_alone_and_in_a_batch(
    name: str, both: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    sent = [each for each in REQUESTS[name]() if max(map(len, each.tensors["text_input"].flat)) < 20_000]
    with triton.InferenceServerClient(both[0].grpc_url) as client, ThreadPoolExecutor(THREADS) as pool:
        alone = [outcome(client, name, each) for each in sent]
        together = list(pool.map(lambda each: outcome(client, name, each), [*sent, *reversed(sent)]))
    assert together == [*alone, *reversed(alone)]


def test_native_encoders_run_without_python_processes(both: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    assert both[0].stubs() == {}
    assert len(both[1].stubs()) >= 2 * len(NATIVE)


def test_a_server_restarts_after_a_native_model_ends_its_process(tmp_path: Path) -> None:
    publish("sentiment-fp32", tmp_path)
    with started(tmp_path) as server, triton.InferenceServerClient(server.grpc_url) as client:
        expected = outcome(client, "sentiment-fp32", Sent({"text_input": rows("I love it")}))
        os.kill(server.pid, signal.SIGSEGV)
        wait_until(lambda: server.fault() != "")
        server.restart()
        assert outcome(client, "sentiment-fp32", Sent({"text_input": rows("I love it")})) == expected


def test_a_republished_model_is_served_by_its_own_library(tmp_path: Path) -> None:
    name = "sentiment-fp32"
    publish(name, tmp_path)
    asked = Sent({"text_input": rows("I love it")})
    with started(tmp_path, private=True) as server, triton.InferenceServerClient(server.grpc_url) as client:
        expected, before = outcome(client, name, asked), libraries(server)
        with (tmp_path / f"{name}_tokenize/1" / LIBRARY).open("ab") as library:
            library.write(b"of another version of hfx")
        path = tmp_path / name / MANIFEST_FILE
        manifest = read_manifest(path)
        files = {file: hash_file(tmp_path / file) for file in manifest.files}
        write_manifest(replace(manifest, files=files), path)
        server.loaded.reload(name)
        assert len(before) == 1 and len(libraries(server) - before) == 1
        assert outcome(client, name, asked) == expected


def libraries(server: EmbeddedServer) -> set[str]:
    """Return the names of the backend's libraries that the server has mapped."""
    lines = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
    return {Path(line.split()[5]).name for line in lines if "libtriton_hfx_" in line}
