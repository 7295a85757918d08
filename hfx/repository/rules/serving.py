"""Rules about the Triton release that will serve the repository."""

from __future__ import annotations

from collections.abc import Iterator

from hfx.names import MANIFEST_FILE
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.finding import Problem
from hfx.repository.subject import Subject


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
