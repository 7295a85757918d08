"""The linter of deployments: every rule, and one function that applies them to a folder of manifests.

It works offline, on files that hfx didn't write too, and changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from hfx.deploy.rules import compose, kubernetes, sagemaker, servers
from hfx.deploy.rules.subject import DeploymentRule, Files, read_files
from hfx.repository.subject import Finding

_MODULES = (servers, kubernetes, compose, sagemaker)
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, DeploymentRule))
RULES = tuple(sorted(_RULES, key=lambda rule: rule.id))


def lint(folder: Path) -> list[Finding]:
    """Every finding in the YAML and JSON files below `folder`, sorted by path."""
    return findings(read_files(folder))


def findings(files: Files) -> list[Finding]:
    """Every finding in `files`, sorted by path."""
    found = {finding for rule in RULES for finding in rule.findings(files)}
    return sorted(found, key=lambda finding: (finding.path, finding.rule, finding.message))


def has_servers(files: Files) -> bool:
    """Whether any rule has something to check."""
    return bool(files.containers or files.unreadable) or any(
        True for key in ("ProductionVariants", "PrimaryContainer", "Containers") for _ in files.with_key(key)
    )
