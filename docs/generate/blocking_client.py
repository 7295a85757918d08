"""The generated half of the client: hfx/client/client.py, of async_client.py without `async` and `await`.

What can't be made so is in hfx/client/base.py. The result is formatted by ruff, as lines get shorter.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "hfx/client/async_client.py"
FILE = Path("hfx/client/client.py")
MODULE = '''"""The blocking client: one method a task, typed results, typed errors.

Made by `make docs` from async_client.py: change that.
"""
'''
CLASS = '''class Client(BlockingBase):
    """A connection to a Triton server: a context manager, which threads may share.

    `url` is HOST:PORT of the gRPC port (also grpc://, or grpcs:// with TLS), or http(s)://HOST:PORT of the HTTP port. A
    request has `timeout` seconds, retries included, unless a call sets its own; generators get the timeout too and stop
    in time. Of many texts, up to `max_in_flight` are sent at a time. A stream fails if no piece arrives for
    `idle_timeout` seconds. `retries` is a RetryPolicy or a number (0: none). `token` is sent as a bearer token; without
    encryption, only to this machine. `transport` replaces the connection, and `url` is then unused.

    One text gives one result, an iterable of texts a list in the same order. If one of many fails, the others are
    cancelled and its error is raised, with its index; `each` yields errors in place of results.
    The errors are those that `help(hfx.client)` shows.
    """
'''
RUFF = (("check", "--select", "I", "--fix-only"), ("format",))
REPLACED = (
    (r'(?s)\A""".*?"""\n', MODULE),
    (r'(?s)class AsyncClient\(AsyncBase\):\n    """.*?"""\n', CLASS),
    # A coroutine of the session never suspends over a blocking transport; parentheses inside it are one level deep.
    (r"\bawait (self\._session\.\w+\((?:[^()]|\([^()]*\))*\))", r"run(\1)"),
    (r"\bawait |\basync (?=def )", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"AsyncGenerator\[(.*), None\]", r"Iterator[\1]"),
    (r"AsyncGenerator", "Iterator"),
    (r"AsyncTextStream", "TextStream"),
    (r"import AsyncBase\n", "import BlockingBase\nfrom hfx.client.transport import run\n"),
)


def module() -> str:
    """The module's text."""
    text = SOURCE.read_text(encoding="utf-8")
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    for command in RUFF:
        words = (sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(FILE), "-")
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text
