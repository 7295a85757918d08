"""Try an untrusted tokenizer in a separate process, with little time and memory, before it is used.

A pattern in a tokenizer.json can take years for a short text, and a normalizer can make gigabytes of it. The
sentencepiece library, in C++, can crash on a crafted model (CVE-2026-1260). Run as a script, this file is the separate
process: it imports nothing but the library that reads the file.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

SECONDS = 30  # of processor time; reading a vocabulary of 250,000 pieces takes 2 s, and the texts less than 1 s
WALL_SECONDS = 4 * SECONDS  # on a busy machine
BYTES = 4 << 30
MOST_ANSWERED = 64 << 20  # bytes of tokens; the tokens of the gate's texts take 200 KB
CANT_TOKENIZE, CANT_READ, TOO_MUCH = 3, 4, 5  # exit status


class TrialUnread(Exception):
    """The file is no tokenizer."""


class TrialFailed(Exception):
    """The tokenizer failed with an error; the exception's text is the library's."""


class TrialStopped(Exception):
    """The tokenizer crashed, or took too much time or memory."""


def try_tokenizer(file: Path, texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of `texts` by `file`, a tokenizer.json or a SentencePiece model, within SECONDS and BYTES.

    Raises TrialUnread, TrialFailed and TrialStopped.
    """
    from hfx.process import ends_with_parent  # here, because the script must not import it

    command = ends_with_parent((sys.executable, "-I", __file__, str(file)))
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
    if done.returncode == CANT_READ:
        raise TrialUnread
    if done.returncode:
        raise TrialStopped
    tokens: list[list[str]] = json.loads(done.stdout)
    return tokens


def _main(file: str) -> int:
    _limit(resource.RLIMIT_AS, BYTES)
    _limit(resource.RLIMIT_CPU, SECONDS)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    texts = json.load(sys.stdin)
    try:
        tokens_of = _tokenizer(file) if file.endswith(".json") else _sentencepiece(file)
    except BaseException:  # panics of the libraries are not Exceptions
        return CANT_READ
    try:
        tokens = [tokens_of(text) for text in texts]
    except MemoryError:
        raise
    except BaseException as error:
        print(str(error)[:300])
        return CANT_TOKENIZE
    answer = json.dumps(tokens)
    if len(answer) > MOST_ANSWERED:
        return TOO_MUCH
    print(answer)
    return 0


def _tokenizer(file: str) -> Callable[[str], list[str]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: list(tokenizer.encode(text).tokens)


def _sentencepiece(file: str) -> Callable[[str], list[str]]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=file)
    return lambda text: list(processor.encode(text, out_type=str))


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (allowed, hard))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
