"""Failures of the benchmarks, beside those of hfx."""

from __future__ import annotations

from hfx.errors import HfxError


class PeerFailed(HfxError):
    """A peer that is not here, or can't do what it is asked for; the message is a line for notes."""

    exit_code = 5

    def __str__(self) -> str:
        return self.message


class OpenFailed(PeerFailed):
    """A peer that can't be opened here, or whose process has ended."""


class CaseFailed(PeerFailed):
    """A case that an open peer can't run. The peer may run others."""


class PerformanceRegression(HfxError):
    """hfx is slower beside its peers than the committed baseline, beyond noise."""
