"""What the linter says: problems, findings, rules.

Owns these three values. It must not know any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from hfx.repository.subject import Subject

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule found: a path relative to the repository, a line of that file if one is to blame, and the cure."""

    path: str
    line: int | None
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the id and severity of the rule that found it. Errors stop a server or make answers wrong."""

    rule: str
    severity: Severity
    path: str
    line: int | None
    message: str
    fix: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.rule} {self.message}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a function from the repository to the problems it finds."""

    id: str
    severity: Severity
    title: str
    check: Callable[[Subject], Iterator[Problem]]
