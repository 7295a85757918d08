"""Helpers of the dialect tests: the models of their server, its key, and raw requests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.rigs.servers.serve_process import SECONDS, ServeProcess

API_KEY, BOUNDED_KEY = "a-key-of-the-tests", "another-key-of-the-tests"
TIGHT_KEYS = tuple(f"a-key-of-few-tokens-{number}" for number in range(9))  # of three tokens a minute
ENCODERS = ("sentiment-fp32", "entities-fp32", "answers-fp32", "nli-fp32", "similar-int8")
RANKER = "ranker"
TALKER = "talker"
EXACT = "summaries-fp32"  # the answers of torch
PROMPT = "Anna was"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def call(
    server: ServeProcess, path: str, body: Any = None, key: str = API_KEY, headers: Mapping[str, str] = NO_HEADERS
) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and JSON of a POST of `body` (bytes are sent as they are), or of a GET without `body`."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    own = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(server.http_url + path, data, {**own, **headers})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, json.load(error)
