"""The process that runs a scoring script: init() once, then run(files) for each request.

It imports nothing of hfx, so that only the script's own imports are loaded. Requests and replies are JSON lines on
copies of the standard input and output; the script's own output goes to the standard error. Results are written to
files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_TRACEBACK = 20_000  # characters in a reply


class WrongResult(Exception):
    """run() returned something other than a list, an array or a DataFrame."""


def main() -> None:
    """Run the script argv[1] with the rest of argv as its arguments."""
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path.cwd())  # the folder of the script's code
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with os.fdopen(requests, encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as target:
        for reply in _replies(sys.argv[0], source):
            print(json.dumps(reply), file=target, flush=True)


def _replies(script: str, requests: Iterable[str]) -> Iterator[dict[str, Any]]:
    try:
        module = _load(script)
        run = module.run
        module.init()
    except Exception:
        yield {"init": _traceback()}
        return
    yield {"opened": True}
    for line in requests:
        request = json.loads(line)
        try:
            elements, lines = _lines(run(request["files"]))
            encoded = lines.encode() if request["rows"] else b""
        except Exception:
            yield {"finished": True, "error": _traceback()}
            continue
        yield {"finished": True, **_written(request["path"], encoded, elements)}


def _load(script: str) -> Any:
    spec = importlib.util.spec_from_file_location("scoring_script", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickles of the script's classes need it
    spec.loader.exec_module(module)
    return module


def _lines(result: Any) -> tuple[int, str]:
    """Return the number of elements, and their lines in Azure's format.

    The cells of a DataFrame are separated by spaces.
    """
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas and isinstance(result, pandas.DataFrame):
        return len(result), result.to_csv(sep=" ", header=False, index=False, lineterminator="\n")
    arrays = tuple(kind for kind in (pandas and pandas.Series, numpy and numpy.ndarray) if kind)
    if isinstance(result, list | tuple) or (arrays and isinstance(result, arrays) and result.shape):
        return len(result), "".join(f"{element}\n" for element in result)
    raise WrongResult(f"run() must return a list, an array or a DataFrame, and returned {type(result).__name__}.")


def _written(path: str, content: bytes, elements: int) -> dict[str, Any]:
    try:
        with Path(path).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"storage": str(error)}
    return {"elements": elements, "sha256": hashlib.sha256(content).hexdigest()}


def _traceback() -> str:
    return traceback.format_exc()[-MAX_TRACEBACK:]


if __name__ == "__main__":
    main()
