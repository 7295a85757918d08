"""Fill-mask through `hfx serve`, against transformers' pipeline on the same checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from hfx.batch.models import Repository, open_model
from hfx.cli import main
from hfx.client import Client, Fills
from hfx.errors import RequestRefused, UsageError
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.encoder_line import check_equal_fills
from tests.rigs.checkpoints.published import export_random
from tests.rigs.clients.dialect_calls import call
from tests.rigs.files.batch_jobs import Opened, output_rows, table
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
NAME = "masks"
ONE, TWO, UNMASKED = "the [MASK] sat in paris.", "a [MASK] film in [MASK]?", "the cat sat"
TEXTS = [ONE, TWO, "[MASK]", f"{'good ' * 40}[MASK]"]
TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_checkpoints.bert("ForMaskedLM", initializer_range=0.5)
    return tiny_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / NAME, model)


@pytest.fixture(scope="module")
def repository(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    manifest = export_random(checkpoint, folder, name=NAME)
    assert manifest.task == "fill-mask"
    return folder


@pytest.fixture(scope="module")
def pipe(checkpoint: Path) -> Any:
    return pipeline("fill-mask", model=str(checkpoint), device="cpu")


def plain(result: Fills) -> Any:
    """Return a result in the pipeline's format."""
    rows = [[asdict(each) for each in mask] for mask in result.masks]
    return rows[0] if len(rows) == 1 else rows


def check_equal(found: Any, expected: Any) -> None:
    check_equal_fills(found, expected, TOLERANCE)


@pytest.mark.parametrize("protocol", ["grpc_url", "http_url"])
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"targets": ["cat", "dogs"]}, {"top_k": 1, "targets": "cat"}])
def test_answers_equal_the_pipeline(served: ServeProcess, pipe: Any, protocol: str, settings: dict[str, Any]) -> None:
    with Client(served.ready[protocol]) as client:
        for text, result in zip(TEXTS, client.fill_mask(NAME, TEXTS, **settings), strict=True):
            check_equal(plain(result), pipe(text, **settings))


def test_a_text_without_a_mask_is_refused_alone(served: ServeProcess, pipe: Any) -> None:
    with Client(served.ready["grpc_url"]) as client:
        first, refused, last = client.each(lambda text: client.fill_mask(NAME, text), [ONE, UNMASKED, TWO])
        assert isinstance(first, Fills) and isinstance(last, Fills)
        check_equal(plain(first), pipe(ONE))
        assert isinstance(refused, RequestRefused) and "no mask token ([MASK])" in str(refused)
        with pytest.raises(UsageError, match="no targets"):
            client.fill_mask(NAME, ONE, targets=[])


@pytest.mark.parametrize(
    ("targets", "message"),
    [([""], "empty text"), (["", "cat"], "empty text"), ([], "at least one string"), (["a"] * 1001, "at most 1000")],
)
def test_empty_or_too_many_targets_are_refused(served: ServeProcess, targets: list[str], message: str) -> None:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [ONE]},
        {"name": "targets", "datatype": "BYTES", "shape": [1, len(targets)], "data": targets},
    ]
    status, _, answer = call(served, f"/v2/models/{NAME}/infer", {"inputs": inputs}, key="")
    assert status == 400 and message in answer["error"]


def test_the_hugging_face_api_answers_as_the_pipeline(served: ServeProcess, pipe: Any) -> None:
    for inputs in (ONE, TWO, [ONE], [ONE, TWO]):
        status, _, found = call(served, f"/models/{NAME}", {"inputs": inputs, "parameters": {"top_k": 2}}, key="")
        assert status == 200
        expected = pipe(inputs, top_k=2)
        for one, other in zip(found, expected, strict=True) if inputs == [ONE, TWO] else [(found, expected)]:
            check_equal(one, other)
    status, _, answer = call(served, f"/models/{NAME}", {"inputs": UNMASKED}, key="")
    assert status == 400 and "no mask token" in answer["error"]


def test_the_playground_has_fields_for_fill_mask(served: ServeProcess) -> None:
    _, _, listed = call(served, "/models", key="")
    assert "[MASK]" in listed["models"][0]["fields"][0]["value"]
    assert [field["path"] for field in listed["models"][0]["fields"]] == [
        "inputs", "parameters.top_k", "parameters.targets",
    ]  # fmt: skip


def test_the_command_line_prints_the_tokens(
    served: ServeProcess, pipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["infer", NAME, ONE, "--targets", "cat,dog", "--url", served.ready["grpc_url"]]
    assert main(arguments) == 0
    expected = pipe(ONE, targets=["cat", "dog"])
    assert capsys.readouterr().out.strip() == "\t".join(f"{e['token_str']} {e['score']:.4f}" for e in expected)
    assert main([*arguments, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["results"]
    check_equal(row["fills"][0], expected)


def test_a_batch_job_writes_the_fills_of_each_row(repository: Path, pipe: Any, tmp_path: Path) -> None:
    source = table(tmp_path / "in.jsonl", [{"text": ONE}, {"text": UNMASKED}])
    with open_model(NAME, Repository(repository, threads=1)) as model:
        Opened(model, repository).run(tmp_path / "job", [source], file_name="out.jsonl")
    filled, refused = output_rows(tmp_path / "job" / "out.jsonl")
    check_equal(filled["fills"][0], pipe(ONE))
    assert refused["fills"] is None and "no mask token" in refused["error"]
