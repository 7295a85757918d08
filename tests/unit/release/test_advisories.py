"""The committed list of known vulnerabilities, and the pinned versions that it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from hfx.errors import UsageError
from release import Refused
from release.__main__ import ROOT, main
from release.advisories import ADVISORIES, CONSTRAINTS, check, load, pins
from release.backend import pins as tools


def constraints(folder: Path, text: str, name: str = "constraints.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_no_pinned_version_of_the_project_has_a_known_vulnerability(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advisories"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "] == [*CONSTRAINTS]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("onnx==1.20.1", "CVE-2026-27489"),
        ("Jinja2==3.1.5", "CVE-2025-27516"),
        ("Python_Multipart==0.0.29", "CVE-2026-53539"),
        ("protobuf==6.33.4", "CVE-2026-0994"),
        ("protobuf==5.29.5", "CVE-2026-0994"),
        ("torch==2.9.0rc1", "CVE-2026-24747"),
        ("transformers==4.57.6", "CVE-2026-4372"),
    ],
)
def test_a_pin_with_a_known_vulnerability_is_refused_with_its_fix(
    line: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = constraints(tmp_path, f"# pinned\nrich==15.0.0\n{line} # why\n")
    assert main(["advisories", str(path)]) == 1
    assert re.search(rf"constraints\.txt pins \S+ \S+, which has [^:]*{number}.*, fixed in \d", capsys.readouterr().err)


@pytest.mark.parametrize("line", ["protobuf==5.29.6", "protobuf==6.33.5", "onnx==1.21.0", "torch==2.10.0+cpu"])
def test_a_fixed_version_is_taken(line: str, tmp_path: Path) -> None:
    check([constraints(tmp_path, line)])


def test_an_accepted_vulnerability_is_reported_with_its_reason_and_for_its_file_alone(tmp_path: Path) -> None:
    lines: list[str] = []
    check([constraints(tmp_path, "transformers==4.57.6", "constraints-optimum.txt")], say=lines.append)
    assert len(lines) == 3 and all(" is accepted: " in line for line in lines[1:])
    with pytest.raises(Refused):
        check([constraints(tmp_path, "transformers==4.57.6")])


@pytest.mark.parametrize(
    "line",
    ["onnx>=1.20", "onnx", "onnx==1.*", "onnx===1.20", "onnx==1.20,<2", "onnx @ file:///onnx", "-r more.txt",
     "onnx==1.20; python_version < '3'", "onnx==1.20 --hash=sha256:00", "\0"],
)  # fmt: skip
def test_a_line_that_pins_no_version_is_an_error_and_not_passed_over(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Line 2 of constraints\.txt"):
        check([constraints(tmp_path, f"# text\n{line}\n")])


def test_a_missing_file_of_constraints_is_an_error(tmp_path: Path) -> None:
    assert main(["advisories", str(tmp_path / "none.txt")]) == 2


@pytest.mark.parametrize(
    "text",
    ["", "[[advisory]]\n", "advisory = 1", "[[advisory]]\nids = [", "advisory = [1]",
     '[[advisory]]\nids=["A"]\npackage="a"\naffected="<1"\nfixed="1"\nnote=""',
     '[[advisory]]\nids=["A"]\npackage="a"\naffected=["older"]\nfixed="1"\nnote=""',
     '[[advisory]]\nids=[]\npackage="a"\naffected=["<1"]\nfixed="1"\nnote=""'],
)  # fmt: skip
def test_a_damaged_list_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "advisories.toml").write_text(text)
    with pytest.raises(UsageError, match="is no list of advisories"):
        load(tmp_path / "advisories.toml")


def test_each_advisory_has_numbers_and_a_fixed_version_that_it_does_not_affect() -> None:
    entries = load(ADVISORIES)
    assert entries
    for entry in entries:
        assert all(re.fullmatch(r"CVE-\d{4}-\d{4,}", number) for number in entry.ids) and entry.note
        assert not any(entry.affects(Version(version)) for version in entry.fixed.split(" and "))
        assert set(entry.accepted) <= {*CONSTRAINTS}


def test_the_tools_of_a_release_have_the_pinned_versions() -> None:
    pinned = pins(ROOT / "constraints.txt")
    versions = {name: Version(version) for name, version in tools().items()}
    assert versions.keys() == {"packaging", "setuptools", "ziglang"}
    assert {name: pinned[name] for name in versions} == versions
