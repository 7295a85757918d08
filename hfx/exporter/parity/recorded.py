"""reference.json: the checkpoint's answers of the gate, kept beside the model.

With it, `hfx verify` re-runs the gate on a published model, through a server too, without the checkpoint and without
torch. Owns the file's format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import ModelCorrupt
from hfx.exporter.tasks.task import Answer, Request

FILE = "reference.json"
FORMAT = 1


@dataclass(frozen=True)
class Recorded:
    """Requests and, for each, what the checkpoint answered in torch."""

    requests: tuple[Request, ...]
    answers: tuple[Answer, ...]


def write_recorded(recorded: Recorded, path: Path) -> None:
    """Write `recorded` as JSON, one request a line."""
    pairs = zip(recorded.requests, recorded.answers, strict=True)
    lines = [json.dumps({"request": r, "answer": a}, ensure_ascii=True) for r, a in pairs]
    rows = ",\n".join(lines)
    path.write_text(f'{{"format": {FORMAT}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def read_recorded(path: Path) -> Recorded:
    """Read a reference.json; RepositoryError where it is missing or damaged."""
    try:
        value: Any = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        rows = [(dict(row["request"]), dict(row["answer"])) for row in value["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelCorrupt(
            f"{path} can't be read: {error!r}.", "Export the model again with --force; it records the answers."
        ) from error
    return Recorded(tuple(r for r, _ in rows), tuple(a for _, a in rows))
