"""`hfx infer` and batch jobs on encoders behind a real Triton: every task has the answers of --local."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.cli.serve import example
from hfx.triton import EmbeddedServer
from tests.rigs.files.batch_jobs import CommandLine, output_rows, table

pytestmark = pytest.mark.triton

LINES: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    "sentiment-int8": ([], [{"text_input": "Lovely!"}, {"text_input": "Bad.", "top_k": 2, "id": 1}]),
    "entities-int8": ([], [{"text_input": "Ada lives in Rome."}, {"text_input": ""}]),
    "answers-int8": (
        ["--context", "Ada came."],
        [
            {"question": "Who?"},
            {"question": "Who?", "context": "Ben left."},
            {"question": "Who?", "context": "Ben left. " * 200, "top_k": 3, "max_answer_len": 2, "doc_stride": 0},
            {"question": "Who?", "top_k": 100, "handle_impossible_answer": True},
        ],
    ),
    "nli-int8": (
        ["--labels", "sports,food"],
        [{"text_input": "A goal!"}, {"text_input": "A goal!", "candidate_labels": ["a", "b"], "multi_label": True}],
    ),
    "similar-int8": ([], [{"text_input": "A garden."}, {"text_input": "A house."}]),
}


def rows(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> list[dict[str, Any]]:
    code = main(["infer", *words, "--jsonl", "--input", str(file)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return [json.loads(line) for line in captured.out.splitlines()]


@pytest.mark.parametrize("name", LINES)
def test_json_lines_have_the_same_answers_from_a_server_as_locally(
    name: str, repository: Path, server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, lines = LINES[name]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    here = rows(capsys, file, name, *words, "--local", "--repository", str(repository))
    for url in (server.grpc_url, server.http_url):
        for through, expected in zip(rows(capsys, file, name, *words, "--url", url), here, strict=True):
            assert through.keys() == expected.keys()
            for key, value in expected.items():
                if key == "answers":
                    value = [each | {"score": pytest.approx(each["score"], abs=1e-5)} for each in value]
                assert through[key] == (pytest.approx(value, abs=1e-5) if key in ("score", "embedding") else value)
    assert [row.get("id") for row in here] == [line.get("id") for line in lines]


@pytest.mark.parametrize("name", LINES)
def test_the_example_command_that_a_server_prints_works(name: str, repository: Path, server: EmbeddedServer) -> None:
    assert main(shlex.split(example(repository, name, server.grpc_url))[1:]) == 0


def test_streaming_and_local_timeouts_are_refused_for_encoders(
    repository: Path, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    places = (["--url", server.grpc_url], ["--local", "--repository", str(repository)])
    for place in places:
        assert main(["infer", "sentiment-int8", "Lovely!", "--stream", *place]) == 2
        assert "can't be streamed" in capsys.readouterr().err
    assert main(["infer", "sentiment-int8", "Lovely!", "--timeout", "5", *places[1]]) == 2
    assert "timeout" in capsys.readouterr().err


def test_a_text_above_the_limit_is_refused_alone(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text_input": text}) + "\n" for text in ("Lovely!", "x" * 16_777_217, "Bad.")))
    assert main(
        ["infer", "sentiment-int8", "--jsonl", "--input", str(file), "--local", "--repository", str(repository)]
    )
    first, refused, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert "label" in first and "label" in last
    assert refused["error"]["type"] in ("RequestRefused", "UsageError")


@pytest.mark.parametrize(("name", "words"), [("nli-int8", ("--labels", "sports,food")), ("answers-int8", ())])
def test_jobs_refuse_rows_with_the_same_words_locally_and_on_a_server(
    name: str,
    words: tuple[str, ...],
    repository: Path,
    server: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    batch = CommandLine(repository, capsys)
    rows = [{"text": text, "q": "Who?"} for text in ("Ada came.", "", "a" * 200_000, "\0", "Ben left.")]
    source = table(tmp_path / "a.jsonl", rows)
    columns = ("--column", "text") if words else ("--column", "question=q", "--column", "context=text")
    here, served = tmp_path / "here", tmp_path / "served"
    batch.done(*batch.new(name, here, source, *columns, *words))
    batch.done(*batch.new(name, served, source, *columns, *words, "--url", server.grpc_url))
    errors = [[row["error"] for row in output_rows(folder / "predictions.csv")] for folder in (here, served)]
    assert errors[0] == errors[1] and any(errors[0])
