"""hfx.json, the manifest of a published model, with the hash of every file."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from hfx.errors import ModelCorrupt, RepositoryError
from hfx.names import MANIFEST_FILE, MEMBER_SUFFIXES, Task, check_name
from hfx.strict_json import Json, Node, parse_json, read_json

FORMAT = 1
MAX_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
# Triton's Python stubs write these into the repository that they serve from.
IGNORED_FOLDERS = ("__pycache__",)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file's SHA-256 (64 lower-case hexadecimal digits) and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint: hub id or folder name, hub revision (None for a folder), and the hash of its weights."""

    id: str
    revision: str | None
    sha256: str


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision on each kind of device, for example fp32, int8, fp16; None if the model wasn't built for it."""

    cpu: str | None
    gpu: str | None


@dataclass(frozen=True, slots=True)
class TritonTarget:
    """Triton image tags, for example "24.10": the target of the files, and the oldest that can serve the model.

    The tags differ for generators, whose engine needs a newer Python than some images have.
    """

    built_for: str
    minimum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published model: its Triton model folders and every file in them, as paths relative to the repository."""

    name: str
    task: Task
    source: Source
    precision: Precision
    opset: int
    ir: int
    triton: TritonTarget
    folders: tuple[str, ...]
    files: Mapping[str, FileEntry]
    versions: Mapping[str, str]
    created: str
    parity: Mapping[str, Json] = field(default_factory=dict)
    choices: Mapping[str, Json] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A difference between a file and the manifest. `kind`: missing, changed, unlisted, outside, unreadable."""

    path: str
    kind: str
    message: str


