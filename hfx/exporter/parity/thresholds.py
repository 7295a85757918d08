"""When an exported file counts as the checkpoint: named limits, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hfx.exporter.options import Precision


@dataclass(frozen=True)
class Limits:
    """Limits of one precision; None: recorded, but not limited.

    `agreement`: least share of equal answers, ties counted as equal. `drift`: largest mean difference of scores.
    `delta`: largest difference of any output of the net, as a share of the largest output (at least 1). `company`:
    largest difference of an output between a request alone and in a batch.
    """

    agreement: float
    drift: float
    delta: float | None
    company: float | None


LIMITS: dict[Precision, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 over 12 layers. A wrong graph is off by more than 1e-2. Answers may
    # differ only where two scores are equal to the last bits.
    "fp32": Limits(agreement=0.995, drift=1e-4, delta=1e-3, company=0.0),
    # 11 bits of mantissa: 1e-3 an operation, averaged out over a row. GPU libraries choose kernels by batch size, so
    # that the last bits depend on it by nature.
    "fp16": Limits(agreement=0.985, drift=5e-3, delta=None, company=None),
    # 8 bits: answers that stood on the edge (the bundled texts are far from what most models were trained on) may
    # tip; more than these few mean that an outlier weight or activation was lost.
    "int8": Limits(agreement=0.95, drift=2e-2, delta=None, company=0.0),
}
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01


def limits(precision: Precision, max_drop: float | None) -> Limits:
    """The limits of a precision; `max_drop` is the share of answers that the user lets change."""
    chosen = LIMITS[precision]
    if max_drop is None:
        return chosen
    return replace(chosen, agreement=1.0 - max_drop, drift=max(chosen.drift, max_drop))
