"""The gate's figures of one file in words. It must not know how they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figures_line(figures: Mapping[str, Any]) -> str:
    """One line of the figures in a manifest's `parity`, of an encoder's file or of a generator's engine."""
    if "unverified" in figures:
        return f"{figures['precision']}, not verified on this machine: {figures['unverified']}"
    return _generator_line(figures) if "forced" in figures else _encoder_line(figures)


def _encoder_line(figures: Mapping[str, Any]) -> str:
    return (
        f"{figures['precision']}, {figures['requests']} requests: agreement {100 * figures['agreement']:.2f} %"
        + (f" (and {100 * figures['ties']:.2f} % ties)" if figures["ties"] else "")
        + f", "
        f"score drift {figures['mean_drift']:.1e} (max {figures['max_drift']:.1e}), "
        f"largest difference {figures['delta']:.1e}, alone and in a batch "
        + ("equal to the bit" if figures["company"] == 0 else f"within {figures['company']:.1e}")
    )


def _generator_line(figures: Mapping[str, Any]) -> str:
    forced, beams = figures["forced"], figures["beams"]
    kinds = {"greedy": figures["greedy"], **({f"{beams['num_beams']} beams": beams} if beams else {})}
    same = ", ".join(
        f"{name} {100 * each['same']:.1f} % of {each['texts']}"
        + (f" (and {100 * each['ties']:.1f} % ties)" if each["ties"] else "")
        for name, each in kinds.items()
    )
    other = sum(each["company"] for each in kinds.values())
    runtime = f" on {figures['runtime']}" if "runtime" in figures else ""
    return (
        f"{figures['precision']}{runtime}, {forced['positions']} tokens of {forced['texts']} texts: agreement "
        f"{100 * figures['agreement']:.2f} %"
        + (f" (beside {100 * forced['ties']:.2f} % ties)" if forced["ties"] else "")
        + f", largest difference of a logit {forced['delta']:.1e}, same texts: {same}, "
        + (
            "alone and in a batch equal to the bit"
            if other == 0
            else f"{other} texts whose last bits depend on the batch"
        )
    )
