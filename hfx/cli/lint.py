"""`hfx lint`: a repository against the rules, offline. The rules are hfx.repository's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hfx.cli.connection import DEFAULT_REPOSITORY, RepositoryArgument
from hfx.cli.output import reporter
from hfx.errors import LintFailed
from hfx.releases import MINIMUM_SECURE


def command(
    context: typer.Context,
    repository: RepositoryArgument = DEFAULT_REPOSITORY,
    triton: Annotated[
        str, typer.Option(help="Tag of the Triton release that will serve it.", metavar="TAG")
    ] = MINIMUM_SECURE,
    cores: Annotated[
        int | None, typer.Option(help="Cores of the machine that will serve it; this one's without it.")
    ] = None,
) -> None:
    """Check a model repository against hfx's rules, without a server.

    Examples:
      hfx lint
      hfx lint /srv/models --triton 26.07 --cores 8
    """
    from hfx.repository.lint import lint

    report = reporter(context)
    findings = lint(repository, triton, cores)
    lines = [line for finding in findings for line in finding.lines()]
    value = {"repository": str(repository), "findings": [asdict(finding) for finding in findings]}
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    report.result(value, [*lines, f"{errors} errors, {warnings} warnings."])
    if errors:
        raise LintFailed(f"{repository} breaks the rules in {errors} places.", "Each finding above says what to do.")
