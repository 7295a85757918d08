"""The parameters of a text classifier that turn scores into decisions: thresholds, and the labels of safe texts.

Moderations of the public HTTP port read them (front/labels.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hfx.errors import UsageError
from hfx.exporter.encoder.kinds.classifier import Classifier, thresholds
from hfx.exporter.options import ExportOptions
from hfx.exporter.plan import Plan
from hfx.tasks.kinds import SAFE_LABELS, THRESHOLDS


def decision_parameters(plan: Plan, options: ExportOptions) -> dict[str, str]:
    """Return the parameters of NAME's configuration that `options` set. Raises UsageError for invalid ones."""
    if not isinstance(plan.kind, Classifier) or not (options.threshold or options.safe_label):
        return {}  # other kinds refuse these options
    known = plan.kind.last_step_settings(plan.checkpoint.config)["labels"]
    _check_known(known, options.safe_label, "--safe-label")
    if set(options.safe_label) == set(known):
        raise UsageError("All labels are safe (--safe-label).", "Leave out the labels of texts to flag.")
    stated = thresholds(options.threshold)
    _check_known(known, [label for label in stated if label], "--threshold")
    parameters = {THRESHOLDS: stated, SAFE_LABELS: options.safe_label}
    return {name: json.dumps(value) for name, value in parameters.items() if value}


def _check_known(known: Sequence[str], labels: Sequence[str], option: str) -> None:
    if unknown := [label for label in labels if label not in known]:
        raise UsageError(f"The model has no label {unknown[0]!r} ({option}).", f"Its labels: {', '.join(known)}.")
