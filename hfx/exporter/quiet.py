"""Keep the remarks and progress bars of libraries off stderr, which is for hfx's own output.

The problems that they warn of are checked by the gate or by the code around the call.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

LOGGERS = ("optimum", "transformers", "torch.onnx")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Return a context in which torch, transformers and optimum write errors only, and no progress bars."""
    from transformers.utils import logging as transformers_logging

    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    bars = transformers_logging.is_progress_bar_enabled()
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
