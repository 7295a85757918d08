"""The requests that are forwarded to Triton: a closed list of paths of its V2 protocol, with their methods.

Paths are forwarded as they were sent, not decoded. The list therefore has no path that Triton would read differently.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from hfx.front.refusals import UNKNOWN_PATH, Refusal, wrong_method

NAME = rb"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%(?!00|2[fF])[0-9A-Fa-f]{2})+"
MODEL = rb"/v2/models/" + NAME + rb"(?:/versions/[0-9]{1,18})?"
METRICS = b"/metrics"
READ = re.compile(
    METRICS + rb"|/v2|/v2/health/(?:live|ready)|/v2/models/stats|" + MODEL + rb"(?:/(?:ready|config|stats))?"
)
ASKED = re.compile(MODEL + rb"/(infer|generate|generate_stream)|/v2/repository/index")
# Requests to these paths load models, map memory, and write files.
CLOSED = re.compile(
    rb"/v2/repository/models/.*|/v2/(?:systemsharedmemory|cudasharedmemory|trace|logging)(?:/.*)?|.*/trace/setting"
)
METHODS = {b"GET": READ, b"POST": ASKED}
# Paths that clients of other servers request, and hints for errors about them.
HINTS = (
    (
        re.compile(rb"/(?:chat/)?completions|/embeddings|/moderations|/responses"),
        "A client's base URL ends in /v1 here",
    ),
    (re.compile(rb"/v1/embed|/v2/chat"), "Of Cohere's APIs there are /v2/embed and rerank: use /v1/chat/completions"),
    (re.compile(b""), "GET /openapi.json lists all paths"),
)
# The paths for /openapi.json: method, path, summary.
TRITON_PATHS = (
    ("GET", "/health", "Triton's readiness, without a key."),
    ("GET", "/metrics", "Triton's metrics, as Prometheus reads them."),
    ("GET", "/v2", "The server's name and extensions."),
    ("GET", "/v2/health/live", "Whether the server answers."),
    ("GET", "/v2/health/ready", "Whether all models are ready."),
    ("GET", "/v2/models/stats", "Statistics of all models."),
    ("GET", "/v2/models/{model}", "A model's inputs and outputs."),
    ("GET", "/v2/models/{model}/config", "A model's configuration."),
    ("GET", "/v2/models/{model}/ready", "Whether a model is ready."),
    ("GET", "/v2/models/{model}/stats", "A model's statistics."),
    ("POST", "/v2/models/{model}/infer", "Output tensors for input tensors, in JSON or binary."),
    ("POST", "/v2/models/{model}/generate", "The answer of a generator, as one JSON object."),
    ("POST", "/v2/models/{model}/generate_stream", "The same as server-sent events."),
    ("POST", "/v2/repository/index", "The models of the repository, with their states."),
)


@lru_cache(1024)
def named(path: bytes) -> tuple[str, str]:
    """Return the route and the model of a path of Triton's. The route has {model} in place of the model's name."""
    parts = path.decode("ascii").split("/")
    if parts[:3] != ["", "v2", "models"] or len(parts) < 4 or parts[3] == "stats":
        return path.decode("ascii"), ""
    rest = parts[6:] if parts[4:5] == ["versions"] else parts[4:]
    return "/".join(["/v2/models/{model}", *rest]), unquote(parts[3])


@lru_cache(1024)
def endpoint(method: bytes, path: bytes) -> bytes:
    """Return the last part of a path that takes a body, such as `infer`, or an empty string for other paths.

    Raises Refusal (403, 404, 405) for a request that must not be forwarded.
    """
    match = METHODS[method].fullmatch(path) if method in METHODS else None
    if match is not None:
        return match[1] or b"" if match.re is ASKED else b""
    if CLOSED.fullmatch(path):
        raise Refusal(403, "This part of Triton's API is closed. Use `hfx serve` and its options instead.")
    allowed = [name.decode() for name, paths in METHODS.items() if paths.fullmatch(path)]
    if allowed:
        raise wrong_method(allowed)
    hint = next(text for pattern, text in HINTS if pattern.fullmatch(path) or not pattern.pattern)
    raise Refusal(404, f"This path does not exist. {hint}.", reason=UNKNOWN_PATH)