def created_now() -> str:
    """Return the present time in the format of `Manifest.created`: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def member_folders(name: str) -> tuple[str, ...]:
    """Return every folder name that may belong to the model NAME, the entry point first."""
    return (name, *(name + suffix for suffix in MEMBER_SUFFIXES))


# Hashing


def hash_file(path: Path) -> FileEntry:
    """Hash a file in pieces, so that its size doesn't matter."""
    with path.open("rb") as file:
        return FileEntry(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def hash_folder(folder: Path, relative_to: Path) -> dict[str, FileEntry]:
    """Hash every file below `folder`, sorted by its POSIX path relative to `relative_to`; hfx.json is left out.

    Raises RepositoryError for a link or anything else that is not a regular file.
    """
    entries = {}
    for path in sorted(_walk(folder)):
        name = path.relative_to(relative_to).as_posix()
        if not stat.S_ISREG(path.lstat().st_mode):
            raise RepositoryError(f"{name} is not a regular file.", "Replace links by copies of the files.")
        if path != folder / MANIFEST_FILE:
            entries[name] = hash_file(path)
    return entries


def model_sha256(files: Mapping[str, FileEntry]) -> str:
    """Return the SHA-256 that identifies a published model on servers: the hash of `files` without configurations.

    Configurations are left out because their settings of queues and threads change no answer, and because they contain
    this hash.
    """
    listed = [[path, entry.sha256] for path, entry in sorted(files.items()) if not is_config(path)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def net_sha256(files: Mapping[str, FileEntry], graph: str) -> str:
    """Return the SHA-256 that identifies the ONNX file `graph` with the weights beside it, both of them in `files`.

    Names count as well, because the graph refers to its weights by name.
    """
    listed = [[PurePosixPath(path).name, files[path].sha256] for path in (graph, f"{graph}.data")]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def is_config(path: str) -> bool:
    """Return whether the path FOLDER/… is a config.pbtxt, or a configuration in configs/."""
    return PurePosixPath(path).suffix == ".pbtxt"


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file below `folder`. A link to a folder counts as a file. Raises OSError."""
    for root, names, files in os.walk(folder, onerror=reraise):
        names[:] = [name for name in names if name not in IGNORED_FOLDERS]
        yield from (Path(root, name) for name in files)
        yield from (Path(root, name) for name in names if Path(root, name).is_symlink())


def reraise(error: OSError) -> None:
    """Raise `error`. Without such an `onerror`, os.walk leaves out a folder that can't be read."""
    raise error


def verify_files(manifest: Manifest, repository: Path) -> list[FileProblem]:
    """Compare the files of a model with its manifest; an empty list means that every byte is as published."""
    problems = [problem for path, entry in manifest.files.items() if (problem := verify_file(repository, path, entry))]
    listed = {*manifest.files, f"{manifest.name}/{MANIFEST_FILE}"}
    for folder in manifest.folders:
        problems += _unlisted(repository, folder, listed)
    return problems


def _unlisted(repository: Path, folder: str, listed: set[str]) -> list[FileProblem]:
    """Return a problem for each file of `folder` that is not `listed`, or for a folder that can't be read."""
    try:
        names = [path.relative_to(repository).as_posix() for path in sorted(_walk(repository / folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [FileProblem(folder, "unreadable", f"{folder} can't be read: {error}.")]
    return [FileProblem(name, "unlisted", f"{name} is not in the manifest.") for name in names if name not in listed]


def check_files(manifest: Manifest, repository: Path, fix: str = "Export it again with --force.") -> None:
    """Raise ModelCorrupt with `fix`, which names the files, if files of a model are not as they were published."""
    if problems := verify_files(manifest, repository):
        reasons = "\n".join(problem.message for problem in problems)
        raise ModelCorrupt(f"The model {manifest.name!r} is not as it was published:\n{reasons}", fix)


def verify_file(folder: Path, name: str, expected: FileEntry) -> FileProblem | None:
    """Return the difference between the file `name` below `folder` and its entry; None if there is none."""
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            return FileProblem(name, "outside", f"{name} leads out of {folder.name}.")
        difference = _difference(path, expected)
    except (FileNotFoundError, NotADirectoryError):
        return FileProblem(name, "missing", f"{name} is missing.")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links (Python 3.11, 3.12)
        return FileProblem(name, "unreadable", f"{name} can't be read: {error}.")
    return FileProblem(name, "changed", f"{name} {difference}.") if difference else None


def _difference(path: Path, expected: FileEntry) -> str:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size != expected.size:
        return f"has {status.st_size} bytes, not {expected.size}"
    same = _hash_of(path, status) == expected.sha256
    return "" if same else "is not the file that was published: its SHA-256 differs"


# Adapters of one backbone share files by hard links. (device, inode, size, times) -> SHA-256
_HASHES: dict[tuple[int, ...], str] = {}


def _hash_of(path: Path, status: os.stat_result) -> str:
    """Return the SHA-256 of a file; a file with several links is read once, as long as it does not change."""
    if status.st_nlink == 1:
        return hash_file(path).sha256
    key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if key not in _HASHES:
        _HASHES[key] = hash_file(path).sha256
    return _HASHES[key]


# Reading and writing


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write `manifest` to `path`. Raises RepositoryError if `read_manifest` would refuse the result."""
    parse_manifest(text := to_json(manifest), path.as_posix())
    path.write_text(text, encoding="utf-8")


def to_json(manifest: Manifest) -> str:
    """Return the text of hfx.json. Raises RepositoryError for a value that JSON doesn't have, such as NaN."""
    first = {"format": manifest.format}
    try:
        return json.dumps(first | asdict(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise RepositoryError(
            f"The manifest of {manifest.name!r} can't be written: {error}.", "Use finite numbers, strings and lists."
        ) from error


def read_manifest(path: Path) -> Manifest:
    """Read an hfx.json of any origin.

    Raises ModelCorrupt that names the file, the field, and what to do.
    """
    return _manifest(read_json(path, MAX_BYTES))


def parse_manifest(text: str, origin: str) -> Manifest:
    """Parse the manifest in `text`; errors name it `origin`. Raises ModelCorrupt."""
    return _manifest(parse_json(text, origin))


def _manifest(node: Node) -> Manifest:
    if isinstance(node.value, dict) and node.value.get("format", FORMAT) != FORMAT:
        number = str(node.value["format"])[:40]
        raise ModelCorrupt(
            f"{node.origin} has format {number!r}; this version of hfx reads format {FORMAT}.",
            "Use the version of hfx that published the model, or export it again.",
        )
    at = node.members(Manifest)
    folders = _folders(at["folders"], name := at["name"].parsed(check_name))
    source, triton, precision = at["source"].members(Source), at["triton"].members(TritonTarget), at["precision"]
    return Manifest(
        format=at["format"].integer(FORMAT),
        name=name,
        task=at["task"].parsed(Task),
        source=Source(source["id"].text(), source["revision"].optional_text(), _sha256(source["sha256"])),
        precision=Precision(**{k: v.optional_text() for k, v in precision.members(Precision).items()}),
        opset=at["opset"].integer(1),
        ir=at["ir"].integer(1),
        triton=TritonTarget(**{k: v.matching(r"\d\d\.\d\d", "a tag like 24.10") for k, v in triton.items()}),
        folders=folders,
        files={_file_path(entry, path, name, folders): file_entry(entry) for path, entry in at["files"].items()},
        versions={package: version.text() for package, version in at["versions"].items()},
        created=_created(at["created"]),
        parity={figure: value.json() for figure, value in at["parity"].items()},
        choices={choice: value.json() for choice, value in at["choices"].items()},
    )


def _folders(node: Node, name: str) -> tuple[str, ...]:
    folders = tuple(element.text() for element in node.elements())
    allowed = member_folders(name)
    for folder in folders:
        if folder not in allowed:  # a re-export removes the folders of a manifest: it must not name another model's
            node.refuse(f"names {folder!r}, which is none of {', '.join(allowed)}")
    if len(set(folders)) < len(folders) or name not in folders:
        node.refuse(f"must name {name!r} and no folder twice")
    return folders


def _file_path(node: Node, path: str, name: str, folders: tuple[str, ...]) -> str:
    parts = path.split("/")
    if path != str(PurePosixPath(path)) or len(parts) < 2 or parts[0] not in folders or ".." in parts or "\\" in path:
        node.refuse("must be a plain relative path, with '/', below one of the model's folders")
    if unicodedata.normalize("NFC", path) != path:
        node.refuse("must be in Unicode's normal form C, or two paths could look the same")
    if path == f"{name}/{MANIFEST_FILE}":
        node.refuse("is the manifest itself, which can't hold its own hash")
    return path


def file_entry(node: Node) -> FileEntry:
    """Parse the file entry in `node`. Raises ModelCorrupt."""
    at = node.members(FileEntry)
    return FileEntry(_sha256(at["sha256"]), at["size"].integer(0))


def _sha256(node: Node) -> str:
    return node.matching(r"[0-9a-f]{64}", "a SHA-256 of 64 lower-case hexadecimal digits")


def _created(node: Node) -> str:
    if node.parsed(datetime.fromisoformat).utcoffset() != timedelta(0):
        node.refuse("must be a time in ISO 8601 and UTC, like 2025-01-31T12:00:00Z")
    return node.text()
