"""Batch jobs: small input files, the command line, and the core in this process with an open model."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hfx import names
from hfx.answering import Model, Request
from hfx.batch.create import JobSpec, create, prepare
from hfx.batch.folder import JOB, Folder
from hfx.batch.job import Output, model_record
from hfx.batch.models import Repository, open_model
from hfx.batch.options import RunOptions, Threshold
from hfx.batch.plan import PlannedJob
from hfx.batch.publish import publish
from hfx.batch.rows import labels_of
from hfx.batch.scored_parts import score_chunks
from hfx.cli import main
from hfx.errors import RequestRefused
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.names import Task
from tests.rigs.checkpoints.published import export_zoo

CLASSIFIER, GENERATOR = "sentiment-int8-rows", "stories"
HFX = (sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())", "batch")
TREE = Path(__file__).parents[3]


@dataclass(frozen=True)
class Opened:
    """A model that is open in this process, and its repository, if any."""

    model: Model
    repository: Path | None = None

    def plan(self, folder: Path, inputs: Sequence[str | Path], **changes: Any) -> PlannedJob:
        """Return a planned job; `changes` are fields of JobSpec and Output, and `size`, the rows of a mini-batch."""
        settings: Request = changes.pop("settings", {})
        output = Output("append_row", changes.pop("file_name", "predictions.csv"), (), changes.pop("prefix", ""))
        spec = JobSpec(
            name=self.model.metadata.name,
            inputs=[str(each) for each in inputs],
            columns=changes.pop("columns", ["text"]),
            settings=settings,
            seed=changes.pop("seed", 0),
            output=output,
            mini_batch_size=changes.pop("size", None),
        )
        job_folder = Folder(folder)
        prepare(job_folder)
        place = self.repository and str(self.repository)
        record = model_record(self.model, labels_of(self.model, settings))
        options = RunOptions(repository=place or "")
        return create(job_folder, replace(spec, **changes), self.model.task, options, lambda: record)

    def run(self, folder: Path, inputs: Sequence[str | Path], **changes: Any) -> bytes:
        """Return the bytes of the output of a job that runs undisturbed."""
        planned = self.plan(folder, inputs, **changes)
        self.score(planned)
        publish(planned, Threshold(-1))
        return (folder / planned.job.output.file_name).read_bytes()

    def go_on(self, folder: Path, inputs: Sequence[str | Path], **changes: Any) -> None:
        """Begin or resume a job, as `hfx batch run` and `resume` do, until its output exists."""
        job_folder = Folder(folder)
        with job_folder.locked():
            if not job_folder.has(JOB):
                self.plan(folder, inputs, **changes)
            planned = PlannedJob.read(job_folder)
            self.score(planned)
            publish(planned, Threshold(-1))

    def score(self, planned: PlannedJob, chunks: Sequence[int] | None = None, **options: Any) -> None:
        """Write the parts of the `chunks` with these numbers (None: of those without a part)."""
        numbers = [chunk.number for chunk in planned.missing()] if chunks is None else chunks
        for _ in score_chunks(planned, numbers, self.model, **options):
            pass


def echo() -> Opened:
    """Return a model that labels a text by its first letter, without a graph, for tests of files alone."""

    def answer(request: Request) -> dict[str, Any]:
        text = request[names.TEXT_INPUT][0]
        if not text:
            raise RequestRefused("The text is empty.")
        labels = ["vowel", "other"] if text[0] in "aeiouAEIOU" else ["other", "vowel"]
        return {names.LABEL: labels, names.SCORE: [0.75, 0.25], names.TRUNCATED_TOKENS: 0}

    metadata = ModelMetadata("echo", (TensorMetadata(names.TEXT_INPUT, "BYTES", (-1, 1)),), (), "text-classification")
    return Opened(Model(Task.TEXT_CLASSIFICATION, metadata, answer, None, at_once=4))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A temporary folder in memory if there is one: on a disk, each file takes a millisecond or more."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def batch_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a classifier and a generator, as other tests have them."""
    folder = tmp_path_factory.mktemp("batch-repository")
    export_zoo("sentiment-distilbert", folder, CLASSIFIER, "int8", "onnxruntime")
    export_zoo("stories-gpt2", folder, GENERATOR, "int8", "onnxruntime", slots=8)
    return folder


@pytest.fixture(scope="session")
def classifier(batch_repository: Path) -> Iterator[Opened]:
    with open_model(CLASSIFIER, Repository(batch_repository, threads=1)) as model:
        yield Opened(model, batch_repository)


@pytest.fixture(scope="session")
def generator(batch_repository: Path) -> Iterator[Opened]:
    with open_model(GENERATOR, Repository(batch_repository, threads=1)) as model:
        yield Opened(model, batch_repository)


@dataclass(frozen=True)
class CommandLine:
    """`hfx batch` in this process, or as a separate process; `run` and `resume` start worker processes."""

    repository: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> tuple[int, str]:
        """Return the exit code and everything that was printed."""
        code = main(["batch", *map(str, words)])
        return code, "".join(self.capsys.readouterr())

    def done(self, *words: str | Path) -> str:
        """Return the output of a command that must succeed."""
        code, text = self(*words)
        assert code == 0, text
        return text

    def value(self, *words: str | Path) -> dict[str, Any]:
        """Return the JSON of a command that must succeed."""
        code = main(["batch", *map(str, words), "--json"])
        captured = self.capsys.readouterr()
        assert code == 0, captured.err
        return dict(json.loads(captured.out))

    def new(self, name: str, output: Path, *words: str | Path) -> list[str]:
        """Return the words of a new job of the model `name`."""
        place = [] if "--url" in words else ["--repository", str(self.repository)]
        return ["run", name, *map(str, words), *place, "--output", str(output)]

    def start(self, *words: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the command as a process whose output is one pipe."""
        variables = {**os.environ, **(environment or {})}
        command = [*HFX, *map(str, words)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=TREE, env=variables
        )


@pytest.fixture
def batch(batch_repository: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(batch_repository, capsys)


def table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `rows` to a file, in the format of its ending, and return its path."""
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        columns = list(rows[0]) if rows else ["text"]
        text = csv_text([columns, *([row[name] for name in columns] for row in rows)])
    path.write_bytes(text.encode())
    return path


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV, with every cell quoted."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return file.getvalue()


def texts(path: Path, count: int) -> Path:
    """Write a file of `count` different short texts, and return its path."""
    return table(
        path, [{"id": str(n), "text": f"The {n} gardens are {'lovely' if n % 3 else 'awful'}."} for n in range(count)]
    )


def output_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an output, typed as in its format; an empty cell of a CSV is None, as in other formats."""
    data = path.read_bytes()
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in data.decode().split("\n") if line]
    found = csv.DictReader(io.StringIO(data.decode(), newline=""))
    return [{name: value or None for name, value in row.items()} for row in found]
