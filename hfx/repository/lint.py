"""The linter: every rule, and one function that applies them to a repository.

It works offline, on repositories that hfx didn't make too, and changes nothing; what it can't read is a finding.
"""

from __future__ import annotations

import os
from pathlib import Path

from hfx.releases import MINIMUM_SECURE, release
from hfx.repository.rules import ensembles, files, manifests, onnx_files, python_models, scheduling
from hfx.repository.subject import Finding, Rule, read_subject

_MODULES = (files, manifests, ensembles, scheduling, onnx_files, python_models)
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
RULES = tuple(sorted(_RULES, key=lambda rule: rule.id))


def lint(repository: Path, triton_tag: str = MINIMUM_SECURE, cores: int | None = None) -> list[Finding]:
    """Every finding, sorted by path and line; an empty list for a healthy repository.

    `triton_tag` is the release that will serve it, `cores` are those of the machine that will (this one's by default).
    Raises RepositoryError when `repository` is no folder, and UsageError for a tag that hfx.releases doesn't know.
    """
    subject = read_subject(repository, release(triton_tag), cores or os.cpu_count() or 1)
    findings = {finding for rule in RULES for finding in rule.findings(subject)}
    return sorted(findings, key=lambda finding: (finding.path, finding.line or 0, finding.rule, finding.message))
