"""Renders chat templates in a process of its own, because an untrusted template can loop forever or fill the memory.

This file runs as a script. For each line of JSON on stdin, {"template", "variables", "seconds"}, it writes a line to
stdout, {"text"} or {"error"}, with the processor time in "seconds". SIGPROF ends the process if a template takes more
processor time than the request's "seconds". The jinja2 environment is configured like that of transformers'
apply_chat_template, so that the prompts are the same.
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
    """The block `{% generation %}`, which marks an assistant's text for training. Its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        """Return the block's content, called as a macro."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> Any:
        return caller()


@lru_cache(TEMPLATES_KEPT)
def compiled(template: str) -> jinja2.Template:
    """Return the template, compiled in transformers' environment. Raises jinja2.TemplateError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def rendered(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """Return the text as "text", or the reason for a failure as "error"."""
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
