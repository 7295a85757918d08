"""What this machine is."""

from hfx.perf.machine.facts import machine

__all__ = ["machine"]
