"""`python -m bench.machine [--again]`: this machine, and what it can do at most (some seconds on all cores)."""

from __future__ import annotations

import sys

from bench.machine.rates import machine, measurements

UNITS = {"read_bytes": "GB/s", "fp32_operations": "Gop/s", "int8_operations": "Gop/s"}


def main() -> None:
    """Print the machine, and a line for each rate with the program that reached it."""
    measured, found = measurements("--again" in sys.argv[1:]), machine()
    print(f"{found.processor}, {found.cores} cores, {found.memory >> 30} GiB, load {found.load:.1f}")
    for name, unit in UNITS.items():
        print(f"{name:16}{getattr(measured.rates, name) / 1e9:8.1f} {unit:6} {measured.ways[name]}")


if __name__ == "__main__":
    main()
