"""Cycles of the inner loops for aarch64, simulated without such a processor: `python -m bench.instructions`.

llvm-mca simulates a processor from its published tables of instructions, with all data in the first-level cache. The
sources of hfx/native/arm are compiled as the build compiles them. The tables have the products in a cycle, as a share
of the most that the vector units can do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from bench.figures import table
from hfx.errors import FetchFailed, HfxError, LoadFailed
from hfx.native import build

SOURCES = {"linear_dot": "sdot", "linear_i8mm": "smmla"}  # and the instruction of their products
# The number of vector units, each of which can do a product in a cycle.
UNITS = {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "neoverse-v2": 4}
WITHOUT_SMMLA = "neoverse-n1"
TOOLS = ("llvm-mca-20", "llvm-mca-19", "llvm-mca-18")  # llvm-mca 14 of Debian 12 does not know neoverse-v2
ITERATIONS = 1000
LABEL = re.compile(r"([\w.$]+):")
# Mangled names: sum<rows, whether the weights are int4> and multiply<pairs of rows>.
KERNEL = re.compile(r"\d(?:sum|multiply)ILi(\d+)E(Lb1E)?")
ZIP, UNPACK = "zip2", "shl"  # what the loops without products have that zip rows and unpack int4
PANEL_ROWS = (8, 12, 16, 24, 32)  # unpacked weights of int4 are shared by at most 32
# Columns of a panel; inputs that an iteration of ZIP's loop zips, and one of UNPACK's unpacks; products of an smmla.
PANEL, STEP, UNPACKED, PRODUCTS = 64, 16, 8, 32


@dataclass(frozen=True)
class Loop:
    """An innermost loop of `function`, a mangled name."""

    function: str
    instructions: tuple[str, ...]

    def count(self, mnemonic: str) -> int:
        """Return the number of instructions whose mnemonic matches."""
        return sum(bool(re.fullmatch(mnemonic, each.split()[0])) for each in self.instructions)

    def loads(self, processor: str) -> float:
        """Return the registers that are loaded in a cycle, and prefetches, which take a unit for loads too."""
        return (self.count("ld.*|prfm") + self.count("ldp")) / cycles(self, processor)


@dataclass(frozen=True)
class Kernel:
    """A loop whose `product` multiplies `rows` rows by weights in int8 or int4."""

    product: str
    weights: str
    rows: int
    loop: Loop

    @property
    def names(self) -> tuple[str, ...]:
        """The cells of a row that name the kernel."""
        return self.product, self.weights, str(self.rows)

    @property
    def products(self) -> int:
        """The number of products in an iteration."""
        return self.loop.count(self.product)

    def share(self, processor: str) -> float:
        """Return the products in a cycle, as a share of the most."""
        return self.products / cycles(self.loop, processor) / UNITS[processor]

    def cells(self, figure: Callable[[str], float]) -> list[str]:
        """Return the figure of each processor, or a dash for one without the instruction."""
        without = WITHOUT_SMMLA if self.product == "smmla" else ""
        return ["-" if each == without else f"{figure(each):.2f}" for each in UNITS]


def main() -> int:
    """Print the tables."""
    try:
        sources = {source: [*loops(assembly(source))] for source in SOURCES}
        found = kernels(sources)
        rows = [
            (*each.names, f"{len(each.loop.instructions) / each.products:.2f}", *each.cells(each.share))
            for each in found
        ]
        loads = [(*each.names, *each.cells(each.loop.loads)) for each in found if each.rows == 1]
        smmla = [each for each in found if each.product == "smmla"]
        panels = [*_panels(smmla, [each for each in sources["linear_i8mm"] if not each.count("smmla")])]
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    columns = ("instruction", "weights", "rows")
    print(table("Loops: share of the most products", (*columns, "instructions a product", *UNITS), rows))
    print(table("One row: loads in a cycle", (*columns, *UNITS), loads))
    print(table("Panels: share of the most products", (*columns, *UNITS), panels))
    return 0


def kernels(sources: Mapping[str, Sequence[Loop]]) -> list[Kernel]:
    """Return the loops with products of the `sources`, ordered by instruction, weights and rows."""
    found = []
    for source, product in SOURCES.items():
        for loop in sources[source]:
            if loop.count(product) and (name := KERNEL.search(loop.function)):
                rows = int(name[1]) * (2 if product == "smmla" else 1)
                found.append(Kernel(product, "int4" if name[2] else "int8", rows, loop))
    return sorted(found, key=lambda each: (each.product, -ord(each.weights[-1]), each.rows))


def _panels(found: Sequence[Kernel], others: Sequence[Loop]) -> Iterator[tuple[str, ...]]:
    """Yield the shares with the other loops that smmla needs: rows are zipped for each panel, and int4 is unpacked."""
    zips, unpacks = (next(each for each in others if each.count(name)) for name in (ZIP, UNPACK))
    for weights, unpacked in (("int8", 0), ("int4", STEP // UNPACKED)):
        for rows in PANEL_ROWS:
            tiles = -(-rows // found[-1].rows)
            kernel = next(each for each in found if each.rows * tiles == rows)
            overhead = [zips] * (rows // 2) + [unpacks] * unpacked
            yield "smmla", weights, str(rows), *kernel.cells(partial(_panel_share, kernel, rows, overhead))


def _panel_share(kernel: Kernel, rows: int, overhead: Iterable[Loop], processor: str) -> float:
    least = rows * STEP * PANEL / PRODUCTS / UNITS[processor]
    return least / (least / kernel.share(processor) + sum(cycles(each, processor) for each in overhead))


def assembly(source: str) -> str:
    """Return hfx/native/arm/`source`.cpp as the build's compiler writes it. Raises LoadFailed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, build.HEADER).write_text(build.header(), encoding="utf-8")
        commands, _ = build.commands(Path(folder), build.TARGETS["aarch64"])
        [*command, _, path, _, output] = next(each for each in commands if each[-1].endswith(f"-{source}.o"))
        _output([*command, "-S", "-g0", path, "-o", output])
        return Path(output).read_text(encoding="utf-8")


def loops(assembly: str) -> Iterator[Loop]:
    """Yield the loops without another label: those that end with a jump to the label before them."""
    function, label, lines = "", "", list[str]()
    for line in assembly.splitlines():
        if match := LABEL.match(line):
            label, lines = match[1], []
            function = function if label.startswith(".") else label
        elif line.startswith("\t") and not line.startswith("\t."):
            lines.append(line.split("//")[0].strip())
            if lines[-1].split()[-1] == label:
                yield Loop(function, tuple(lines))


@cache
def cycles(loop: Loop, processor: str) -> float:
    """Return the cycles of an iteration. Raises FetchFailed without llvm-mca."""
    tool = next(filter(None, map(shutil.which, TOOLS)), None)
    if tool is None:
        raise FetchFailed("llvm-mca is not installed, or too old.", "apt install llvm-19")
    command = [tool, "-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+i8mm", f"-iterations={ITERATIONS}"]
    return int(re.findall(r"Total Cycles:\s+(\d+)", _output(command, "\n".join(loop.instructions)))[0]) / ITERATIONS


def _output(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
