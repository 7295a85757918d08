"""Compile grammars, each in a process of its own, run as a script: a hostile one costs that process its time or memory.

Reads lines of JSON from stdin: [the folder of llguidance, the limits of its parser], then grammars. Writes a line for
each grammar: the error as a JSON string, empty where there is none, or how its process ended, as subprocess has it.
The processes are forks, so that none takes the time to start Python and to load llguidance.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

MEMORY = 1 << 30
# Of a processor, whose time a busy machine does not shorten. Usual schemas take a hundredth of it, long ones a quarter.
SECONDS = 0.4
NICE = 2  # requests that are being answered come first


def main() -> None:
    """Answer until stdin ends."""
    folder, limits = json.loads(sys.stdin.readline())
    sys.path.insert(0, folder)
    from llguidance import LLParserLimits, LLTokenizer

    tokenizer, limits = LLTokenizer("byte"), LLParserLimits(**limits)
    for line in sys.stdin:
        process = os.fork()
        if not process:
            try:
                compile_one(json.loads(line), tokenizer, limits)
            finally:
                os._exit(1)  # by an error that Python has raised
        _, status = os.waitpid(process, 0)
        if status:
            write(os.waitstatus_to_exitcode(status))


def compile_one(grammar: str, tokenizer: Any, limits: Any) -> None:
    """Write the error of a grammar, and end the process."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()  # with a vocabulary of bytes, what the first mask costs at least
    error = matcher.get_error()
    signal.setitimer(signal.ITIMER_PROF, 0)
    write(error)
    os._exit(0)


def write(answer: str | int) -> None:
    """A line to stdout."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
