"""What the gate measures of one engine folder, the limits of each precision with their reasons, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hfx.errors import VerificationFailed
from hfx.exporter.options import Precision

# The usual and the worst error of logits at long texts, as multiples of those at short ones; or LEAST_ERROR. Of right
# random and trained GPT-2, Llama, BART and T5, int8 in all runtimes, they are 0.6 to 1.2 and 0.5 to 2.1; of some random
# ones of odd shapes up to 2.0 and 2.2. Where positions, distances or chunks are wrong
# (tests/unit/exporter/test_generation_long.py), one of both is 2.3 to 40. Next tokens do not tell: of right int8
# engines 96 to 99 % are equal in running text, of wrong ones up to 100 %.
MOST_GROWTH, MOST_WORST, LEAST_ERROR = 2.0, 4.0, 0.02
OWN_TEXTS = "The bundled texts may be unlike what it was trained on: give some of yours with --verify-data. "


@dataclass(frozen=True)
class Limits:
    """Limits of one precision; None: recorded, but not limited.

    `agreement`: least share of positions of the checkpoint's continuations where the likeliest token is the
    checkpoint's, positions that are a tie left out. `greedy`, `beams`: least share of whole texts with the checkpoint's
    tokens, ties counted as equal. `delta`: largest difference of any logit, as a share of the largest logit.
    `batch_variant`: most texts that have other tokens or log-probabilities, to the bit, in another batch.
    """

    agreement: float
    greedy: float | None = None
    beams: float | None = None
    delta: float | None = None
    batch_variant: int | None = 0


LIMITS: Mapping[Precision, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 of the largest logit over 12 layers. Whole texts are equal to the
    # token. One text of a hundred may differ with beams: two of their hypotheses can have equal scores at any step, and
    # that can't be told from the last scores as it can be told from a greedy text's logits.
    "fp32": Limits(agreement=0.999, greedy=1.0, beams=0.99, delta=1e-3),
    "fp16": Limits(agreement=0.99),
    "int8": Limits(agreement=0.99),
    "int4": Limits(agreement=0.99),
}


def limits(precision: Precision, max_drop: float | None, same_in_any_batch: bool = True) -> Limits:
    """The limits of a precision; `max_drop` is the share of tokens that the user lets change.

    Without `same_in_any_batch`, other log-probabilities in another batch are recorded, and allowed.
    """
    chosen = replace(LIMITS[precision], batch_variant=0 if same_in_any_batch else None)
    if max_drop is None:
        return chosen
    share = 1.0 - max_drop
    return replace(
        chosen,
        agreement=share,
        greedy=None if chosen.greedy is None else share,
        beams=None if chosen.beams is None else share,
    )


@dataclass(frozen=True)
class Forced:
    """Position by position along the checkpoint's greedy continuations.

    `agreement` is the share of `positions` with the checkpoint's likeliest token, of those that are no tie; `ties` the
    share of positions with another token whose logit in torch is as high, within torch's own noise. `texts` says
    whose positions they are: of the user's own texts where there are any, then `bundled_agreement` is that of the
    others. `delta` is the largest difference of a logit, `delta_share` the same as a share of the largest logit, over
    `rows` whole rows of both. `error` is the usual and `worst` the largest error of a row (forced.Errors).
    """

    texts: str
    positions: int
    agreement: float
    ties: float
    bundled_agreement: float | None
    delta: float
    delta_share: float
    rows: int
    error: float
    worst: float


@dataclass(frozen=True)
class Long:
    """As Forced, at places of `texts` long texts, whose longest prompt has `longest` tokens."""

    texts: int
    longest: int
    positions: int
    agreement: float
    ties: float
    error: float
    worst: float
    delta_share: float


@dataclass(frozen=True)
class Whole:
    """Whole continuations through the engine, all requests together.

    The share of `texts` with the checkpoint's tokens, the share of those that part from it at a tie, and `company`: how
    many of the `alone` texts that were run again, alone and in smaller batches, had other tokens or log-probabilities.
    """

    texts: int
    same: float
    ties: float
    alone: int
    company: int


@dataclass(frozen=True)
class Figures:
    """All of one folder. `noise` is torch's own, in logits; `num_beams` are those of `beams`."""

    forced: Forced
    greedy: Whole
    beams: Whole | None
    num_beams: int
    noise: float
    long: Long | None = None  # a model may take too few tokens for any

    def as_json(self) -> dict[str, Any]:
        """The figures for the manifest; `agreement` stands where every model has it."""
        return {
            "agreement": _short(self.forced.agreement),
            "forced": _shortened(self.forced),
            "greedy": _shortened(self.greedy),
            "beams": None if self.beams is None else {"num_beams": self.num_beams, **_shortened(self.beams)},
            "noise": _short(self.noise),
            "long": None if self.long is None else _shortened(self.long),
        }


