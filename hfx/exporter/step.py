"""A step of an export: its title, and a function from the plan and what has been made to what has been made then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")
A = TypeVar("A")


@dataclass(frozen=True)
class Step(Generic[P, A]):
    """A step and what people are told while it runs."""

    title: str
    run: Callable[[P, A], A]
