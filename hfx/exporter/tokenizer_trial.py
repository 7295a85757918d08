"""A tokenizer.json from a stranger is tried in a process of its own, with little time and memory, before it is used.

A pattern can take years for a short text, and a normalizer can make gigabytes of it. Run as a script, this file is that
process: it imports nothing but the tokenizers library.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 30  # of processor time; a vocabulary of 250,000 pieces is read in 2, and the texts take less than one
WALL_SECONDS = 4 * SECONDS  # on a busy machine
BYTES = 4 << 30
CANT_TOKENIZE = 3  # exit status


class TrialFailed(Exception):
    """The tokenizer stopped with an error; the text is the library's."""


class TrialStopped(Exception):
    """The tokenizer took more than it may have."""


def try_tokenizer(file: Path, texts: Sequence[str]) -> None:
    """Tokenize `texts` by the tokenizer.json `file`, within SECONDS and BYTES. Raises TrialFailed, TrialStopped.

    A file that can't be read at all passes: it is refused where it is loaded.
    """
    command = [sys.executable, "-I", __file__, str(file)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(list(texts)).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise TrialStopped from None
    if done.returncode == CANT_TOKENIZE:
        raise TrialFailed(done.stdout.decode(errors="replace").strip())
    if done.returncode:
        raise TrialStopped


def _main(file: str) -> int:
    _limit(resource.RLIMIT_AS, BYTES)
    _limit(resource.RLIMIT_CPU, SECONDS)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    from tokenizers import Tokenizer

    texts = json.load(sys.stdin)
    try:
        tokenizer = Tokenizer.from_file(file)
    except BaseException:  # the library's panics are no Exceptions
        return 0
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        for text in texts:
            tokenizer.encode(text)
    except MemoryError:
        raise
    except BaseException as error:
        print(str(error)[:300])
        return CANT_TOKENIZE
    return 0


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (allowed, hard))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
