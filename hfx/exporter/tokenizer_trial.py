"""Use an untrusted tokenizer in a separate process, with little time and memory, before it is used in this one.

A pattern in a tokenizer.json can take years for a short text, and a normalizer can make gigabytes of it. The
sentencepiece library, in C++, can crash on a crafted model (CVE-2026-1260). The separate process runs this module: it
answers lines of JSON, {"seconds", "texts", "file", "target", "generated", "drawn"}, until its stdin ends.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import Any

from hfx.process import JsonChild, Messages
from hfx.python_backends.tokenizer_file import BadToken, added_forms, open_tokenizer

WALL_FACTOR = 4  # on a busy machine
BYTES = 4 << 30
MOST_ANSWERED = 64 << 20  # bytes of tokens; the tokens of the gate's texts take 200 KB
MOST_IDLE = 256 << 10  # KB; a process that has had more memory is not used again
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}

_idle: list[tuple[JsonChild, Messages]] = []


class Error(StrEnum):
    """Why a tokenizer gave no answer."""

    UNREAD = auto()  # the file is no tokenizer
    HAS_BAD_TOKEN = auto()
    FAILED = auto()
    STOPPED = auto()  # it crashed, or took too much time or memory


def try_tokenizer(
    seconds: int,
    texts: Sequence[str],
    file: Path,
    target: Path | None = None,
    generated: int = 0,
    drawn: Sequence[list[int]] | None = None,
) -> tuple[Error | None, Any]:
    """Return the tokens of `texts` by `file`, a tokenizer.json or a SentencePiece model, within `seconds` and BYTES.

    With a `target`, a tokenizer.json is compiled to it, and compared on `texts` and on `generated` texts; the answer is
    the reason why there is no compiled tokenizer, which is empty if there is one. With `drawn` sequences of ids, the
    answer is the text of each of these, and the same without blanks. If there is an error, the answer says what the
    tokenizer has, or what the library's error was.
    """
    while _idle and _idle[-1][0].process.poll() is not None:  # it ends with the thread that started it
        _idle.pop()
    child, messages = _idle.pop() if _idle else _started()
    request = {"file": str(file), "target": str(target or ""), "generated": generated, "drawn": drawn}
    try:
        child.send({"seconds": seconds, "texts": list(texts), **request})
        _, answer = messages.get(timeout=WALL_FACTOR * seconds)
    except queue.Empty:
        answer = None
    if answer is None or answer["is_last"]:
        child.kill()
    else:
        _idle.append((child, messages))
    return (answer["error"], answer["value"]) if answer else (Error.STOPPED, None)


def _started() -> tuple[JsonChild, Messages]:
    messages: Messages = queue.SimpleQueue()
    command = (sys.executable, "-P", "-m", "hfx.exporter.tokenizer_trial")
    return JsonChild(command, messages, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL), messages


def _main() -> None:
    _limit(resource.RLIMIT_AS, BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("seconds"))
        error, value = _answer(**request)
        is_last = _peak() > MOST_IDLE
        text = json.dumps({"error": error, "value": value, "is_last": is_last})
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(text) > MOST_ANSWERED:
            sys.exit(1)
        print(text, flush=True)


def _peak() -> int:
    """Return the most memory that this program has had, in KB. ru_maxrss also counts the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])


def _answer(
    texts: list[str], file: str, target: str, generated: int, drawn: list[list[int]] | None
) -> tuple[Error | None, Any]:
    """Return what try_tokenizer returns. Raises MemoryError, which ends the process."""
    try:
        tokenizer = _checked(file) if file.endswith(".json") else None
        tokens_of = partial(_tokens, tokenizer) if tokenizer else _sentencepiece(file)
    except BadToken as error:
        return Error.HAS_BAD_TOKEN, str(error).removeprefix(f"{file} ")
    except BaseException:  # panics of the libraries are not Exceptions
        return Error.UNREAD, None
    try:
        if not target:
            tokens = tokens_of(texts)
            return None, tokens if drawn is None else _decoded(tokenizer, drawn)
        from hfx.exporter.compiled_tokenizer.proof import compile_and_compare

        return None, compile_and_compare(tokenizer, Path(file), Path(target), texts, generated)
    except MemoryError:
        raise
    except BaseException as error:
        return Error.FAILED, str(error)[:300]


def _checked(file: str) -> Any:
    """Return the tokenizer in `file`. Raises BadToken and ValueError."""
    tokenizer = open_tokenizer(file)
    for token, form in added_forms(tokenizer):
        if form.isspace() and (token.lstrip or token.rstrip):  # each of n blanks takes up to n beside it
            raise BadToken(f"has a blank added token, {token.content!r}, that strips blanks (lstrip, rstrip)")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _tokens(tokenizer: Any, texts: list[str]) -> list[list[str]]:
    """Return the tokens of `texts`. A pair is encoded, and all tokens are decoded, to try these, too."""
    longest = max(texts, key=len, default="")
    tokenizer.encode(longest, longest)
    tokens = []
    for text in texts:
        encoding = tokenizer.encode(text)
        tokenizer.decode(encoding.ids)
        tokens.append(encoding.tokens)
    return tokens


def _decoded(tokenizer: Any, drawn: list[list[int]]) -> list[list[str]]:
    """Return the text of each sequence of ids, and the same without blanks. Both are encoded, to try them, too."""
    texts = tokenizer.decode_batch(drawn, skip_special_tokens=False)
    forms = [[text, "".join(text.split())] for text in texts]
    tokenizer.encode_batch([form for both in forms for form in both])
    return forms


def _sentencepiece(file: str) -> Callable[[list[str]], list[list[str]]]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=file)
    return lambda texts: [list(processor.encode(text, out_type=str)) for text in texts]


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (allowed, hard))


if __name__ == "__main__":
    _main()
