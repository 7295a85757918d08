"""Settings of each row of a batch job, as `hfx infer --jsonl` takes them with a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from hfx.batch.arrow import Scoring, score_batches
from hfx.batch.azure.rows import COLUMN, SETTINGS, open_scorer
from hfx.batch.models import Repository, open_model
from hfx.batch.rows import check_columns, inputs_of, own_settings, prediction_columns, row_seed
from hfx.errors import UsageError
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.names import Task
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.batch_jobs import Opened, output_rows, table

pytestmark = pytest.mark.slow
COLUMNS = ["text", "max_tokens=limit", "seed=chance", "do_sample=draws", "stop_words=stop"]
ROWS: list[dict[str, Any]] = [
    {"text": "Once upon a time", "limit": 3, "chance": 7, "draws": True, "stop": None},
    {"text": "Once upon a time", "limit": None, "chance": None, "draws": None, "stop": [".", "and"]},
    {"text": "A dog", "limit": 5, "chance": None, "draws": True, "stop": None},
    {"text": "A dog", "limit": -1, "chance": None, "draws": None, "stop": None},
    {"text": "A dog", "limit": 2, "chance": None, "draws": None, "stop": []},
]


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    repository = tmp_path_factory.mktemp("repository")
    export_zoo("nli-bart", repository, "nli-int8", "int8", "onnxruntime")
    with open_model("nli-int8", Repository(repository, threads=1)) as model:
        yield Opened(model, repository)


def written(folder: Path, ending: str) -> Path:
    """Write ROWS to a file; in CSV a cell with a list is JSON."""
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in ROWS))
        path.write_text(json.dumps(ROWS[0]) + "\n" + path.read_text().split("\n", 1)[1])  # its names are the columns
    else:
        cells = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in ROWS]
        table(path, [{k: "" if v is None else str(v) for k, v in row.items()} for row in cells])
    return path


def test_rows_of_all_formats_are_answered_by_their_own_settings(generator: Opened, tmp_path: Path) -> None:
    outputs = set()
    for ending in (".csv", ".jsonl", ".parquet"):
        source = written(tmp_path, ending)
        for size in (1, 64):
            options: dict[str, Any] = {"columns": COLUMNS, "settings": {"max_tokens": [9]}, "seed": 4}
            output = generator.run(tmp_path / f"{ending}{size}", [source], size=size, **options)
            outputs.add(output.replace(b"'[]'", b"[]"))  # which CSV has as a text
    assert len(outputs) == 1
    rows = output_rows(tmp_path / ".csv1" / "predictions.csv")
    for number, (row, given) in enumerate(zip(rows, ROWS, strict=True), 1):
        if given["limit"] == -1 or given["stop"] == []:
            assert row["generated_text"] in (None, "") and row["error"], row
            continue
        request: dict[str, Any] = {"text_input": [given["text"]], "max_tokens": [given["limit"] or 9]}
        request["seed"] = [given["chance"] or row_seed(4, number)]
        request |= {"do_sample": [True]} if given["draws"] else {}
        request |= {"stop_words": given["stop"]} if given["stop"] else {}
        answer = generator.model.answer(request)
        assert (row["generated_text"], row["error"] or None) == (answer["text_output"], None)
    assert "max_tokens" in rows[3]["error"] and "stop_words is '[]'" in rows[4]["error"]


def test_each_row_may_have_its_own_candidate_labels(nli: Opened, tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [
        {"text": "A goal!", "labels": "sports,food", "all": "false"},
        {"text": "A goal!", "labels": '["a, b", "c", "sports"]', "all": "true"},
        {"text": "A goal!", "labels": "", "all": ""},
        {"text": "", "labels": "sports", "all": "maybe"},
        {"text": "A goal!", "labels": "sports", "all": "maybe"},
    ])  # fmt: skip
    nli.run(tmp_path / "job", [source], columns=["text", "candidate_labels=labels", "multi_label=all"])
    rows = output_rows(tmp_path / "job" / "predictions.csv")
    for row, labels, multi in ((rows[0], ["sports", "food"], False), (rows[1], ["a, b", "c", "sports"], True)):
        request = {"text_input": ["A goal!"], "candidate_labels": labels, "multi_label": [multi]}
        answer = nli.model.answer(request)
        assert row["label"] == answer["label"][0]
        assert json.loads(row["scores"]) == pytest.approx(dict(zip(answer["label"], answer["score"], strict=True)))
    assert "candidate_labels" in rows[2]["error"]
    assert rows[3]["error"] == "The column 'text' is empty."
    assert rows[4]["error"] == "Column 'all': multi_label is 'maybe'."
    fixed = {"candidate_labels": ["sports", "food"]}
    nli.run(tmp_path / "fixed", [source], columns=["text", "candidate_labels=labels"], settings=fixed)
    row = output_rows(tmp_path / "fixed" / "predictions.csv")[2]
    assert {*json.loads(row["scores"])} == {"sports", "food"}  # the job's, for a row without its own


def test_azure_and_arrow_take_the_same_settings_as_a_job(generator: Opened, tmp_path: Path) -> None:
    source, settings = written(tmp_path, ".parquet"), {"max_tokens": [9]}
    generator.run(tmp_path / "job", [source], columns=COLUMNS, settings=settings)
    expected = [row["generated_text"] or None for row in output_rows(tmp_path / "job" / "predictions.csv")]
    assert generator.repository is not None
    variables = {COLUMN: ",".join(["text_input=text", *COLUMNS[1:]]), SETTINGS: json.dumps(settings)}
    scorer = open_scorer(generator.repository, generator.model.metadata.name, variables)
    with scorer.stack:
        found = [json.loads(line)["generated_text"] for line in scorer.lines([str(source)])]
    assert found == expected
    task = generator.model.task
    scoring = Scoring(task, inputs_of(task, COLUMNS, settings), settings)
    batches = pa.Table.from_pylist(ROWS).to_batches()
    scored = [row for batch in score_batches(generator.model, batches, scoring) for row in batch.to_pylist()]
    greedy = [at for at, row in enumerate(ROWS) if not row["draws"]]  # seeds of a table's rows come from their texts
    assert [scored[at]["generated_text"] for at in greedy] == [expected[at] for at in greedy]
    assert scored[0]["generated_text"] == expected[0]  # it has its own seed


def test_whole_numbers_beside_nulls_of_pandas_are_taken() -> None:
    columns = {"max_tokens": "limit", "temperature": "heat", "seed": "chance"}
    assert own_settings({"max_tokens": 3.0, "temperature": 2.0, "seed": float("nan")}, columns) == {
        "max_tokens": [3],
        "temperature": [2.0],
    }
    with pytest.raises(UsageError, match=r"Column 'limit': max_tokens is 3\.5"):
        own_settings({"max_tokens": 3.5}, columns)


def test_the_tokens_of_a_prompt_are_a_column(generator: Opened) -> None:
    settings = {"max_tokens": [2], "prompt_logprobs": [1]}
    column = prediction_columns(Task.TEXT_GENERATION, (), settings)[-1]
    tokens = json.loads(str(column.cell(generator.model.answer({"text_input": ["A dog"], **settings}))))
    assert column.name == "prompt_tokens" and "".join(token["text"] for token in tokens) == "A dog"
    assert [len(token["top"]) for token in tokens] == [0, *[1] * (len(tokens) - 1)]


def test_entities_may_have_their_labels_and_threshold_in_columns() -> None:
    columns = ["text", "candidate_labels=labels", "threshold=t", "nested=n"]
    own = inputs_of(Task.TOKEN_CLASSIFICATION, columns, {})
    model = ModelMetadata("m", tuple(TensorMetadata(name, "BYTES", (-1, -1)) for name in own), ())
    check_columns(own, model)
    cells = {"candidate_labels": '["a, b", "c"]', "threshold": "0.25", "nested": "true"}
    expected = {"candidate_labels": ["a, b", "c"], "threshold": [0.25], "nested": [True]}
    assert own_settings(cells, own, textual=True) == expected
    assert [each.name for each in prediction_columns(Task.TOKEN_CLASSIFICATION, (), {}, own=own)] == ["entities"]
    with pytest.raises(UsageError, match="needs labels"):
        check_columns(inputs_of(Task.TOKEN_CLASSIFICATION, ["text"], {}), model)


def test_invalid_columns_of_settings_are_refused(generator: Opened) -> None:
    for task, columns, words in (
        (Task.TEXT_GENERATION, ["logprobs=n"], "decides the columns of the output"),
        (Task.TEXT_GENERATION, ["prompt_logprobs=n"], "decides the columns of the output"),
        (Task.TEXT_CLASSIFICATION, ["top_k=n"], "decides the columns of the output"),
        (Task.TEXT_GENERATION, ["max_tokens=a", "max_tokens=b"], "two columns for max_tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            inputs_of(task, ["text", *columns], {})
    own = inputs_of(Task.FEATURE_EXTRACTION, ["text", "dimensions=n"], {})
    with pytest.raises(UsageError, match=r"no input dimensions, .* 'n'"):
        check_columns(own, generator.model.metadata)
