"""Compile a grammar in a process of its own, run as a script: a hostile one costs that process its time or memory.

Reads a JSON list from stdin: the folder of llguidance, the limits of its parser, a grammar. Writes the error as a JSON
string, empty where there is none.
"""

from __future__ import annotations

import json
import os
import resource
import sys

MEMORY = 1 << 30
SECONDS = 2  # of a processor, should the process that waits for this one be gone


def main() -> None:
    """Check what stdin says."""
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))
    os.nice(10)  # requests that are being answered come first
    folder, limits, grammar = json.load(sys.stdin)
    sys.path.insert(0, folder)
    from llguidance import LLMatcher, LLParserLimits

    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LLParserLimits(**limits))
    print(json.dumps(messages[0] if is_error else ""))


if __name__ == "__main__":
    main()
