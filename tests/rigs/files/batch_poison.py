"""A worker of `hfx batch` that aborts at a text with the word "poison".

Environment variables decide when. POISON_ONCE and START_ONCE each name a file. An abort creates the file, and there is
no further abort while it exists. In the name, `{}` stands for the poisonous text. EVERY_OTHER names a file that
alternately exists and does not, so that every other worker aborts at its start.
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
    """Abort, unless the `variable` names a file that exists; create the file first."""
    if variable in os.environ:
        file = Path(os.environ[variable].format(text))
        if file.exists():
            return
        file.touch()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def answer_each(self: LocalModel, requests: Sequence[Request]) -> Any:
    """Return the answers, or abort at a poisonous text."""
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
