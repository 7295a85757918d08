"""Embedders and cross-encoders with prompts answer as sentence-transformers, through every interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.batch.models import Repository, open_model
from hfx.cli import main
from hfx.client import AsyncClient, Client
from hfx.deploy.server_check import Dialect, dialect_infer
from hfx.errors import RequestRefused, UsageError
from hfx.exporter.verify import open_published
from tests.rigs.checkpoints.published import export_random
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    furthest,
    normalize,
    pooling,
    write_cross_encoder,
    write_embedder,
)
from tests.rigs.clients.dialect_calls import call
from tests.rigs.files.batch_jobs import Opened, output_rows, table
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:A text is longer")]

PROMPTS = {"query": "the dog: ", "passage": "a cat? "}
SETTINGS = {"prompts": PROMPTS, "default_prompt_name": "passage"}
PROMPTED, PLAIN = "prompted", "plain"
RECIPES = {
    PROMPTED: Recipe((pooling("mean", "max", include_prompt=False), dense(2 * HIDDEN, 24), normalize), SETTINGS),
    PLAIN: Recipe((pooling("weightedmean", "lasttoken"), dense(2 * HIDDEN, 24, "GELU"), normalize)),
}
SCORER = {"module_output_name": "scores"}
RANKERS = {
    "pooled-ranker": Recipe((pooling("max", "cls"), dense(2 * HIDDEN, 1, "Identity", **SCORER))),
    "prompted-ranker": Recipe((), {"prompts": {"query": "the dog: "}, "max_length": 30}),
}
SHORT = list(TEXTS[:5])


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The library's models, and their folders."""
    folders = {name: tmp_path_factory.mktemp(name) for name in (*RECIPES, *RANKERS)}
    made = {name: write_embedder(folders[name], recipe) for name, recipe in RECIPES.items()}
    made |= {name: write_cross_encoder(folders[name], recipe) for name, recipe in RANKERS.items()}
    return {name: (model, folders[name] / "model") for name, model in made.items()}


