"""The linter: every rule, and one function that applies them to a repository.

The linter works offline, also on repositories that hfx didn't make. It changes nothing, and reports unreadable files as
findings.
"""

from __future__ import annotations

import os
from pathlib import Path

from hfx.errors import LintFailed
from hfx.native.build import MACHINE
from hfx.releases import MINIMUM_SECURE, release
from hfx.repository.rules import ensembles, files, onnx_files, python_models, scheduling
from hfx.repository.subject import Finding, Rule, read_subject

FINDINGS_SHOWN = 5
_MODULES = (files, ensembles, scheduling, onnx_files, python_models)
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
RULES = tuple(sorted(_RULES, key=lambda rule: rule.id))


def lint(
    repository: Path, triton_tag: str = MINIMUM_SECURE, cores: int | None = None, machine: str = MACHINE
) -> list[Finding]:
    """Return every finding, sorted by path and line; an empty list for a healthy repository.

    `triton_tag` is the Triton release that will serve the repository. `cores` is the number of cores of the machine
    that will run it, and `machine` its processor, as platform.machine() names it (default: this machine's). Raises
    RepositoryError if `repository` is not a folder, and UsageError for a tag that hfx.releases doesn't know.
    """
    subject = read_subject(repository, release(triton_tag), cores or os.cpu_count() or 1, machine)
    findings = {finding for rule in RULES for finding in rule.findings(subject)}
    return sorted(findings, key=lambda finding: (finding.path, finding.line or 0, finding.rule, finding.message))


def check_rules(repository: Path, triton_tag: str, fix: str) -> None:
    """Raise LintFailed with `fix` if `repository` breaks a rule of severity "error"."""
    if errors := [finding for finding in lint(repository, triton_tag) if finding.severity == "error"]:
        broken = "; ".join(map(str, errors[:FINDINGS_SHOWN]))
        raise LintFailed(f"The model would break {len(errors)} rules: {broken}", fix)
