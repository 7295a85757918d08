"""The look at a repository before it is served: an unfinished export is undone, files and release are compared.

Owns the order and the verdict; recovery and manifests are the repository's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import verify_files
from hfx.releases import MINIMUM_SECURE
from hfx.repository import recover
from hfx.repository.catalog import models


def check_published(repository: Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Finish what a crashed export left, and compare every file of the models with its manifest.

    NAMES limits this to some models. Raises RepositoryError naming the files that are not as they were published.
    """
    for done in recover(repository):
        say(done)
    for entry in models(repository):
        if names and entry.name not in names:
            continue
        problems = [entry.problem] if entry.problem else []
        if entry.manifest:
            problems = [problem.message for problem in verify_files(entry.manifest, repository)]
        if problems:
            raise ModelCorrupt(
                f"The model {entry.name!r} is not as it was published:\n" + "\n".join(problems),
                "Export it again with --force, or serve the others with --models.",
            )


def check_release(repository: Path, names: Sequence[str], tag: str) -> None:
    """Raise UsageError when a model needs a later Triton release than `tag`; NAMES limits this to some models."""
    for entry in models(repository):
        if (names and entry.name not in names) or not entry.manifest:
            continue
        minimum = entry.manifest.triton.minimum
        if tag < minimum:
            raise UsageError(
                f"The model {entry.name!r} needs Triton {minimum}; {tag} is older.",
                f"Use --triton {max(minimum, MINIMUM_SECURE)}, or serve the others with --models.",
            )
