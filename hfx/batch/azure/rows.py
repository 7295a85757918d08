"""Scoring the rows of files with a published model, as JSON lines, for the scoring script of `hfx deploy azureml`.

A line has the file's name and the columns that `hfx batch run` writes. The YAML of a deployment can only set
environment variables: HFX_COLUMN has the values of --column, separated by commas, and HFX_SETTINGS a JSON object of
settings.

On Azure ML, hfx consists only of the modules that hfx/deploy/azureml.py copies beside the script. The command line, the
client and the exporter are missing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hfx.answering import Model, Request
from hfx.batch.models import Repository, open_model
from hfx.batch.parts import JsonLines
from hfx.batch.rows import (
    Layout,
    NumberedRow,
    Requests,
    check_columns,
    fact_columns,
    inputs_of,
    labels_of,
    prediction_columns,
)
from hfx.batch.scoring import score
from hfx.errors import ModelMissing, UsageError
from hfx.metadata import ModelMetadata, check_values
from hfx.names import MANIFEST_FILE, SEED, Task
from hfx.rows import source_of
from hfx.rows.chunks import open_rows

COLUMN, SETTINGS = "HFX_COLUMN", "HFX_SETTINGS"
FILE = "file"
BLOCK = 1024  # rows that are formatted together


@dataclass(frozen=True)
class RowSettings:
    """Values of environment variables: `columns` as for --column, `inputs` (tensor -> column), settings and seed."""

    columns: tuple[str, ...]
    inputs: Mapping[str, str]
    settings: Request
    seed: int


def row_settings(task: Task, metadata: ModelMetadata, variables: Mapping[str, str]) -> RowSettings:
    """Return the settings that the environment `variables` have for a model. Raises UsageError."""
    text = variables.get(COLUMN, "text")
    columns = tuple(text.split(",")) if "=" in text else (text,)
    chosen = _listed(variables.get(SETTINGS, "{}"))
    inputs = inputs_of(task, columns, chosen)
    check_columns(inputs, metadata, chosen)
    check_values(metadata, chosen)
    seed = chosen.pop(SEED, [0])[0]
    return RowSettings(columns, inputs, chosen, seed)


def _listed(text: str) -> dict[str, list[Any]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, Mapping):
        raise UsageError(f"{SETTINGS} is not a JSON object: {text}.", """E.g. '{"max_tokens": 60}'.""")
    return {name: value if isinstance(value, list) else [value] for name, value in values.items()}


@dataclass(frozen=True)
class RowScorer:
    """An opened model with its settings. `stack` closes the model."""

    model: Model
    requests: Requests
    columns: frozenset[str]
    layout: Layout
    stack: ExitStack

    def lines(self, files: Iterable[str]) -> list[str]:
        """Return the JSON lines of all rows of `files`, in order. Raises HfxError for a file that can't be read.

        A file without rows gets one line whose `row` is null, because Azure counts a file without a line as failed.
        """
        return [line for path in files for line in self._lines(Path(path))]

    def _lines(self, path: Path) -> list[str]:
        columns = self.layout.columns
        lines, written = JsonLines({FILE: "text", **columns}), io.BytesIO()
        lines.write(written, self._blocks(path))
        if not written.tell():
            lines.write(written, [[[path.name], *([None] for _ in columns)]])
        return written.getvalue().decode("utf-8").split("\n")[:-1]

    def _blocks(self, path: Path) -> Iterator[list[list[Any]]]:
        with closing(open_rows(source_of(str(path)))) as file:
            rows = (NumberedRow(0, row.number, row) for row in file.rows(self.columns))
            with closing(score(self.model, rows, self.requests)) as scored:
                while block := list(islice(scored, BLOCK)):
                    yield [[path.name] * len(block), *self.layout.cells(block)]


def open_scorer(folder: Path, name: str, variables: Mapping[str, str]) -> RowScorer:
    """Open the model `name` below `folder` (AZUREML_MODEL_DIR) with the settings in `variables`.

    Raises RepositoryError (ModelMissing if there is no such model), and UsageError for settings that the model does not
    accept.
    """
    stack = ExitStack()
    with stack:
        model = stack.enter_context(open_model(name, Repository(_repository(folder, name))))
        chosen = row_settings(model.task, model.metadata, variables)
        labels = labels_of(model, chosen.settings)
        predictions = prediction_columns(model.task, labels, chosen.settings, own=chosen.inputs)
        layout = Layout((), predictions, fact_columns(model.task))
        requests = Requests(chosen.inputs, chosen.settings, model.task, chosen.seed)
        return RowScorer(model, requests, frozenset(chosen.inputs.values()), layout, stack.pop_all())


def _repository(folder: Path, name: str) -> Path:
    """Return the repository with the model.

    Azure mounts the uploaded folder itself; hfx mounts the folder's content.
    """
    places = sorted((*folder.glob(f"{name}/{MANIFEST_FILE}"), *folder.glob(f"*/{name}/{MANIFEST_FILE}")))
    if not places:
        raise ModelMissing(f"There is no model {name!r} below {folder}.", "Deploy the folder as it was written.")
    return places[0].parents[1]
