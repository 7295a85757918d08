"""A script that compiles grammars, each in its own process, so that a hostile one can only exhaust that process.

The script reads lines of JSON from stdin: [the folder of llguidance, the limits of its parser], then grammars. It
writes a line of JSON for each grammar: the error as a string (empty if there is none), or the exit code of the
grammar's process as a number (negative for a signal, as in subprocess). The processes are forks, so that none needs
time to start Python and to load llguidance.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

MEMORY = 1 << 30
# A limit of processor time, not of elapsed time, so that a busy machine does not refuse more grammars. Usual schemas
# take a hundredth of it, the longest a third.
SECONDS = 0.25
NICE = 2  # requests that are being answered come first


def main() -> None:
    """Answer until stdin ends."""
    folder, limits = json.loads(sys.stdin.readline())
    sys.path.insert(0, folder)
    from llguidance import LLParserLimits, LLTokenizer

    tokenizer, limits = LLTokenizer("byte"), LLParserLimits(**limits)
    for line in sys.stdin:
        print(json.dumps(answer_of(partial(error_of, json.loads(line), tokenizer, limits))), flush=True)


def answer_of(find: Callable[[], str]) -> str | int:
    """Return what `find` returns in its own process, or the exit code of the process if it ended before."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.write(writer, find().encode())
            os._exit(0)
        finally:
            os._exit(1)  # Python has raised an error
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if status else found.decode(errors="replace")


def error_of(grammar: str, tokenizer: Any, limits: Any) -> str:
    """Return the error of a grammar, empty if there is none. A grammar that costs too much ends the process."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    if not matcher.is_error():
        # With the model's vocabulary, the first mask takes at least as long as here, with a vocabulary of bytes.
        matcher.compute_bitmask()
    return str(matcher.get_error())


if __name__ == "__main__":
    main()
