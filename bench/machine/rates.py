"""What this machine can do at most: bytes read a second, and multiplications of matrices in fp32 and int8.

Owns where the figures are kept: measured once for each processor and number of cores, in a process of its own. It must
not know how they are measured (probe.py) or what they are used for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hfx.errors import HfxError, UsageError
from hfx.perf import machine as facts
from hfx.perf.cache import root
from hfx.perf.machine import cores, processor
from hfx.perf.results.schema import Machine, Rates

FILE = "rates.json"
METHOD = 1  # goes up when probe.py measures otherwise
PROBE = "bench.machine.probe"
PROBE_SECONDS = 300.0


@dataclass(frozen=True)
class Measured:
    """The rates, and for each of them the way that reached it."""

    rates: Rates
    ways: Mapping[str, str]


def machine(rates: bool = False) -> Machine:
    """This machine now; with RATES also what it can do at most, measured where that is not known yet."""
    return replace(facts.machine(), rates=measured_rates() if rates else known_rates())


def known_rates() -> Rates | None:
    """The rates where they were measured before; None otherwise. Measures nothing."""
    found = _kept()
    return found.rates if found else None


def measured_rates(again: bool = False) -> Rates:
    """The rates, measured now if they are not known, or AGAIN. It takes some seconds of all cores."""
    return measurements(again).rates


def measurements(again: bool = False) -> Measured:
    """As `measured_rates`, and how each was reached. Raises UsageError for missing packages.

    Of a rate that was measured before, the higher figure is kept: other work can only lower it.
    """
    found = None if again else _kept()
    return found or _keep(best(_entries().get(_key()), _probe()))


def best(before: Any, now: dict[str, Any]) -> dict[str, Any]:
    """Each rate with its way, the higher of the two."""
    if _measured(before) is None:
        return now
    return {name: max(found, before.get(name, found), key=lambda each: each[0]) for name, found in now.items()}


def _key() -> str:
    return f"{processor()}, {cores()} cores, method {METHOD}"


def _kept() -> Measured | None:
    return _measured(_entries().get(_key()))


def _entries() -> dict[str, Any]:
    try:
        entries = json.loads((root() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _measured(entry: Any) -> Measured | None:
    try:
        rates = {name: float(rate) for name, (rate, _) in entry.items()}
        return Measured(Rates(**rates), {name: str(way) for name, (_, way) in entry.items()})
    except (AttributeError, TypeError, ValueError):  # nothing, or damaged: it is measured anew
        return None


def _keep(found: dict[str, Any]) -> Measured:
    measured = _measured(found)
    if measured is None:
        raise HfxError("This machine's rates could not be measured.", "Run `python -m bench.machine.probe` to see why.")
    entries = _entries() | {_key(): found}
    try:
        root().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=root(), prefix=f".{FILE}-", delete=False, encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
        Path(file.name).replace(root() / FILE)
    except OSError as error:
        raise UsageError(
            f"The rates can't be kept in {root()}: {error.strerror}.", "Set HFX_PERF_CACHE to another folder."
        ) from error
    return measured


def _probe() -> dict[str, Any]:
    """Rate and way by name, from a fresh process: threads of ours would take part in it."""
    command = [sys.executable, "-m", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise HfxError(
            f"Measuring this machine's rates took longer than {PROBE_SECONDS:g} s.",
            "Other work was going on: try again.",
        ) from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise UsageError(f"This machine's rates can't be measured: {words}", "pip install 'hfx[export]'")
    return json.loads(done.stdout)  # type: ignore[no-any-return]
