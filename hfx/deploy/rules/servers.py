"""Rules for any container that runs Triton, and for files that can't be read."""

from __future__ import annotations

from collections.abc import Iterator

from hfx.deploy.rules.subject import Files, rule
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.subject import Problem

TRITON = "https://github.com/triton-inference-server/server/blob/main"


@rule(
    "HFX901",
    "warning",
    "Render templates first (`helm template`), and check what comes out.",
    "https://helm.sh/docs/helm/helm_template/",
)
def unreadable(files: Files) -> Iterator[Problem]:
    """A file that can't be read."""
    yield from files.unreadable


@rule("HFX902", "error", "Remove the option.", f"{TRITON}/src/command_line_parser.cc")
def ready_without_models(files: Files) -> Iterator[Problem]:
    """Ready without its models."""
    for container in files.containers:
        if container.option("--strict-readiness").lower() in ("false", "0", "off", "no"):
            yield container.problem("with --strict-readiness=false it is ready while models are missing.")


@rule(
    "HFX903",
    "warning",
    "Replace the container when models change, or load them by requests (explicit).",
    f"{TRITON}/docs/user_guide/model_management.md",
)
def polled_repository(files: Files) -> Iterator[Problem]:
    """A repository that is polled."""
    for container in files.containers:
        if container.option("--model-control-mode") == "poll":
            yield container.problem("--model-control-mode=poll can load a model whose files are written in part.")


@rule(
    "HFX904", "warning", f"Use {MINIMUM_SECURE} or later.", "https://nvidia.custhelp.com/app/answers/detail/a_id/5875"
)
def vulnerable_release(files: Files) -> Iterator[Problem]:
    """A Triton release with known vulnerabilities."""
    for container in files.containers:
        if container.tag and (warning := security_warning(container.tag)):
            yield container.problem(warning)
