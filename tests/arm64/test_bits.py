"""Native operators on ARM64: the bits of x86-64, the tests of the kernels, the compiled tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfx.native import library
from tests.arm64.conftest import CHECKOUT, Machine
from tests.rigs.checkpoints import same_bits

KERNELS = ("neon-dot", "neon-i8mm")
COUNT = 32
# The emulator's processor -> what the library chooses there; where both kernels run, a trial decides.
CHOSEN = {
    "max": {*KERNELS},
    "neoverse-n1": {"neon-dot"},
    "cortex-a72": {"this processor has no dot products (FEAT_DotProd, from Armv8.2 on)"},
}
SOURCES = {"PYTHONPATH": str(CHECKOUT)}  # of the tests
NATIVE = CHECKOUT / "tests" / "unit" / "native"
# Tests that start no compiler: each file runs the shipped library with both kernels.
FILES = (
    "adapter_operators", "attention", "floats", "head", "int4", "linear", "masks",
    "self_attention", "source_attention", "tokenizers", "unigram",
)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_bits.write_all(tmp_path_factory.mktemp("models"), library())


@pytest.fixture(scope="module")
def digests(models: Path) -> dict[str, str]:
    return {kind: same_bits.digest(models, kind, COUNT) for kind in same_bits.KINDS}


@pytest.mark.parametrize("kernels", KERNELS)
def test_answers_have_the_bits_of_x86(machine: Machine, models: Path, digests: dict[str, str], kernels: str) -> None:
    emulated = Machine({**SOURCES, "HFX_NATIVE_KERNELS": kernels})
    printed = emulated.run("python", "-m", "tests.rigs.checkpoints.same_bits", models, str(COUNT))
    assert json.loads(printed.splitlines()[-1]) == digests


@pytest.mark.parametrize(("processor", "printed"), CHOSEN.items())
def test_the_library_chooses_kernels_by_the_processor(machine: Machine, processor: str, printed: set[str]) -> None:
    code = "from hfx import native; print(native.kernels() or native.refusal())"
    assert Machine({"QEMU_CPU": processor}).run("python", "-c", code).strip() in printed


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_the_tests_of_operators_and_tokenizers_pass(machine: Machine, name: str) -> None:
    words = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", NATIVE / f"test_{name}.py")
    assert " passed" in Machine(SOURCES).run(*words)
