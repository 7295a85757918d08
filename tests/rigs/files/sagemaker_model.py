"""Checks of request bodies against botocore's service model, including limits that its validator omits."""

from __future__ import annotations

import re
from functools import cache
from typing import Any


@cache
def _service(name: str) -> Any:
    import botocore.session

    return botocore.session.get_session().get_service_model(name)


def problems(service: str, operation: str, body: dict[str, Any]) -> list[str]:
    """Return what AWS would refuse in `body` by the model alone; empty if it would accept all of it."""
    from botocore.validate import ParamValidator

    shape = _service(service).operation_model(operation).input_shape
    report = ParamValidator().validate(body, shape)
    return ([report.generate_report()] if report.has_errors() else []) + _beyond(shape, body, operation)


def _beyond(shape: Any, value: Any, path: str) -> list[str]:
    """Check enumerations, patterns and upper limits, which botocore's validator ignores."""
    if shape.type_name == "structure":
        return [
            each
            for key in value
            if key in shape.members
            for each in _beyond(shape.members[key], value[key], f"{path}.{key}")
        ]
    limit = shape.metadata.get("max")
    size = value if shape.type_name in ("integer", "float", "double", "long") else len(str(value))
    if shape.type_name in ("list", "map"):
        size = len(value)
        items = value if shape.type_name == "list" else value.values()
        member = shape.member if shape.type_name == "list" else shape.value
        found = [each for item in items for each in _beyond(member, item, f"{path}[]")]
    else:
        found = []
    if limit is not None and size > limit:
        found.append(f"{path}: {value} is more than {limit}")
    enum, pattern = getattr(shape, "enum", None), shape.metadata.get("pattern")
    if pattern and re.search(r"\\[pu]", pattern):  # Java's classes, which `re` has not
        pattern = None
    if enum and value not in enum:
        found.append(f"{path}: {value} is not of {enum[:3]}…")
    if pattern and shape.type_name == "string" and not re.fullmatch(pattern, value):
        found.append(f"{path}: {value} is not {pattern}")
    return found
