"""The few calls of Triton's HTTP API that running a server needs: readiness, names and statistics.

Proxies of the environment are not used: the server is on this machine. Inference belongs to the client.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from hfx.errors import ServerError, ServerUnreachable
from hfx.names import MEMBER_SUFFIXES

ANSWER_SECONDS = 10.0
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_ready(http_url: str, timeout: float = 2.0) -> bool:
    """Whether the server answers that all of its models are ready."""
    try:
        with _opener.open(f"{http_url}/v2/health/ready", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def entry_points(http_url: str) -> list[str]:
    """The names to ask for, sorted: the ready models without the members of others."""
    index = _json(urllib.request.Request(f"{http_url}/v2/repository/index", b'{"ready": true}'))
    ready = {model["name"] for model in index}
    members = {name + end for name in ready for end in MEMBER_SUFFIXES}
    return sorted(ready - members)


def statistics(http_url: str) -> dict[str, dict[str, Any]]:
    """Triton's inference statistics: model name -> the object of its statistics extension.

    E.g. `["inference_count"]` (rows), `["execution_count"]` (batches), `["batch_stats"]`; times are nanoseconds.
    """
    answer = _json(urllib.request.Request(f"{http_url}/v2/models/stats"))
    return {model["name"]: model for model in answer["model_stats"]}


def _json(request: urllib.request.Request) -> Any:
    try:
        with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"{request.full_url} is refused: {error}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(
            f"{request.full_url} is not answered: {error}.", "Is the server still running?"
        ) from error
