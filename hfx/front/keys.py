"""The file of API keys: read when a server starts, and again by each of its fronts."""

from __future__ import annotations

import re
from pathlib import Path

from hfx.errors import UsageError

SHORTEST = 16  # characters of a key: fewer can be guessed
KEY = re.compile(rf"[!-~]{{{SHORTEST},}}")  # as headers carry it
COMMENT = "#"


def read_keys(path: str) -> list[str]:
    """The keys in the lines of the file at `path`, without comments. Raises UsageError for what is none."""
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The file of API keys can't be read: {error}.", "Give a text file.") from None
    keys = {number: line for number, line in enumerate(lines, 1) if line and not line.startswith(COMMENT)}
    for number, key in keys.items():
        if not KEY.fullmatch(key):
            raise UsageError(
                f"Line {number} of {path} is no API key: it is shorter than {SHORTEST} characters, or has others.",
                f"Write {SHORTEST} or more letters, digits and signs without spaces, as `openssl rand -hex 24` does.",
            )
    if not keys:
        raise UsageError(f"{path} holds no API key.", "Write one into each line.")
    return [*keys.values()]
