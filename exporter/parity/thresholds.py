"""When an exported file counts as the checkpoint: named limits, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from hfx.exporter.plan import Precision


@dataclass(frozen=True)
class Limits:
    """`agreement`: least share of equal answers. `drift`: largest mean difference of scores. `delta`: largest
    difference of any output of the net, as a share of the largest output (at least 1); None: not limited.
    """

    agreement: float
    drift: float
    delta: float | None


LIMITS: dict[Precision, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 over 12 layers. A wrong graph is off by more than 1e-2. Answers may
    # differ only where two scores are equal to the last bits.
    "fp32": Limits(agreement=0.995, drift=1e-4, delta=1e-3),
    # 11 bits of mantissa: 1e-3 an operation, averaged out over a row.
    "fp16": Limits(agreement=0.985, drift=5e-3, delta=None),
    # 8 bits: answers that stood on the edge (the bundled texts are far from what most models were trained on) may
    # tip; more than these few mean that an outlier weight or activation was lost.
    "int8": Limits(agreement=0.95, drift=2e-2, delta=None),
}
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01


def limits(precision: Precision, max_drop: float | None) -> Limits:
    """The limits of a precision; `max_drop` is the share of answers that the user lets change."""
    chosen = LIMITS[precision]
    return chosen if max_drop is None else Limits(1.0 - max_drop, max(chosen.drift, max_drop), chosen.delta)
