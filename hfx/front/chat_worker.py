"""Renders chat templates in a process of its own, as a template from a stranger can loop for ever or fill the memory.

Run as a script: for each line of JSON on stdin, {"template", "variables", "seconds"}, a line on stdout, {"text"} or
{"error"}, with the processor time in "seconds". It ends by SIGPROF when one takes more than the request's "seconds".
The environment is that of transformers' apply_chat_template, so that the prompts are the same.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

BYTES = 1 << 28  # of address space
TEMPLATES_KEPT = 16


class Generation(Extension):
    """`{% generation %}`, which marks an assistant's text for training: its content as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        """The block's content, called as a macro."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> Any:
        return caller()


@lru_cache(TEMPLATES_KEPT)
def compiled(template: str) -> jinja2.Template:
    """The template, in transformers' environment. Raises jinja2.TemplateError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def rendered(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """The text under "text", or what went wrong under "error"."""
    try:
        return {"text": compiled(template).render(**variables)}
    except MemoryError:
        return {"error": "it needs more memory than a template may have"}
    except Exception as error:
        return {"error": (str(error) or type(error).__name__).rstrip(".")}


def main() -> None:
    """Answer requests until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        began = time.process_time()
        answer = rendered(request["template"], request["variables"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({**answer, "seconds": time.process_time() - began}), flush=True)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own escapes HTML


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
