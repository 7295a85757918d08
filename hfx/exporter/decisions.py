"""The parameters of a text classifier that turn scores into decisions: a threshold, and the labels of safe texts.

Moderations of the public HTTP port read them (front/labels.py).
"""

from __future__ import annotations

import json

from hfx.errors import UsageError
from hfx.exporter.encoder.kinds.kind import labels_of
from hfx.exporter.options import ExportOptions
from hfx.exporter.plan import Plan
from hfx.names import Task
from hfx.tasks.kinds import SAFE_LABELS, THRESHOLD


def decision_parameters(plan: Plan, options: ExportOptions) -> dict[str, str]:
    """Return the parameters of NAME's configuration that `options` set. Raises UsageError for invalid ones."""
    if options.threshold is None and not options.safe_label:
        return {}
    if plan.kind.task is not Task.TEXT_CLASSIFICATION:
        message = f"--threshold and --safe-label are for text-classification, not for {plan.kind.task}."
        raise UsageError(message, "Leave them out.")
    if options.threshold is not None and not 0 <= options.threshold <= 1:
        raise UsageError(f"--threshold {options.threshold} is out of range.", "Scores are from 0 to 1.")
    known = labels_of(plan.checkpoint.config)
    if unknown := [label for label in options.safe_label if label not in known]:
        raise UsageError(f"The model has no label {unknown[0]!r} (--safe-label).", f"Its labels: {', '.join(known)}.")
    if set(options.safe_label) == set(known):
        raise UsageError("All labels are safe (--safe-label).", "Leave out the labels of texts to flag.")
    threshold = {} if options.threshold is None else {THRESHOLD: f"{options.threshold:g}"}
    return threshold | ({SAFE_LABELS: json.dumps(options.safe_label)} if options.safe_label else {})