def judge(what: str, figures: Figures, limits: Limits) -> None:
    """Raise VerificationFailed, with the figures, unless all are within `limits`. A NaN is never within."""
    if failed := failures(figures, limits):
        raise VerificationFailed(
            f"{what} does not continue texts like the checkpoint: {'; '.join(failed)}.",
            f"Nothing was published. {OWN_TEXTS if figures.forced.texts == 'bundled' else ''}"
            "Use another --precision or --cpu-runtime, or accept more with --max-drop.",
        )


def failures(figures: Figures, limits: Limits) -> list[str]:
    """What is beyond the limits, in words."""
    forced = figures.forced
    checks = {
        f"token agreement {forced.agreement:.4f} at {forced.positions} positions of {forced.texts} texts "
        f"({forced.ties:.4f} ties left out), "
        f"at least {limits.agreement:.4f}": forced.agreement >= limits.agreement,
        f"logits finite, largest difference {forced.delta:.2e}": bool(np.isfinite(forced.delta)),
    }
    if limits.delta is not None:
        text = f"largest difference {forced.delta_share:.2e} of the largest logit, at most {limits.delta:.0e}"
        checks[text] = forced.delta_share <= limits.delta
    checks |= _long_checks(figures, limits)
    for name, whole, least in (("greedy", figures.greedy, limits.greedy), ("beams", figures.beams, limits.beams)):
        if whole is None:
            continue
        if least is not None:
            text = f"{name}: {whole.same:.4f} of {whole.texts} texts and {whole.ties:.4f} ties, at least {least:.4f}"
            checks[text] = round(whole.same + whole.ties, 9) >= least
        if limits.batch_variant is not None:
            text = f"{name}: {whole.company} of {whole.alone} texts have other log-probabilities in another batch"
            checks[text] = whole.company <= limits.batch_variant
    return [text for text, passed in checks.items() if not passed]


def _long_checks(figures: Figures, limits: Limits) -> dict[str, bool]:
    """Long texts are judged by logits: the next token of any text is less sure than that of the checkpoint's own."""
    long, short = figures.long, figures.forced
    if long is None:
        return {}
    where = f"at {long.positions} positions of texts up to {long.longest} tokens"
    most, worst = (max(limit, LEAST_ERROR) for limit in (MOST_GROWTH * short.error, MOST_WORST * short.worst))
    checks = {
        f"error of logits {long.error:.2e} {where}, at most {most:.2e}": long.error <= most,
        f"worst error of logits {long.worst:.2e} {where}, at most {worst:.2e}": long.worst <= worst,
    }
    if limits.delta is not None:
        text = f"largest difference {long.delta_share:.2e} of the largest logit {where}, at most {limits.delta:.0e}"
        checks[text] = long.delta_share <= limits.delta
    return checks


def _shortened(value: Any) -> dict[str, Any]:
    return {name: _short(each) if isinstance(each, float) else each for name, each in asdict(value).items()}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
