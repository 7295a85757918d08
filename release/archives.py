"""Reads wheels and source distributions of unknown origin, and writes source distributions in one form.

An archive is read into memory as a whole, and nothing is written before all its names are checked.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from release import Refused

MOST_FILES = 5_000
MOST_BYTES = 256 * 2**20  # of all files of an archive together
AGAIN = "Delete it, and fetch it again from where it was published."
# The errors that zipfile, gzip and tarfile raise for damaged archives (RuntimeError: encrypted).
DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in an archive. `mode` has its type and its permissions, as in `os.stat_result`."""

    content: bytes
    mode: int


Members = dict[str, Member]


def read_wheel(path: Path) -> Members:
    """Return the files of a wheel. Raises Refused for a damaged archive, and for unsafe names, links and folders."""
    members: Members = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                _admit(path.name, info.filename, stat.S_ISREG(mode), info.file_size, members)
                members[info.filename] = Member(archive.read(info), mode)
    except DAMAGE as error:
        raise Refused(f"{path.name} is damaged: {error}.", AGAIN) from error
    return members


def read_sdist(path: Path) -> tuple[Members, int]:
    """Return the files of a source distribution, and the date of the first one in seconds since 1970.

    Raises Refused as `read_wheel`, but for folders, which are left out.
    """
    members: Members = {}
    dates = []
    try:
        with tarfile.open(fileobj=io.BytesIO(unzipped(path)), mode="r:") as archive:
            for info in archive:
                if info.isdir():
                    continue
                _admit(path.name, info.name, info.type == tarfile.REGTYPE, info.size, members)
                file = archive.extractfile(info)
                members[info.name] = Member(file.read() if file else b"", stat.S_IFREG | info.mode)
                dates.append(int(info.mtime))
    except DAMAGE as error:
        raise Refused(f"{path.name} is damaged: {error}.", AGAIN) from error
    if not dates:
        raise Refused(f"{path.name} has no files.", AGAIN)
    return members, dates[0]


def unzipped(path: Path) -> bytes:
    """Return the content of a .gz file. Raises Refused for a damaged one, and above `MOST_BYTES`."""
    try:
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
    except DAMAGE as error:
        raise Refused(f"{path.name} is damaged: {error}.", AGAIN) from error
    if len(content) > MOST_BYTES:
        raise Refused(f"{path.name} has more than {MOST_BYTES:,} bytes when it is unpacked.", AGAIN)
    return content


def _admit(archive: str, name: str, is_file: bool, size: int, members: Members) -> None:
    """Raise Refused for a member that is no file, has an unsafe or a repeated name, or is too large with `members`."""
    path = PurePosixPath(name)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable()
    if unsafe or str(path) != name:
        raise Refused(f"{archive} has a file with the unsafe name {name!r}.", AGAIN)
    if not is_file:
        raise Refused(f"{archive} has {name!r}, which is not a regular file.", AGAIN)
    if name in members:
        raise Refused(f"{archive} has {name!r} twice.", AGAIN)
    if len(members) == MOST_FILES or size + sum(len(member.content) for member in members.values()) > MOST_BYTES:
        raise Refused(f"{archive} has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes.", AGAIN)


def tar(members: Members, date: int) -> bytes:
    """Return a tar archive in the form of a release: sorted, without folders and owners, with one date."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, member in sorted(members.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(member.content), date
            info.mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
            archive.addfile(info, io.BytesIO(member.content))
    return content.getvalue()


def write_sdist(path: Path, members: Members, date: int) -> None:
    """Write a source distribution in the form of a release."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=date) as stream:
        stream.write(tar(members, date))


def unpack(members: Members, folder: Path) -> None:
    """Write files below `folder`. Raises Refused for a file that can't be written, as it is the folder of another."""
    for name, member in members.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(member.content)
            path.chmod(stat.S_IMODE(member.mode))
        except OSError as error:
            raise Refused(f"{name[:100]!r} can't be written: {error.strerror}.", AGAIN) from error


def check_record(wheel: str, folder: str, members: Members) -> None:
    """Raise Refused unless RECORD in `folder` lists every file of a wheel, with its hash and size, and no other.

    The oracle is `hfx.deploy.wheels.unpack`, which installs the wheels of others and checks only what it unpacks.
    """
    record = f"{folder}/RECORD"
    if record not in members:
        raise Refused(f"{wheel} has no {record}.", AGAIN)
    try:
        rows = [tuple(row) for row in csv.reader(io.StringIO(members[record].content.decode()))]
    except (csv.Error, UnicodeDecodeError) as error:
        raise Refused(f"{record} of {wheel} is damaged: {error}.", AGAIN) from error
    expected = {
        (name, _digest(member.content), str(len(member.content))) for name, member in members.items() if name != record
    }
    expected.add((record, "", ""))
    if len(rows) != len(expected) or set(rows) != expected:
        names = sorted({row[0] if row else "" for row in expected.symmetric_difference(rows)}) or ["a file twice"]
        raise Refused(f"{record} of {wheel} differs from its files: {', '.join(names)}.", AGAIN)


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
