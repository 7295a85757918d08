"""What jobs cost beside their answers: planning, parts, publishing, memory, what a kill loses; and Spark's share."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.batch_ways import COLUMN, Jobs, Rows, create_job, write_rows
from bench.cases import Served
from bench.child import Child, Run
from bench.command import Settings
from bench.exports import NAME
from bench.figures import Figures, add_measured, noted
from hfx.answering import Answer
from hfx.batch.columns import labels_of
from hfx.batch.folder import Folder, new_file
from hfx.batch.job import model_record, read_job
from hfx.batch.local import missing_chunks
from hfx.batch.models import Repository, open_model
from hfx.batch.options import RunOptions
from hfx.batch.plan import read_plan
from hfx.batch.rows import NumberedRow, layout_of
from hfx.batch.scored_parts import BLOCK, part_format, score_chunks
from hfx.names import LABEL, SCORE, TRUNCATED_TOKENS
from hfx.rows import ChunkReader, Row, cut, find_sources
from hfx.rows.row import Place

MILLION, DOCUMENTS = "1,000,000 short rows", "10 GB of documents"
TINY = Served("distilbert-base")
SHORT, DOCUMENT = Rows("short", 4096, "uniform:3-9", 0), Rows("document", 2000, "lognormal:400,0.5,3000", 0)
JOB, REPEATS = "hfx batch", 20
OPENED = ExitStack()  # until the process ends


def machinery(settings: Settings, figures: Figures) -> None:
    """A job of short rows through a tiny classifier, and a large file through planner and reader."""
    with tempfile.TemporaryDirectory(prefix="hfx-bench-") as name:
        folder = Path(name)
        _short_rows(folder, 20_000 if settings.quick else 1_000_000, figures)
        document = write_rows(folder / "block.csv", [text.replace(" the ", "\n") for text in DOCUMENT.texts])
        with Child(open_reader) as child:
            for size in (10**7, 10**8 if settings.quick else 10**10):
                found = child.run(_repeated(document, folder / "large.csv", size), warm=False)
                memory, before = found.memory / 1e6, figures.median("planner", DOCUMENTS, "memory MB") or 0.0
                for way, seconds in zip(("planner", "reader"), found.value, strict=True):
                    growth = {"memory MB": memory, "memory growth MB": memory - before}
                    figures.add(way, DOCUMENTS, 0, **{"MB/s": size / 1e6 / seconds, **growth})


def _short_rows(folder: Path, count: int, figures: Figures) -> None:
    texts = list(itertools.islice(itertools.cycle(SHORT.texts), count))
    source = write_rows(folder / "short.csv", texts)
    with Jobs.of(TINY.repository("int8", tiny=True), {}) as jobs:
        jobs.run(write_rows(folder / "few.csv", texts[:10_000]), folder / "few")
        jobs.memory.clear()
        found = jobs.run(source, folder / "job")
    parts = _part_seconds(Folder(folder / "job"), folder / "part")
    serial = (found["plan s"] or 0) + parts + (found["publish s"] or 0)
    memory = jobs.memory[len(jobs.memory) // 10 :]
    figures.add(JOB, MILLION, 0, **found, **{
        "parts s": parts, "share %": 100 * serial / (found["seconds"] or 1),
        "memory MB": max(memory) / 1e6, "memory growth MB": (max(memory) - memory[0]) / 1e6})  # fmt: skip


def _part_seconds(folder: Folder, target: Path) -> float:
    """Processor seconds of writing all parts, by writing one with other scores several times.

    The model computes on while the disk is waited for.
    """
    job, planned = read_job(folder), read_plan(folder)
    layout, chance = layout_of(job), np.random.default_rng(0)
    form, labels, scored = part_format(job, layout), list(job.model.labels), []
    for number in planned[0].rows:
        scores = np.sort(chance.dirichlet([1.0] * len(labels)))[::-1].astype(np.float32).tolist()
        answer: Answer = {LABEL: labels, SCORE: scores, TRUNCATED_TOKENS: 0}
        scored.append((NumberedRow(0, number, Row({}, Place(number))), answer))
    begin = time.process_time()
    for _ in range(REPEATS):
        with new_file(target) as file:
            form.write(file, (layout.cells(scored[at : at + BLOCK]) for at in range(0, len(scored), BLOCK)))
    rows = sum(len(chunk.rows) for chunk in planned)
    return (time.process_time() - begin) / REPEATS * rows / len(scored)


def _repeated(block: Path, path: Path, size: int) -> str:
    header, body = block.read_bytes().split(b"\n", 1)
    with path.open("wb") as file:
        file.write(header + b"\n")
        for _ in range(-(-size // len(body))):
            file.write(body)
    return str(path)


def open_reader() -> Callable[[str], Run]:
    """In a process of its own: seconds of planning a file, and of reading its rows."""

    def read(path: str) -> tuple[float, float]:
        source = find_sources([path])[0]
        begin = time.perf_counter()
        chunks = list(cut(source, [COLUMN], 4096))
        planned = time.perf_counter()
        with ChunkReader([COLUMN]) as reader:
            for chunk in chunks:
                for _ in reader.rows(source, chunk):
                    pass
        return planned - begin, time.perf_counter() - planned

    return lambda path: lambda: read(path)


def resume(settings: Settings, figures: Figures) -> None:
    """Jobs that end in the middle and go on: when the first new row is answered, and how many are computed twice."""
    for shape, rows, size in (
        ("distilgpt2", Rows("generator", 192, "lognormal:25,1.0,200", 0, new=50), 32),
        ("distilbert-base", Rows("classifier", 1024, "lognormal:25,1.0,200", 0), 256),
    ):
        repository = Served(shape).repository("int8", settings.quick)
        with noted(figures, shape), Child(open_resumed, repository=str(repository)) as child:
            for turn in range(settings.turns(3)):
                resumed = partial(_resumed, child, (rows, size), turn == 0)
                add_measured(figures, JOB, f"{shape}, {size} rows a part", turn, resumed)


def _resumed(child: Child, case: tuple[Rows, int], warm: bool) -> Mapping[str, float]:
    found: Mapping[str, float] = child.run(case, warm=warm).value
    return found


def open_resumed(repository: str) -> Callable[[tuple[Rows, int]], Run]:
    """In a process of its own: a job is closed after two parts, as it would be killed, and run again."""
    model = OPENED.enter_context(open_model(NAME, Repository(Path(repository))))
    options = RunOptions(repository=repository)
    record = model_record(model, repository, labels_of(model, {}))

    def run(rows: Rows, size: int) -> dict[str, float]:
        computed, answered, lock = [0], list[tuple[int, float]](), threading.Lock()

        def counted(function: Callable[[Any], Any], amount: Callable[[Any], int]) -> Callable[[Any], Any]:
            def call(value: Any) -> Any:
                with lock:
                    computed[0] += amount(value)
                answers = function(value)
                answered.append((amount(value), time.perf_counter()))
                return answers

            return call

        many = counted(model.answer_many, len) if model.answer_many else None
        watched = replace(model, answer=counted(model.answer, lambda request: 1), answer_many=many)
        with tempfile.TemporaryDirectory(prefix="hfx-bench-") as name:
            source = write_rows(Path(name, "rows.csv"), rows.texts)
            folder = Folder(Path(name, "job"))
            job, planned = create_job(folder, source, rows.settings, options, record, size)
            scored = score_chunks(folder, job, planned, watched)
            list(itertools.islice(scored, 2))
            scored.close()
            left = [planned[number] for number in missing_chunks(folder, planned)]
            while sum(amount for amount, _ in answered) < computed[0]:  # a process that is killed computes no longer
                time.sleep(0.01)
            answered.clear()
            begin = time.perf_counter()
            for _ in score_chunks(folder, job, left, watched):
                pass
        window = model.at_once if many is None else 512
        return {
            "first row s": answered[0][1] - begin,
            "computed again": computed[0] - rows.count,
            "allowed": window + size,
        }

    return lambda case: lambda: run(*case)
