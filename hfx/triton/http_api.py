"""The few calls of Triton's HTTP API that running a server needs: readiness and statistics.

Proxies of the environment are not used: the server is on this machine. Inference belongs to the client.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from hfx.errors import ServerError, ServerUnreachable

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_ready(http_url: str, timeout: float = 2.0) -> bool:
    """Whether the server answers that all of its models are ready."""
    try:
        with _opener.open(f"{http_url}/v2/health/ready", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def statistics(http_url: str, timeout: float = 10.0) -> dict[str, dict[str, Any]]:
    """Triton's inference statistics: model name -> the object of its statistics extension.

    E.g. `["inference_count"]` (rows), `["execution_count"]` (batches), `["batch_stats"]`; times are nanoseconds.
    """
    try:
        with _opener.open(f"{http_url}/v2/models/stats", timeout=timeout) as answer:
            return {model["name"]: model for model in json.load(answer)["model_stats"]}
    except urllib.error.HTTPError as error:
        raise ServerError(f"{http_url} refused to give statistics: {error}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(f"{http_url} does not answer: {error}.", "Is the server still running?") from error
