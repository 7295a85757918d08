"""Result files on disk: written whole or not at all, read strictly."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hfx.errors import UsageError
from hfx.perf.results.schema import Result

MAX_BYTES = 256 << 20
_adapter = TypeAdapter(Result)


def to_json(result: Result) -> str:
    """The text of a result file: a line for each run, so that files can be compared by lines."""
    value = _adapter.dump_python(result, mode="json")
    runs = ",\n".join(json.dumps(run, ensure_ascii=False, allow_nan=False) for run in value.pop("runs"))
    head = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return f'{head[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def write_result(result: Result, path: Path) -> None:
    """Write `result` to `path` by a rename. Raises UsageError where that can't be."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(to_json(result))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.", "Give another --output.") from error


def check_writable(path: Path) -> None:
    """Raise UsageError if no file can be written at `path`: called before the work, not after it."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        reason = "it is a folder" if path.is_dir() else f"{path.parent} is no folder that you may write to"
        raise UsageError(f"{path} can't be written: {reason}.", "Give another --output.")


def read_result(path: Path) -> Result:
    """The result in the file `path`. Raises UsageError with the first field that is not as it should be."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES} bytes.", "Give a result file of hfx perf.")
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.", "Give a result file of hfx perf.") from error
    try:
        return _adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path} is no result file of this version: {where + ': ' if where else ''}{first['msg']}.",
            "Give a file that hfx perf wrote with --output.",
        ) from None
