"""`python -m release verify` refuses files that are damaged, changed, or made by an attacker."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hfx.deploy.wheels import unpack
from hfx.errors import FetchFailed, UsageError
from release import Refused, archives, sbom
from release.__main__ import main
from release.archives import Member, Members, check_record, read_sdist, read_wheel, write_sdist
from release.verify import SUMS, verify

WHEEL, SDIST, INFO = (
    "hfx-1.0-py3-none-manylinux_2_17_aarch64.manylinux_2_17_x86_64.whl",
    "hfx-1.0.tar.gz",
    "hfx-1.0.dist-info",
)
METADATA = "Metadata-Version: 2.4\nName: hfx\nVersion: 1.0\nLicense-Expression: Apache-2.0\nRequires-Dist: rich>=13\n\n"
LIBRARY = b"\x7fELF"
DATE = 1_700_000_000


def contents() -> dict[str, bytes]:
    """Return the files of a wheel without RECORD."""
    return {
        "hfx/__init__.py": b"",
        sbom.LIBRARY: LIBRARY,
        f"{INFO}/METADATA": METADATA.encode(),
        f"{INFO}/{sbom.FILE}": sbom.document(METADATA, {sbom.LIBRARY: LIBRARY}, "ziglang==0.17.1").encode(),
    }


def record_of(files: dict[str, bytes]) -> bytes:
    lines = []
    for name, content in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={value},{len(content)}\n")
    return "".join([*lines, f"{INFO}/RECORD,,\n"]).encode()


def write_wheel(path: Path, files: dict[str, bytes], *more: tuple[str, int, bytes]) -> None:
    """Write a wheel with a RECORD of `files`, and with `more` files (name, mode, content) that are not in it."""
    members = [(name, stat.S_IFREG | 0o644, content) for name, content in files.items()]
    record = (f"{INFO}/RECORD", stat.S_IFREG | 0o644, record_of(files))
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are repeated
        for name, mode, content in (*members, record, *more):
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_sums(folder: Path) -> None:
    """List the files of `folder` in SHA256SUMS as an attacker would, who has changed some of them."""
    paths = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (folder / SUMS).write_text("".join(lines))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release that is as it must be, but that its sources do not build its wheel."""
    folder = tmp_path / "dist"
    folder.mkdir()
    write_wheel(folder / WHEEL, contents())
    write_sdist(folder / SDIST, {"hfx-1.0/LICENSE": Member(b"text\n", 0o644)}, DATE)
    write_sums(folder)
    return folder


def test_sources_that_do_not_build_are_refused_after_all_other_checks(dist: Path) -> None:
    lines: list[str] = []
    with pytest.raises(Refused, match="not compiled"):
        verify(dist, lines.append)
    assert len(lines) == 3


def change_sums(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda dist: (dist / SUMS).write_text(change((dist / SUMS).read_text())) and None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda dist: (dist / WHEEL).write_bytes((dist / WHEEL).read_bytes() + b"\0"), "another hash"),
        (lambda dist: (dist / SDIST).write_bytes((dist / SDIST).read_bytes()[:-1]), "another hash"),
        (lambda dist: (dist / SDIST).unlink(), "is not in"),
        (lambda dist: (dist / "hfx-1.1.tar.gz").touch(), "does not list"),
        (change_sums(lambda text: "f" * 64 + text[64:]), "another hash"),
        (change_sums(lambda text: text.replace(SDIST, f"../{SDIST}")), "a line that it must not have"),
        (change_sums(lambda text: text + text), "a line that it must not have"),
        (change_sums(lambda text: text.replace("  ", " *")), "a line that it must not have"),
        (change_sums(lambda text: text.splitlines()[0] + "\n"), "does not list"),
        (change_sums(lambda text: ""), "does not list"),
    ],
)
def test_files_that_are_not_as_listed_are_refused(change: Callable[[Path], None], reason: str, dist: Path) -> None:
    change(dist)
    with pytest.raises(Refused, match=reason):
        verify(dist)


