"""The proof of a release from its files alone: hashes, RECORD, the SBOM, and the same wheel from its sources again."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from hfx.errors import UsageError
from release import Refused, sbom
from release.archives import AGAIN, Members, check_record, read_sdist, read_wheel, tar, unpack, unzipped
from release.backend import build_wheel, check_tools

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([\w.+-]+)")
MOST_SUMS = 2**16  # bytes of SHA256SUMS


def verify(dist: Path, say: Callable[[str], None] = print) -> None:
    """Prove the release in the folder `dist`, and report each step with `say`.

    Raises Refused for the first file that is not as it must be, and UsageError for a folder without SHA256SUMS.
    """
    wheel, sdist = _listed(dist)
    say(f"{SUMS}: {wheel.name} and {sdist.name} have the hashes that it lists.")
    members = read_wheel(wheel)
    folder = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    check_record(wheel.name, folder, members)
    say(f"{wheel.name}: RECORD lists its {len(members)} files, and no others.")
    _check_sbom(wheel.name, folder, members)
    say(f"{wheel.name}: {folder}/{sbom.FILE} describes it.")
    sources, date = read_sdist(sdist)
    if tar(sources, date) != unzipped(sdist):
        raise Refused(f"{sdist.name} is not in the form of a release: sorted, without owners, with one date.", AGAIN)
    check_tools()
    with tempfile.TemporaryDirectory(prefix="hfx-release-") as temporary:
        _compare(wheel, _rebuilt(sdist, sources, date, Path(temporary)))
    say(f"{wheel.name}: {sdist.name} builds the same {wheel.stat().st_size:,} bytes again.")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(dist: Path) -> tuple[Path, Path]:
    """Return the wheel and the source distribution of `dist`, which has both of them, SHA256SUMS, and no other file."""
    sums = _sums(dist)
    present = {path.name for path in dist.iterdir()} - {SUMS}
    if lost := sorted(sums.keys() - present):
        raise Refused(f"{SUMS} lists {lost[0]}, which is not in {dist}.", AGAIN)
    if more := sorted(present - sums.keys()):
        raise Refused(f"{dist} has {more[0]}, which {SUMS} does not list.", "Remove it.")
    wheels, sdists = ([dist / name for name in sums if name.endswith(suffix)] for suffix in (".whl", ".tar.gz"))
    if (len(wheels), len(sdists), len(sums)) != (1, 1, 2):
        raise Refused(f"{SUMS} must list one wheel and one source distribution.", AGAIN)
    for name, stated in sums.items():
        if (dist / name).is_symlink() or not (dist / name).is_file() or digest(dist / name) != stated:
            raise Refused(f"{name} has another hash than {SUMS} lists.", AGAIN)
    return wheels[0], sdists[0]


def _sums(dist: Path) -> dict[str, str]:
    """Return file name -> SHA-256 of the file SHA256SUMS in `dist`."""
    fix = "Name a folder of `make release`."
    if not (dist / SUMS).is_file():
        raise UsageError(f"{dist} has no file {SUMS}.", fix)
    try:
        with (dist / SUMS).open("rb") as file:
            lines = file.read(MOST_SUMS).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{dist / SUMS} can't be read: {error}.", fix) from error
    sums: dict[str, str] = {}
    for line in lines:
        match = LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise Refused(f"{SUMS} has a line that it must not have: {line[:100]!r}.", AGAIN)
        sums[match[2]] = match[1]
    return sums


def _check_sbom(wheel: str, folder: str, members: Members) -> None:
    """Raise Refused unless the SBOM is in the wheel, well formed, and describes the wheel."""
    name, metadata = f"{folder}/{sbom.FILE}", f"{folder}/METADATA"
    if lost := [path for path in (name, metadata) if path not in members]:
        raise Refused(f"{wheel} has no {lost[0]}.", AGAIN)
    libraries = {path: member.content for path, member in members.items() if sbom.LIBRARIES.fullmatch(path)}
    try:
        sbom.check(members[name].content, members[metadata].content.decode(), libraries)
    except ValueError as error:
        raise Refused(f"The SBOM of {wheel} is wrong: {error}.", AGAIN) from error


def _rebuilt(sdist: Path, sources: Members, date: int, temporary: Path) -> Path:
    """Return the wheel that `sources`, the files of `sdist`, build in the folder `temporary`."""
    source = temporary / "sources" / sdist.name.removesuffix(".tar.gz")
    unpack(sources, temporary / "sources")
    if not source.is_dir():
        raise Refused(f"{sdist.name} has no folder {source.name}.", AGAIN)
    return build_wheel(source, temporary / "wheel", date)


def _compare(wheel: Path, rebuilt: Path) -> None:
    """Raise Refused unless both wheels have one name and the same bytes; name the first file that differs."""
    if wheel.name != rebuilt.name:
        raise Refused(f"The sources build {rebuilt.name}, and not {wheel.name}.", AGAIN)
    if wheel.read_bytes() == rebuilt.read_bytes():
        return
    theirs, ours = read_wheel(wheel), read_wheel(rebuilt)
    names = [name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)]
    names.sort(key=lambda name: (name.endswith("/RECORD"), name))  # RECORD differs with any other file
    differs = f"it differs in {names[0]}" if names else "its files are equal, but not their order or dates"
    raise Refused(f"The sources do not build {wheel.name} again: {differs}.", AGAIN)
