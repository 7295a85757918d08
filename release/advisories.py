"""Compares pinned versions with `advisories.toml`, the known vulnerabilities of packages that hfx uses. No network."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from hfx.errors import UsageError
from release import Refused

ADVISORIES = Path(__file__).with_name("advisories.toml")
CONSTRAINTS = ("constraints.txt", "constraints-optimum.txt")


@dataclass(frozen=True, slots=True)
class Advisory:
    """A known vulnerability: versions in any of the ranges `affected` have it.

    `accepted` maps the name of a file of constraints that may pin such a version to the reason.
    """

    package: str
    ids: tuple[str, ...]
    affected: tuple[SpecifierSet, ...]
    fixed: str
    note: str
    accepted: dict[str, str] = field(default_factory=dict)

    def affects(self, version: Version) -> bool:
        """Return whether a version has the vulnerability."""
        return any(versions.contains(version, prereleases=True) for versions in self.affected)


def check(files: Sequence[Path], advisories: Path = ADVISORIES, say: Callable[[str], None] = print) -> None:
    """Report with `say` on each file of constraints; raise Refused if one pins a version with a known vulnerability.

    Raises UsageError for files that can't be read, or have other lines than NAME==VERSION.
    """
    known = load(advisories)
    hits = []
    for path in files:
        pinned = pins(path)
        affected = [entry for entry in known if entry.package in pinned and entry.affects(pinned[entry.package])]
        refused = [entry for entry in affected if path.name not in entry.accepted]
        hits += [_hit(path, pinned[entry.package], entry) for entry in refused]
        say(f"{path.name}: {len(pinned)} versions, {len(known)} advisories, {len(refused)} refused.")
        for entry in affected:
            if path.name in entry.accepted:
                say(f"  {entry.package} {', '.join(entry.ids)} is accepted: {entry.accepted[path.name]}")
    if hits:
        raise Refused("\n".join(hits), "Pin the fixed versions, and run `make test`.")


def _hit(path: Path, version: Version, entry: Advisory) -> str:
    ids = ", ".join(entry.ids)
    return f"{path.name} pins {entry.package} {version}, which has {ids}, fixed in {entry.fixed}: {entry.note}"


def load(path: Path) -> list[Advisory]:
    """Return the advisories in a file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            return [_advisory(entry) for entry in tomllib.load(file)["advisory"]]
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, InvalidSpecifier) as error:
        raise UsageError(f"{path} is no list of advisories: {error!r}.", "Restore it, or correct the entry.") from error


def _advisory(entry: dict[str, Any]) -> Advisory:
    """Return an entry of the file. Raises KeyError, TypeError or InvalidSpecifier."""
    ids, affected, accepted = entry["ids"], entry["affected"], entry.get("accepted", {})
    lists = all(isinstance(value, list) and value for value in (ids, affected))
    if not lists or not isinstance(accepted, dict):
        raise TypeError(f"ids and affected are lists, and accepted is a table: {entry}")
    return Advisory(
        package=canonicalize_name(str(entry["package"])),
        ids=tuple(map(str, ids)),
        affected=tuple(SpecifierSet(str(versions)) for versions in affected),
        fixed=str(entry["fixed"]),
        note=str(entry["note"]),
        accepted=accepted,
    )


def pins(path: Path) -> dict[str, Version]:
    """Return the version of each package in a file of constraints.

    Raises UsageError for lines other than NAME==VERSION.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}.", "Name a file of constraints.") from error
    pinned: dict[str, Version] = {}
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            requirement = _pin(text)
            if requirement is None:
                raise UsageError(
                    f"Line {number} of {path.name} is not NAME==VERSION: {text[:100]}.", "Pin one version."
                )
            pinned[canonicalize_name(requirement.name)] = Version(next(iter(requirement.specifier)).version)
    return pinned


def _pin(text: str) -> Requirement | None:
    """Return a requirement of exactly one version; None for another text."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    operators = [part.operator + "*" * part.version.endswith("*") for part in requirement.specifier]
    return requirement if operators == ["=="] and requirement.marker is None else None