def test_a_release_needs_a_wheel_and_its_sources(dist: Path) -> None:
    (dist / SDIST).unlink()
    write_sums(dist)
    with pytest.raises(Refused, match="one wheel"):
        verify(dist)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_folder_without_sums_is_a_usage_error(content: bytes | None, dist: Path) -> None:
    (dist / SUMS).unlink()
    if content is not None:
        (dist / SUMS).write_bytes(content)
    with pytest.raises(UsageError, match=r"can't be read|has no file"):
        verify(dist)


def test_a_pipe_in_the_place_of_sums_does_not_block(dist: Path) -> None:
    (dist / SUMS).unlink()
    os.mkfifo(dist / SUMS)
    with pytest.raises(UsageError, match="has no file"):
        verify(dist)


def test_a_link_in_the_place_of_a_file_is_refused(dist: Path, tmp_path: Path) -> None:
    (dist / WHEEL).rename(tmp_path / "elsewhere")
    (dist / WHEEL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="another hash"):
        verify(dist)


def test_the_command_prints_one_clear_error_and_its_code(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dist / WHEEL).write_bytes(b"")
    assert main(["verify", str(dist)]) == 1
    assert capsys.readouterr().err.startswith(f"{WHEEL} has another hash than {SUMS} lists.\n")
    assert main(["verify", str(dist / "none")]) == 2


FILE = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("hfx/more.py", FILE, b""), "differs from its files: hfx/more.py"),
        (("hfx/__init__.py", FILE, b"import os"), "twice"),
        (("../hfx.pth", FILE, b""), "unsafe name"),
        (("/etc/hfx", FILE, b""), "unsafe name"),
        (("hfx/./more.py", FILE, b""), "unsafe name"),
        (("hfx\\..\\more.py", FILE, b""), "unsafe name"),
        (("hfx/more\n.py", FILE, b""), "unsafe name"),
        (("hfx/more/", stat.S_IFDIR | 0o755, b""), "unsafe name"),
        (("hfx/link.py", stat.S_IFLNK | 0o777, b"/etc/passwd"), "not a regular file"),
    ],
)
def test_a_wheel_with_another_file_is_refused(member: tuple[str, int, bytes], reason: str, dist: Path) -> None:
    write_wheel(dist / WHEEL, contents(), member)
    write_sums(dist)
    with pytest.raises(Refused, match=reason):
        verify(dist)


@pytest.mark.parametrize("name", [f"{INFO}/{sbom.FILE}", f"{INFO}/METADATA"])
def test_a_wheel_without_its_sbom_or_metadata_is_refused(name: str, dist: Path) -> None:
    files = contents()
    del files[name]
    write_wheel(dist / WHEEL, files)
    write_sums(dist)
    with pytest.raises(Refused, match=f"has no {name}"):
        verify(dist)


def test_a_wheel_without_a_file_of_its_record_is_refused(dist: Path) -> None:
    files = contents()
    record = (f"{INFO}/RECORD", FILE, record_of(files))
    with zipfile.ZipFile(dist / WHEEL, "w") as archive:
        for name, mode, content in ((f"{INFO}/METADATA", FILE, files[f"{INFO}/METADATA"]), record):
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    write_sums(dist)
    with pytest.raises(Refused, match=rf"RECORD of {WHEEL} differs from its files: .*hfx/__init__\.py"):
        verify(dist)


def test_a_native_library_that_the_sbom_does_not_describe_is_refused(dist: Path) -> None:
    write_wheel(dist / WHEEL, contents() | {sbom.LIBRARY: b"\x7fELF of another"})
    write_sums(dist)
    with pytest.raises(Refused, match=r"SBOM .*: the hashes of"):
        verify(dist)


