"""Count the cycles of the inner loops for aarch64 with llvm-mca, without such a processor: `python -m bench.instructions`.

llvm-mca (Debian: llvm-19) simulates a processor from its published tables of instructions, with all data in the
first-level cache. The sources of hfx/native/arm are compiled with the compiler of the build, and each innermost loop
with products is simulated. The table has the share of the cycles in which the units for vectors could not do more
products, by processor.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import UsageError
from hfx.native import build

PRODUCTS = {"linear_dot": "sdot", "linear_i8mm": "smmla"}
# Processor -> products in a cycle: as many as it has units for vectors.
UNITS = {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "neoverse-v2": 4}
WITHOUT_MATRICES = {"neoverse-n1"}
ITERATIONS = 200
TOOLS = ("llvm-mca-20", "llvm-mca-19", "llvm-mca-18")  # llvm-mca 14 of Debian 12 lacks a processor
TEMPLATE = re.compile(r"_ZN3hfx12_GLOBAL__N_1\d+(sum|multiply)ILi(\d+)ELb([01])E")


@dataclass(frozen=True)
class Loop:
    """An innermost loop: the name of its function, and its instructions."""

    name: str
    product: str
    lines: tuple[str, ...]

    @property
    def products(self) -> int:
        """The number of products in an iteration."""
        return sum(line.split()[0] == self.product for line in self.lines if line.split())


def loops(source: str) -> Iterator[Loop]:
    """Yield the innermost loops of hfx/native/arm/SOURCE.cpp that have products."""
    target, product = build.TARGETS["aarch64"], PRODUCTS[source]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / build.HEADER).write_text(build.header(), encoding="utf-8")
        compiles, _ = build.commands(path, target)
        [command] = (each for each in compiles if each[-1].endswith(f"-{source}.o"))
        assembly = path / "loops.s"
        subprocess.run([*command[:-4], "-S", "-g0", command[-3], "-o", assembly], check=True)
        text = assembly.read_text(encoding="utf-8", errors="replace")
    name, block = "", dict[str, list[str]]()
    label = ""
    for line in text.splitlines():
        if found := re.match(r"(\S+):", line):
            label = found[1]
            block = {} if TEMPLATE.match(label) else block
            name = label if TEMPLATE.match(label) else name
            block[label] = []
        elif line.startswith("\t") and not line.startswith("\t."):
            for lines in block.values():
                lines.append(line.strip())
            jumped = re.search(r"(\.L\S+)$", line)
            if jumped and jumped[1] in block and label == jumped[1]:
                loop = Loop(name, product, tuple(block[label]))
                if loop.products:
                    yield loop


def share(loop: Loop, processor: str, tool: str) -> float:
    """Return the share of the processor's products in a cycle that the loop does."""
    code = "\n".join(line.split("//")[0] for line in loop.lines)
    command = [tool, "-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+i8mm", f"-iterations={ITERATIONS}"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    cycles = int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1])
    return loop.products * ITERATIONS / UNITS[processor] / cycles


def main() -> None:
    tool = next(filter(None, map(shutil.which, TOOLS)), None)
    if tool is None:
        raise UsageError("There is no llvm-mca.", "Install it: apt install llvm-19")
    for source in PRODUCTS:
        for loop in loops(source):
            m = TEMPLATE.match(loop.name)
            print(source, m.groups(), loop.products, len(loop.lines), {p: round(share(loop, p, tool), 3) for p in UNITS if not (source == "linear_i8mm" and p in WITHOUT_MATRICES)})


if __name__ == "__main__":
    main()
