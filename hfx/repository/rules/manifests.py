"""Rules about hfx.json: the files that it lists, and the Triton release that the model needs."""

from __future__ import annotations

from collections.abc import Iterator

from hfx.names import MANIFEST_FILE
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.subject import Problem, Subject, rule


@rule("HFX201", "error", "Export the model again.")
def damaged(subject: Subject) -> Iterator[Problem]:
    """hfx.json is damaged."""
    for entry in subject.entries:
        if entry.problem:
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", entry.problem)


@rule("HFX202", "error", "Export the model again, or put the file back.")
def missing(subject: Subject) -> Iterator[Problem]:
    """A published file is missing."""
    yield from _of_kind(subject, "missing")


@rule("HFX203", "error", "Export the model again: its proof is void.")
def changed(subject: Subject) -> Iterator[Problem]:
    """A published file was changed."""
    yield from _of_kind(subject, "changed", "outside", "unreadable")


@rule("HFX204", "error", "Move the file away, or export the model again.")
def unlisted(subject: Subject) -> Iterator[Problem]:
    """A file that was not published."""
    yield from _of_kind(subject, "unlisted")


def _of_kind(subject: Subject, *kinds: str) -> Iterator[Problem]:
    for entry in subject.entries:
        for problem in subject.file_problems(entry.manifest) if entry.manifest else ():
            if problem.kind in kinds:
                yield Problem(problem.path, problem.message)


@rule("HFX801", "error")
def too_old(subject: Subject) -> Iterator[Problem]:
    """A Triton release that can't serve a model."""
    for entry in subject.entries:
        if entry.manifest and subject.release.tag < (minimum := entry.manifest.triton.minimum):
            message = f"says that the model needs Triton {minimum}; {subject.release.tag} is older."
            fix = f"Serve it with {max(MINIMUM_SECURE, minimum)}."
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", message, fix=fix)


@rule("HFX802", "warning", f"Serve the repository with {MINIMUM_SECURE} or later.")
def insecure(subject: Subject) -> Iterator[Problem]:
    """A Triton release with known vulnerabilities."""
    if warning := security_warning(subject.release.tag):
        yield Problem(".", warning)
