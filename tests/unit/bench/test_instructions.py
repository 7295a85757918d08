"""Simulated loops: what is read from assembly, and the least shares of the shipped kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import instructions
from bench.instructions import Kernel, Loop
from hfx.errors import FetchFailed, LoadFailed

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks-arm64.md"
SIMULATOR = "llvm-mca-19"  # of the page's tables
SUM = "_ZN3hfx12_GLOBAL__N_13sumILi2ELb1EEEvPKhllPKaPi"
ASSEMBLY = f"""\
\t.text
{SUM}:      // @sum
\t.cfi_startproc
\tcbz\tx1, .LBB0_3
.LBB0_1:                                // =>This Loop Header: Depth=1
\tmov\tx3, xzr
.LBB0_2:                                //   Parent Loop BB0_1 Depth=1
\tldp\tq0, q1, [x0], #32               // 32-byte Folded Reload
\tldr\tq2, [x2]
\tprfm\tpldl2keep, [x2, #4096]
\tsdot\tv3.4s, v0.16b, v2.4b[0]
\tsdot\tv4.4s, v1.16b, v2.4b[0]
\tcmp\tx3, x1
\tb.lt\t.LBB0_2
// %bb.3:
\tb.ne\t.LBB0_1
.LBB0_3:
\tret
_ZN3hfx5otherEv:
\tcbnz\tx0, _ZN3hfx5otherEv
"""


def test_an_innermost_loop_is_read_from_assembly() -> None:
    [loop, other] = instructions.loops(ASSEMBLY)
    assert (loop.function, other.function) == (SUM, "_ZN3hfx5otherEv")
    assert loop.instructions[0] == "ldp\tq0, q1, [x0], #32" and loop.instructions[-1] == "b.lt\t.LBB0_2"
    assert len(loop.instructions) == 7 and loop.count("sdot") == 2 and loop.count("ld.*") == 2


@pytest.mark.parametrize("text", ["", "\n", "\tb.lt\t.LBB0_2\n", ".L1:\n\t.word\t.L1\n", "é:\n"])
def test_assembly_without_a_loop_has_none(text: str) -> None:
    assert [*instructions.loops(text)] == []


def test_a_kernel_is_known_by_its_function_and_products() -> None:
    loops = [*instructions.loops(ASSEMBLY)]
    assert instructions.kernels({"linear_dot": loops, "linear_i8mm": loops}) == [Kernel("sdot", "int4", 2, loops[0])]


def test_the_command_fails_with_the_packages_name_without_llvm_mca(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "TOOLS", ("no-such-tool",))
    monkeypatch.setattr(instructions, "assembly", lambda _: ASSEMBLY)
    assert instructions.main() == FetchFailed.exit_code
    assert "llvm" in capsys.readouterr().err


def test_a_tool_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho no such processor >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(instructions, "TOOLS", (str(tool),))
    with pytest.raises(LoadFailed, match="no such processor"):
        instructions.cycles(Loop("f", ("ret",)), "neoverse-n1")


@pytest.mark.full
@pytest.mark.skipif(not any(map(shutil.which, instructions.TOOLS)), reason="llvm-mca is not installed")
def test_the_loops_of_the_shipped_kernels_keep_the_vector_units_busy() -> None:
    loops = {source: [*instructions.loops(instructions.assembly(source))] for source in instructions.SOURCES}
    found = {each.names: each for each in instructions.kernels(loops)}
    least = {("sdot", "int8", str(rows)): 0.95 for rows in range(2, 7)}
    # Zipping the weights takes one product's time for each pair of columns.
    least |= {("smmla", "int8", str(2 * pairs)): 0.97 * pairs / (pairs + 1) for pairs in range(2, 13)}
    least |= {("sdot", "int4", str(rows)): 0.97 * rows / (rows + 1) for rows in range(2, 6)}
    shares = {
        (*names, each): found[names].share(each)
        for names in least
        for each in instructions.UNITS
        if names[0] == "sdot" or each != instructions.WITHOUT_SMMLA
    }
    assert found.keys() - least.keys() == {("sdot", "int8", "1"), ("sdot", "int4", "1")}
    assert {key: share for key, share in shares.items() if share < least[key[:3]]} == {}


@pytest.mark.full
@pytest.mark.skipif(not shutil.which(SIMULATOR), reason=f"{SIMULATOR} is not installed")
def test_the_page_has_the_tables_that_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "TOOLS", (SIMULATOR,))
    assert instructions.main() == 0
    assert capsys.readouterr().out.strip() in PAGE.read_text(encoding="utf-8")
