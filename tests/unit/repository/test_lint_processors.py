"""The linter names what does not run on a processor for this processor alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.cli import main
from hfx.native.build import TARGETS
from hfx.repository.lint import lint
from tests.rigs.files.repositories import CORES, build, seal


@pytest.mark.parametrize(
    ("libraries", "machine", "rules"),
    [
        ((), "aarch64", set()),
        (("x86_64",), "x86_64", set()),
        (("x86_64",), "aarch64", {"HFX803"}),  # an older export
        (("aarch64",), "x86_64", {"HFX803"}),  # a model of a bundle
        (tuple(TARGETS), "x86_64", set()),
        (tuple(TARGETS), "aarch64", set()),
        (tuple(TARGETS), "riscv64", set()),  # which hfx has no library for
    ],
)
def test_a_native_library_is_needed_beside_that_of_another_processor(
    libraries: tuple[str, ...], machine: str, rules: set[str], tmp_path: Path
) -> None:
    repository = build(tmp_path)
    for each in libraries:
        (repository / "m_net/1" / TARGETS[each].library).touch()
    assert {found.rule for found in lint(seal(repository), cores=CORES, machine=machine)} == rules


def test_the_processor_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = build(tmp_path)
    (repository / "m_net/1" / TARGETS["x86_64"].library).touch()
    seal(repository)
    for arch in ("amd64", "arm64"):
        assert main(["lint", str(repository), "--cores", str(CORES), "--arch", arch]) == 0
        assert ("HFX803" in capsys.readouterr().out) == (arch == "arm64")
