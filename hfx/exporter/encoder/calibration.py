"""Temperature scaling of a classifier (Guo et al., 2017, "On Calibration of Modern Neural Networks").

The logits are divided by one number, the temperature, with which the labels of the user's rows are likeliest. No label
changes its place; scores come closer to the shares of right answers. The division is a part of the net.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from hfx.errors import UsageError
from hfx.exporter.encoder.gate import forward
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.labelled_data import LabelledData
from hfx.local import Tensors
from hfx.names import ATTENTION_MASK, INPUT_IDS, LOGITS

CALIBRATED, TEMPERATURE = "calibration", "temperature"  # in the manifest's choices; of CALIBRATED
HOTTEST = 20.0  # the largest temperature; the least one is its inverse
FEWEST_ROWS = 20
HALVINGS = 60  # of the interval that holds the temperature: to the last bit


def fit(plan: EncoderPlan, data: LabelledData, tokenizer: Any, model: Any, pooler: Any) -> dict[str, Any]:
    """Return the temperature of the checkpoint for `data`, and the number of rows. Raises UsageError."""
    settings = plan.kind.last_step_settings(plan.checkpoint.config)
    if settings["activation"] == "none" or len(settings["labels"]) < 2:
        raise UsageError("--calibrate is for classifiers of two labels or more.", "Leave it out.")
    if len(data.targets) < FEWEST_ROWS:
        raise UsageError(f"{len(data.targets)} rows do not calibrate a model.", f"Give {FEWEST_ROWS} rows or more.")
    ids = [plan.kind.expected_ids(tokenizer, dict(each), plan.max_length) for each in data.requests]
    encoded: list[Tensors] = [{INPUT_IDS: np.array(each), ATTENTION_MASK: np.ones((1, len(each[0])))} for each in ids]
    outputs = forward(model, encoded, (INPUT_IDS, ATTENTION_MASK), (LOGITS,), frozenset(), pooler)
    logits = np.stack([each[LOGITS].reshape(-1) for each in outputs]).astype(np.float64)
    right = np.array([settings["labels"].index(target) for target in data.targets])
    found = temperature(logits, right, settings["activation"] == "softmax")
    return {TEMPERATURE: found, "rows": len(right)}


def temperature(logits: NDArray[np.float64], right: NDArray[np.int64], exclusive: bool) -> float:
    """Return the temperature that gives the labels `right` the least cross-entropy.

    `logits` are `[rows, labels]`. The cross-entropy is convex in the inverse of the temperature, so its slope has one
    zero. `exclusive` labels have a softmax, others a sigmoid each.
    """
    targets = np.eye(logits.shape[1])[right]

    def slope(inverse: float) -> float:
        scaled = inverse * logits
        total = np.logaddexp.reduce(scaled, axis=1, keepdims=True) if exclusive else np.logaddexp(0, scaled)
        scores = np.exp(scaled - total)
        return float(((scores - targets) * logits).sum())

    low, high = 1 / HOTTEST, HOTTEST
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.float32(1 / high))


def divide(graph: onnx.ModelProto, by: float) -> None:
    """Divide the logits of `graph` by the temperature."""
    raw, number = f"{LOGITS}_raw", TEMPERATURE
    for node in graph.graph.node:
        node.output[:] = [raw if name == LOGITS else name for name in node.output]
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(by, np.float32), number))
    graph.graph.node.append(onnx.helper.make_node("Div", [raw, number], [LOGITS]))


def divided(outputs: Sequence[Tensors], by: float) -> list[Tensors]:
    """Return a net's `outputs` with logits divided by the temperature."""
    return [{**each, LOGITS: each[LOGITS] / np.float32(by)} if LOGITS in each else each for each in outputs]
