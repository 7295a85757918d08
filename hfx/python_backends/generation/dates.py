"""Patterns for dates and times in JSON schemas.

They replace llguidance's own patterns, which allow 29 February in any year, and the year 0.
"""

from __future__ import annotations

from typing import Any

# RFC 3339, section 5.6, restricted to the years 1 to 9999, and without leap seconds, which most parsers refuse.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_OF_FOUR = "(0[48]|[2468][048]|[13579][26])"
_LEAP_DAY = f"([0-9]{{2}}{_OF_FOUR}|{_OF_FOUR}00)-02-29"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
DATE = f"({_YEAR}-{_DAY}|{_LEAP_DAY})"
TIME = f"{_HOUR}:[0-5][0-9](\\.[0-9]{{1,9}})?(Z|[+-]{_HOUR})"
PATTERNS = {"date": f"^{DATE}$", "time": f"^{TIME}$", "date-time": f"^{DATE}T{TIME}$"}
VALUES = {"const", "enum", "default", "examples"}  # keywords whose values are no schemas
BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # name -> schema


def with_real_dates(schema: Any) -> Any:
    """Return a schema with patterns in place of its formats of dates and times."""
    if isinstance(schema, list):
        return [with_real_dates(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _value(key, value) for key, value in schema.items()}
    name = schema.get("format")
    if isinstance(name, str) and name in PATTERNS:
        del changed["format"]
        changed["allOf"] = [*changed.get("allOf", []), {"pattern": PATTERNS[name]}]
    return changed


def _value(key: str, value: Any) -> Any:
    if key in VALUES:
        return value
    if key in BY_NAME and isinstance(value, dict):
        return {name: with_real_dates(each) for name, each in value.items()}
    return with_real_dates(value)
