"""model.tar.gz: a folder as SageMaker unpacks it into /opt/ml/model; equal folders give equal bytes."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

COMPRESSION = 1  # weights hardly shrink, and a higher level takes minutes for gigabytes


def write_archive(folder: Path, target: Path) -> None:
    """Write everything below `folder` to `target`, without times, owners and order of the file system."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
            _add(archive, path, path.relative_to(folder).as_posix())


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
        return
    entry.size, entry.mode = path.stat().st_size, 0o644
    with path.open("rb") as content:
        archive.addfile(entry, content)
