"""Rules about hfx.json: the files that it lists, and the Triton release that the model needs."""

from __future__ import annotations

from collections.abc import Iterator

from hfx.names import MANIFEST_FILE
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.subject import Problem, Subject


def damaged(subject: Subject) -> Iterator[Problem]:
    """HFX201."""
    for entry in subject.entries:
        if entry.problem:
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", None, entry.problem, "Export the model again.")


def missing(subject: Subject) -> Iterator[Problem]:
    """HFX202."""
    yield from _of_kind(subject, ("missing",), "Export the model again, or put the file back.")


def changed(subject: Subject) -> Iterator[Problem]:
    """HFX203."""
    yield from _of_kind(subject, ("changed", "outside", "unreadable"), "Export the model again: its proof is void.")


def unlisted(subject: Subject) -> Iterator[Problem]:
    """HFX204."""
    yield from _of_kind(subject, ("unlisted",), "Move the file away, or export the model again.")


def _of_kind(subject: Subject, kinds: tuple[str, ...], fix: str) -> Iterator[Problem]:
    for entry in subject.entries:
        if entry.manifest:
            for problem in subject.file_problems(entry.manifest):
                if problem.kind in kinds:
                    yield Problem(problem.path, None, problem.message, fix)


def too_old(subject: Subject) -> Iterator[Problem]:
    """HFX801."""
    for entry in subject.entries:
        if entry.manifest and subject.release.tag < entry.manifest.triton.minimum:
            yield Problem(
                f"{entry.name}/{MANIFEST_FILE}",
                None,
                f"says that the model needs Triton {entry.manifest.triton.minimum}; {subject.release.tag} is older.",
                f"Serve it with {max(MINIMUM_SECURE, entry.manifest.triton.minimum)}.",
            )


def insecure(subject: Subject) -> Iterator[Problem]:
    """HFX802."""
    if warning := security_warning(subject.release.tag):
        yield Problem(".", None, warning, f"Serve the repository with {MINIMUM_SECURE} or later.")
