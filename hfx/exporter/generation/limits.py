"""When an exported generator counts as its checkpoint: named limits, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hfx.exporter.options import Precision


@dataclass(frozen=True)
class Limits:
    """Limits of one precision; None: recorded, but not limited.

    `agreement`: least share of positions of the checkpoint's continuations where the likeliest token is the
    checkpoint's, positions that are a tie left out. `greedy`, `beams`: least share of whole texts with the checkpoint's
    tokens, ties counted as equal. `delta`: largest difference of any logit, as a share of the largest logit. `company`:
    most texts that have other tokens or log-probabilities, to the bit, in another batch.
    """

    agreement: float
    greedy: float | None = None
    beams: float | None = None
    delta: float | None = None
    company: int | None = 0


LIMITS: Mapping[Precision, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 of the largest logit over 12 layers. Whole texts are equal to the
    # token. One text of a hundred may differ with beams: two of their hypotheses can have equal scores at any step, and
    # that can't be told from the last scores as it can be told from a greedy text's logits.
    "fp32": Limits(agreement=0.999, greedy=1.0, beams=0.99, delta=1e-3),
    "fp16": Limits(agreement=0.99),
    "int8": Limits(agreement=0.99),
    "int4": Limits(agreement=0.99),
}
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01


def limits(precision: Precision, max_drop: float | None, same_in_any_batch: bool = True) -> Limits:
    """The limits of a precision; `max_drop` is the share of tokens that the user lets change.

    Without `same_in_any_batch`, other log-probabilities in another batch are recorded, and allowed.
    """
    chosen = replace(LIMITS[precision], company=0 if same_in_any_batch else None)
    if max_drop is None:
        return chosen
    share = 1.0 - max_drop
    return replace(
        chosen,
        agreement=share,
        greedy=None if chosen.greedy is None else share,
        beams=None if chosen.beams is None else share,
    )
