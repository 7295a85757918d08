"""GET /openapi.json: every path that the front answers, made of the tables that it answers by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from hfx.front.dialect import Dialect, Route
from hfx.front.refusals import dumped
from hfx.front.routes import TRITON_PATHS

PARAMETER = re.compile(r"{(\w+)}")


def description(dialects: Sequence[Dialect]) -> bytes:
    """The OpenAPI 3.1 description of Triton's paths and those of `dialects`."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary in TRITON_PATHS:
        _add(paths, method, path, summary, "Triton")
    for dialect in dialects:
        for route in dialect.routes:
            _add_route(paths, route, dialect.name)
    content = {
        "openapi": "3.1.0",
        "info": {"title": "hfx serve", "version": version("hfx")},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
        "paths": dict(sorted(paths.items())),
    }
    return dumped(content)


def _add_route(paths: dict[str, dict[str, Any]], route: Route, tag: str) -> None:
    if route.is_own is None:
        _add(paths, route.method, route.path, route.summary, tag)
        if route.is_public:
            paths[route.path][route.method.lower()]["security"] = []
    else:  # the path is Triton's too
        operation = paths[route.path][route.method.lower()]
        operation["tags"].append(tag)
        operation["summary"] += f" {tag}: {route.summary}"


def _add(paths: dict[str, dict[str, Any]], method: str, path: str, summary: str, tag: str) -> None:
    operation: dict[str, Any] = {
        "summary": summary,
        "tags": [tag],
        "responses": {"200": {"description": "The answer."}, "default": {"description": "An error in JSON."}},
    }
    names = PARAMETER.findall(path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if method == "POST":
        operation["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    if path == "/health":
        operation["security"] = []
    paths.setdefault(path, {})[method.lower()] = operation
