"""Compile a grammar in a process of its own, run as a script: a hostile one costs that process its time or memory.

Reads a JSON list from stdin: the folder of llguidance, the limits of its parser, a grammar. Writes the error as a JSON
string, empty where there is none.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

MEMORY = 1 << 30
# Of a processor, whose time a busy machine does not shorten. Usual schemas take a hundredth of it, and Python a tenth.
SECONDS = 0.6


def main() -> None:
    """Check what stdin says."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # requests that are being answered come first
    folder, limits, grammar = json.load(sys.stdin)
    sys.path.insert(0, folder)
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), grammar, limits=LLParserLimits(**limits), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()  # with a vocabulary of bytes, what the first mask costs at least
    print(json.dumps(matcher.get_error()))


if __name__ == "__main__":
    main()