def test_damaged_archives_are_refused_at_any_length(dist: Path) -> None:
    for name, read in ((WHEEL, read_wheel), (SDIST, read_sdist)):
        content = (dist / name).read_bytes()
        for length in (0, 1, 22, len(content) // 2, len(content) - 1):
            (dist / name).write_bytes(content[:length])
            with pytest.raises(Refused, match=r"damaged|no files"):
                read(dist / name)


def test_each_changed_byte_of_a_wheel_is_refused_or_harmless(dist: Path) -> None:
    """No other error escapes; a byte that is read as before is found when the wheel is built again."""
    content, before = (dist / WHEEL).read_bytes(), read_wheel(dist / WHEEL)
    for position in range(0, len(content), 7):
        (dist / WHEEL).write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            members = read_wheel(dist / WHEEL)
            check_record(WHEEL, INFO, members)
        except Refused:
            continue
        assert {name: member.content for name, member in members.items()} == {
            name: member.content for name, member in before.items()
        }


def test_an_archive_without_bound_is_refused(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 2**20)
    (dist / SDIST).write_bytes(gzip.compress(bytes(2**21)))
    with pytest.raises(Refused, match="more than 1,048,576 bytes"):
        read_sdist(dist / SDIST)
    write_wheel(dist / WHEEL, {"hfx/zeros": bytes(2**21)})
    with pytest.raises(Refused, match="1,048,576 bytes"):
        read_wheel(dist / WHEEL)


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime = kind, target, DATE
    return info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([(entry("../setup.py"), b"")], "unsafe name"),
        ([(entry("/etc/passwd"), b"")], "unsafe name"),
        ([(entry("hfx-1.0/a", tarfile.SYMTYPE, "/etc/passwd"), b"")], "not a regular file"),
        ([(entry("hfx-1.0/a", tarfile.LNKTYPE, "../b"), b"")], "not a regular file"),
        ([(entry("hfx-1.0/a", tarfile.FIFOTYPE), b"")], "not a regular file"),
        ([(entry("hfx-1.0/a"), b"1"), (entry("hfx-1.0/a"), b"2")], "twice"),
        ([(entry("hfx-1.0", tarfile.DIRTYPE), b"")], "no files"),
        ([(entry("hfx-1.0/b"), b""), (entry("hfx-1.0/a"), b"")], "not in the form of a release"),
        ([(entry("hfx-1.0", tarfile.DIRTYPE), b""), (entry("hfx-1.0/a"), b"")], "not in the form of a release"),
        ([(entry("hfx-1.0/a"), b""), (entry("hfx-1.0/a/b"), b"")], "'hfx-1.0/a/b' can't be written"),
        ([(entry(f"hfx-1.0/{'a' * 300}"), b"")], "can't be written"),
        (
            [(entry("hfx-1.0/a"), b""), (entry("wheel/a"), b"")],
            "library was not compiled",
        ),
        ([(entry("hfx-2.0/a"), b"")], "has no folder hfx-1.0"),
    ],
)
def test_hostile_sources_are_refused(members: list[tuple[tarfile.TarInfo, bytes]], reason: str, dist: Path) -> None:
    write_tar(dist / SDIST, *members)
    write_sums(dist)
    with pytest.raises(Refused, match=reason):
        verify(dist)
    assert sorted(path.name for path in dist.parent.iterdir()) == ["dist"]


def test_sources_with_an_owner_are_refused(dist: Path) -> None:
    info = entry("hfx-1.0/a")
    info.uname = "builder"
    write_tar(dist / SDIST, (info, b""))
    write_sums(dist)
    with pytest.raises(Refused, match="without owners"):
        verify(dist)


@pytest.mark.parametrize("changed", [None, "hfx/__init__.py"])
def test_record_is_read_as_by_the_code_that_installs_wheels(changed: str | None, dist: Path, tmp_path: Path) -> None:
    members: Members = read_wheel(dist / WHEEL)
    if changed:
        with zipfile.ZipFile(dist / WHEEL, "w") as archive:
            for name, member in members.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = FILE << 16
                archive.writestr(info, b"import os" if name == changed else member.content)
        with pytest.raises(Refused):
            check_record(WHEEL, INFO, read_wheel(dist / WHEEL))
        with pytest.raises(FetchFailed):
            unpack(dist / WHEEL, tmp_path / "unpacked")
    else:
        check_record(WHEEL, INFO, members)
        unpack(dist / WHEEL, tmp_path / "unpacked")
