"""A worker of `hfx batch` that has a poison: a text at which its process aborts, in words of the environment.

POISON_ONCE and START_ONCE are files, made by the abort after which there is none; `{}` is the text. With the file
EVERY_OTHER, which comes and goes, every other worker aborts when it starts.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hfx import names
from hfx.answering import Request
from hfx.batch import worker
from hfx.local.encoder import LocalModel


def end(variable: str, text: str = "") -> None:
    """Abort, if the `variable` names no file or one that is not there, which is made."""
    if variable in os.environ:
        file = Path(os.environ[variable].format(text))
        if file.exists():
            return
        file.touch()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def answer_each(self: LocalModel, requests: Sequence[Request]) -> Any:
    """The answers, or an abort."""
    for request in requests:
        if "poison" in request[names.TEXT_INPUT][0]:
            end("POISON_ONCE", request[names.TEXT_INPUT][0])
    return whole(self, requests)


if "START_ONCE" in os.environ:
    end("START_ONCE")
if "EVERY_OTHER" in os.environ:
    end("EVERY_OTHER")
    Path(os.environ["EVERY_OTHER"]).unlink()
whole = LocalModel.answer_each
LocalModel.answer_each = answer_each  # type: ignore[method-assign]
worker.main()
