"""What `hfx batch` is measured beside: jobs by the product's own runner, and the same rows in other ways."""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child import Run
from bench.exports import NAME
from hfx.batch.create import JobSpec, create, prepare
from hfx.batch.folder import Folder
from hfx.batch.job import Output
from hfx.batch.local import runner
from hfx.batch.options import RunOptions
from hfx.batch.progress import finish, score_missing
from hfx.names import (
    GENERATION_TASKS,
    MAX_TOKENS,
    MIN_TOKENS,
    NO_REPEAT_NGRAM_SIZE,
    NUM_BEAMS,
    STOP_WORDS,
    TEXT_INPUT,
    Task,
)
from hfx.perf.load import parse_lengths, synthetic

TOGETHER, ONE, TEN = "together", "one at a time", "ten at a time"
COLUMN = "text"
ROWS_A_BARRIER = 10
Tensors = dict[str, list[Any]]


@dataclass(frozen=True)
class Rows:
    """Texts of so many words (`lengths`, as hfx.perf.load reads them); a generator writes `new` tokens for each.

    With a `stop` word, answers end earlier: their lengths differ. Slow ways get the `first` rows only.
    """

    name: str
    count: int
    lengths: str
    first: int
    new: int = 0
    beams: int = 1
    ngram: int = 0
    stop: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, the same at every call."""
        items = synthetic(self.count, parse_lengths(self.lengths)).items
        return tuple(str(each.inputs[TEXT_INPUT][0]) for each in items)

    @property
    def settings(self) -> Tensors:
        """The tensors that all requests have."""
        if not self.new:
            return {}
        lengths = {STOP_WORDS: [self.stop], MAX_TOKENS: [self.new]} if self.stop else {
            MIN_TOKENS: [self.new], MAX_TOKENS: [self.new]}  # fmt: skip
        return {**lengths, NUM_BEAMS: [self.beams], NO_REPEAT_NGRAM_SIZE: [self.ngram]}


@dataclass
class Jobs:
    """Runs jobs in new folders, with a worker that keeps the model open: what `hfx batch run` does behind its start."""

    running: Any
    settings: Tensors

    @classmethod
    @contextmanager
    def of(cls, repository: Path, settings: Tensors, urls: tuple[str, ...] = ()) -> Iterator[Jobs]:
        """Jobs by a model of the repository, or behind servers."""
        with runner(NAME, RunOptions(repository=str(repository), urls=urls), settings) as running:
            running.open()
            yield cls(running, settings)

    def run(self, source: Path) -> dict[str, float | None]:
        """The figures of one job over a CSV. Raises ValueError for error rows."""
        options = self.running.options
        with tempfile.TemporaryDirectory(prefix="hfx-bench-") as parent:
            folder = Folder(Path(parent, "job"))
            begin = time.perf_counter()
            spec = JobSpec(
                NAME, [str(source)], [COLUMN], self.settings, 0, Output("append_row", "predictions.csv", (), "")
            )
            prepare(folder)
            planned = create(folder, spec, Task(self.running.model.task), options, lambda: self.running.model)
            planning = time.perf_counter() - begin
            score_missing(planned, self.running, lambda event: None)
            scoring = time.perf_counter() - begin - planning
            summary = finish(planned, options.threshold, lambda event: None)
            seconds = time.perf_counter() - begin
        if summary is None or summary["errors"]:
            raise ValueError(f"the job ended with {summary}")
        return {"rows/s": summary["rows"] / seconds, "seconds": seconds, "plan s": planning,
                "publish s": seconds - planning - scoring}  # fmt: skip


def write_rows(path: Path, texts: Sequence[str]) -> Path:
    """A CSV with a text a row."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([[COLUMN], *([text] for text in texts)])
    return path


def open_inside(repository: str) -> Callable[[tuple[str, Rows]], Run]:
    """In a process of its own: the published model, which answers all rows together, or by one or ten."""
    from hfx.local.encoder import LocalModel
    from hfx.local.generator import LocalGenerator
    from hfx.repository.catalog import model as published

    generates = published(Path(repository), NAME).task in GENERATION_TASKS
    model = (LocalGenerator if generates else LocalModel).open(Path(repository), NAME)

    def prepared(case: tuple[str, Rows]) -> Run:
        way, rows = case
        texts = sorted(rows.texts, key=len) if way == TOGETHER and not rows.new else rows.texts
        requests = [{TEXT_INPUT: [text], **rows.settings} for text in texts]
        size = {TOGETHER: len(requests), ONE: 1, TEN: ROWS_A_BARRIER}[way]
        chosen = requests[: rows.first] if way == ONE else requests

        def run() -> int:
            for start in range(0, len(chosen), size):
                model.infer_all(chosen[start : start + size])
            return len(chosen)

        return run

    return prepared
