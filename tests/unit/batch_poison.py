"""A worker of `hfx batch` that has a poison: a text at which its process aborts, in words of the environment."""

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


def end(file: str) -> None:
    """Abort, if the variable `file` names no file or one that is not there, which is made."""
    if file in os.environ:
        if Path(os.environ[file]).exists():
            return
        Path(os.environ[file]).touch()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def answer_each(self: LocalModel, requests: Sequence[Request]) -> Any:
    """The answers, or an abort."""
    if any("poison" in request[names.TEXT_INPUT][0] for request in requests):
        end("POISON_ONCE")
    return whole(self, requests)


if "START_ONCE" in os.environ:
    end("START_ONCE")
whole = LocalModel.answer_each
LocalModel.answer_each = answer_each  # type: ignore[method-assign]
worker.main()