@pytest.fixture(scope="module")
def repository(references: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name, (_, checkpoint) in references.items():
        export_random(checkpoint, folder, name=name, dimensions=name == PROMPTED)
    return folder


@pytest.fixture(scope="module")
def client(served: ServeProcess) -> Iterator[Client]:
    with Client(served.ready["grpc_url"]) as opened:
        yield opened


def test_every_model_has_a_compiled_tokenizer_and_is_one_native_model(repository: Path, served: ServeProcess) -> None:
    files = {name: repository / name / "hfx.json" for name in (*RECIPES, *RANKERS)}
    made = {name: json.loads(file.read_text())["choices"]["tokenizer"] for name, file in files.items()}
    assert all(each["compiled"] for each in made.values()), made
    assert not {f"{name}_net" for name in files} & set(served.ready["models"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (PLAIN, {}),
        *((PROMPTED, options) for options in ({}, {"prompt_name": "query"}, {"prompt": "in "}, {"prompt": ""})),
    ],
)
def test_every_interface_gives_the_vectors_of_encode(
    name: str,
    options: dict[str, str],
    client: Client,
    served: ServeProcess,
    references: dict[str, Any],
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = np.stack([references[name][0].encode([text], **options)[0] for text in TEXTS])
    vectors = client.embed(name, TEXTS, **options)  # type: ignore[arg-type]
    assert furthest(vectors, expected) <= 1e-5

    async def ask() -> Any:
        async with AsyncClient(served.ready["grpc_url"]) as opened:
            return await opened.embed(name, TEXTS, **options)  # type: ignore[arg-type]

    assert np.array_equal(asyncio.run(ask()), vectors)
    assert all(np.array_equal(client.embed(name, text, **options), v) for text, v in zip(TEXTS, vectors, strict=True))  # type: ignore[arg-type]
    check_dialects_and_infer(name, options, vectors[:5], served, repository, capsys)
    parameters = {"text_input": SHORT[0], "parameters": options}
    _, _, answer = call(served, f"/v2/models/{name}/generate", parameters)
    assert np.array_equal(np.float32(answer["embedding"]), vectors[0])
    source = table(tmp_path / "a.jsonl", [{"text": text} for text in SHORT])
    with open_model(name, Repository(repository, threads=1)) as model:
        chosen = {key: [value] for key, value in options.items()}
        Opened(model, repository).run(tmp_path / "job", [source], settings=chosen, file_name="out.jsonl")
    rows = output_rows(tmp_path / "job" / "out.jsonl")
    assert np.array_equal(np.float32([row["embedding"] for row in rows]), vectors[:5])


def check_dialects_and_infer(
    name: str,
    options: dict[str, Any],
    vectors: Any,
    served: ServeProcess,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that the dialects of embedders and `hfx infer` give `vectors` for the texts SHORT."""
    status, _, answer = call(served, "/v1/embeddings", {"model": name, "input": SHORT, **options})
    assert status == 200 and np.array_equal(np.float32([row["embedding"] for row in answer["data"]]), vectors)
    _, _, answer = call(served, f"/models/{name}", {"inputs": SHORT, "parameters": options})
    assert np.array_equal(np.float32(answer), vectors)
    if "prompt" not in options:
        _, _, answer = call(served, f"/models/{name}/embed", {"inputs": SHORT, "normalize": False, **options})
        assert np.array_equal(np.float32(answer), vectors)
    typed = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    assert main(["--json", "infer", name, *SHORT[2:], *typed, "--local", "--repository", str(repository)]) == 0
    printed = json.loads(capsys.readouterr().out)["results"]
    assert np.array_equal(np.float32([each["embedding"] for each in printed]), vectors[2:])


@pytest.mark.parametrize("count", [1, 7, 23, 24])
def test_every_interface_gives_the_shortened_vectors_of_encode(
    count: int,
    client: Client,
    served: ServeProcess,
    references: dict[str, Any],
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encode, shortened = references[PROMPTED][0].encode, {"truncate_dim": count, "normalize_embeddings": True}
    expected = np.stack([encode([text], prompt_name="query", **shortened)[0] for text in SHORT])
    vectors = client.embed(PROMPTED, SHORT, prompt_name="query", dimensions=count)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    alone = [client.embed(PROMPTED, text, prompt_name="query", dimensions=count) for text in SHORT]
    assert np.array_equal(alone, vectors)
    options = {"prompt_name": "query", "dimensions": count}
    check_dialects_and_infer(PROMPTED, options, vectors, served, repository, capsys)


def test_more_dimensions_than_the_vectors_have_are_refused(client: Client, served: ServeProcess) -> None:
    with pytest.raises(RequestRefused, match="dimensions is 25"):
        client.embed(PROMPTED, "a", dimensions=25)
    with pytest.raises(UsageError, match="has no input dimensions"):
        client.embed(PLAIN, "a", dimensions=7)
    for name, count, status in [(PROMPTED, 25, 400), (PROMPTED, 0, 400), (PLAIN, 7, 400), (PLAIN, 24, 200)]:
        answered, _, answer = call(served, "/v1/embeddings", {"model": name, "input": "a", "dimensions": count})
        assert answered == status and (status == 200 or "dimensions" in answer["error"]["message"])
    assert call(served, f"/models/{PROMPTED}/embed", {"inputs": "a", "dimensions": 25})[0] == 422


def test_rows_of_one_request_have_prompts_of_their_own(client: Client, references: dict[str, Any]) -> None:
    import tritonclient.grpc as triton

    named = [b"query", b"document", b"passage"]
    inputs = [triton.InferInput(name, [3, 1], "BYTES") for name in ("text_input", "prompt_name")]
    inputs[0].set_data_from_numpy(np.array([[b"a good film"]] * 3, np.object_))
    inputs[1].set_data_from_numpy(np.array([[each] for each in named], np.object_))
    found = triton.InferenceServerClient(client.url).infer(PROMPTED, inputs).as_numpy("embedding")
    encode = references[PROMPTED][0].encode
    expected = [encode(["a good film"], prompt_name=each.decode())[0] for each in named]
    assert furthest(found, expected) <= 1e-5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pooled-ranker", {}),
        *(("prompted-ranker", options) for options in ({}, {"prompt_name": "query"}, {"prompt": "a "})),
    ],
)
def test_every_interface_gives_the_scores_of_predict(
    name: str,
    options: dict[str, str],
    client: Client,
    served: ServeProcess,
    references: dict[str, Any],
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = [references[name][0].predict([(SHORT[0], text)], **options)[0] for text in TEXTS]
    ranks = client.rank(name, SHORT[0], TEXTS, **options)  # type: ignore[arg-type]
    assert [each.score for each in sorted(ranks, key=lambda each: each.index)] == pytest.approx(expected, abs=1e-5)
    few = client.rank(name, SHORT[0], SHORT, **options)  # type: ignore[arg-type]
    body = {"inputs": {"query": SHORT[0], "texts": SHORT}, "parameters": options}
    _, _, answer = call(served, f"/models/{name}", body)
    assert [(row["index"], row["score"]) for row in answer] == [(each.index, each.score) for each in few]
    scores = [each.score for each in sorted(few, key=lambda each: each.index)]
    typed = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
    place = ["--query", SHORT[0], "--local", "--repository", str(repository)]
    assert main(["--json", "infer", name, *SHORT[2:], *typed, *place]) == 0
    assert [each["score"] for each in json.loads(capsys.readouterr().out)["results"]] == scores[2:]
    source = table(tmp_path / "a.jsonl", [{"text": text} for text in SHORT])
    with open_model(name, Repository(repository, threads=1)) as model:
        chosen = {key: [value] for key, value in {"query": SHORT[0], **options}.items()}
        Opened(model, repository).run(tmp_path / "job", [source], settings=chosen, file_name="out.jsonl")
    assert np.array_equal(np.float32([row["score"] for row in output_rows(tmp_path / "job" / "out.jsonl")]), scores)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        *((PROMPTED, dialect) for dialect in ("openai", "huggingface", "tei", "mlserver")),
        *(("prompted-ranker", dialect) for dialect in ("huggingface", "tei")),
    ],
)
def test_recorded_requests_have_the_same_answers_in_every_dialect(
    name: str, dialect: Dialect, served: ServeProcess, repository: Path
) -> None:
    published = open_published(repository, name)
    requests, expected = published.recorded.requests[:24], published.recorded.answers[:24]
    assert len({json.dumps(list(request)) for request in requests}) > 1
    with Client(served.http_url, timeout=30) as http:
        answers = dialect_infer(http, dialect, published)(requests)
    output = "embedding" if name == PROMPTED else "score"
    for one, other in zip(answers, expected, strict=True):
        assert one[output] == pytest.approx(other[output], abs=1e-5)


def test_an_unknown_prompt_name_is_refused_with_the_known_ones(client: Client, served: ServeProcess) -> None:
    names = "'query', 'document', 'passage'"
    with pytest.raises(RequestRefused, match=f"prompt_name is 'x'; the model's prompts are {names}"):
        client.embed(PROMPTED, "a", prompt_name="x")
    with pytest.raises(RequestRefused, match="send one of them"):
        client.embed(PROMPTED, "a", prompt_name="query", prompt="b")
    with pytest.raises(UsageError, match="has no input prompt_name"):
        client.embed(PLAIN, "a", prompt_name="query")
    for path, body, status in [
        ("/embed", {"inputs": "a"}, 422),
        ("/tokenize", {"inputs": "a"}, 422),
        ("/v1/embeddings", {"model": PROMPTED, "input": "a"}, 400),
    ]:
        place = path if "v1" in path else f"/models/{PROMPTED}{path}"
        answered, _, answer = call(served, place, {**body, "prompt_name": "x"})
        assert answered == status and names in json.dumps(answer)
    answered, _, answer = call(served, f"/models/{PLAIN}/embed", {"inputs": "a", "prompt_name": "x"})
    assert answered == 422 and "the model has no prompts" in answer["error"]


def test_tokenize_and_usage_include_the_prompt(served: ServeProcess, references: dict[str, Any]) -> None:
    reference = references[PROMPTED][0]
    read = reference.tokenizer(PROMPTS["query"] + "a film")["input_ids"]
    body = {"model": PROMPTED, "input": "a film", "prompt_name": "query"}
    assert call(served, "/v1/embeddings", body)[2]["usage"]["prompt_tokens"] == len(read)
    _, _, [tokens] = call(served, f"/models/{PROMPTED}/tokenize", {"inputs": "a film", "prompt_name": "query"})
    assert [token["id"] for token in tokens] == read
