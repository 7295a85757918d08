"""job.json: everything that decides the output of a job. It is written once, and a resumed run must match it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import hfx
from hfx.answering import Model, Request
from hfx.batch.folder import JOB, LOG, PLAN, SPOOLED, TEMPORARY, Folder, open_file, storage, write_file
from hfx.errors import JobError, UsageError
from hfx.extras import versions
from hfx.names import NUM_RETURN_SEQUENCES, Task
from hfx.rows import Source

FORMAT = 1
MAX_BYTES = 64 << 20
ENDINGS = (".csv", ".jsonl", ".parquet")
RESERVED = (PLAN, LOG)
LONGEST_NAME = 200  # bytes
Action = Literal["append_row", "summary_only"]
# CPU features by which libraries choose their kernels. The sums of different kernels differ in the last bits.
INSTRUCTIONS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve",
    "i8mm",
)  # fmt: skip
LIBRARIES = ("onnxruntime", "tokenizers", "numpy")
CPUINFO = Path("/proc/cpuinfo")
IN_PROCESS = (NUM_RETURN_SEQUENCES,)  # inputs that a model has only in this process, not behind a server


@dataclass(frozen=True)
class JobModel:
    """The model. `files` and `inputs` are SHA-256s; `files` is empty if the model's server does not report it."""

    name: str
    task: str
    files: str
    inputs: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """The output. `keep` lists the input columns before the predictions; the predictions' names begin with `prefix`."""

    action: Action
    file_name: str
    keep: tuple[str, ...]
    prefix: str

    @property
    def ending(self) -> str:
        """The ending of the output file, which decides the file's format."""
        return PurePath(self.file_name).suffix

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise UsageError(f"{self.action!r} is not an output action.", f"Give {' or '.join(get_args(Action))}.")
        # The limit leaves room for the prefix and the suffix that the name has while the file is written.
        is_short = len(os.fsencode(self.file_name)) <= LONGEST_NAME and "\0" not in self.file_name
        is_own = self.file_name in RESERVED or self.file_name.startswith((TEMPORARY, SPOOLED))
        is_name = PurePath(self.file_name).name == self.file_name and is_short and not is_own
        if not (is_name and self.ending in ENDINGS):
            raise UsageError(
                f"{self.file_name!r} can't be the output's name.",
                f"Give a short file name, without a folder, that ends in {', '.join(ENDINGS)}.",
            )


@dataclass(frozen=True)
class Machine:
    """The facts that decide the last bits of answers: versions of libraries, and the processor's instruction sets."""

    versions: Mapping[str, str]
    instructions: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A job. `columns` maps input tensors to columns; `settings` are tensors that are equal for all requests.

    `run` has the RunOptions of the first run (see RunOptions.as_json), which a later run may change.
    """

    model: JobModel
    inputs: tuple[Source, ...]
    columns: Mapping[str, str]
    settings: Request
    seed: int
    output: Output
    mini_batch_size: int
    machine: Machine
    run: Mapping[str, Any]


def model_record(model: Model, labels: tuple[str, ...]) -> JobModel:
    """Return the record of an opened model."""
    described = [tensor for tensor in model.metadata.inputs if tensor.name not in IN_PROCESS]
    tensors = [[tensor.name, tensor.datatype, *tensor.shape] for tensor in described]
    inputs = hashlib.sha256(json.dumps(sorted(tensors)).encode()).hexdigest()
    return JobModel(model.metadata.name, str(model.task), model.sha256, inputs, labels)


def this_machine(in_process: bool) -> Machine:
    """Describe this machine. For a model behind a server, only the version of hfx is recorded."""
    own = {"hfx": hfx.__version__}
    if not in_process:
        return Machine(own, ())
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.is_file() else []
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    instructions = [flag for flag in INSTRUCTIONS if flag in flags]
    return Machine(own | versions(LIBRARIES), (platform.machine(), *instructions))


def differences(planned: Machine, here: Machine) -> str:
    """Describe in words how the machine `here` differs from the `planned` one. Empty if they are equal."""
    versions = [
        f"{name} {here.versions.get(name, 'is missing')} here, {version} there"
        for name, version in planned.versions.items()
        if here.versions.get(name) != version
    ]
    if planned.instructions != here.instructions:
        versions.append(f"{' '.join(here.instructions)} here, {' '.join(planned.instructions)} there")
    return "; ".join(versions)


def write_job(folder: Folder, job: Job) -> None:
    """Write job.json, which describes the job, into its folder."""
    text = json.dumps({"format": FORMAT, **asdict(job)}, indent=2, ensure_ascii=False) + "\n"
    write_file(folder.path / JOB, lambda file: file.write(text.encode("utf-8", "surrogateescape")))


def read_job(folder: Folder) -> Job:
    """Read job.json. Raises JobError if it is missing, damaged, or from another version."""
    path = folder.path / JOB
    with storage(path):
        is_there = path.is_file()
    if not is_there:
        raise JobError(f"{folder.path} is not the folder of a batch job.", "Give the --output of a `hfx batch run`.")
    with storage(path), open_file(path) as file:
        data = file.read(MAX_BYTES)
    try:
        values = json.loads(data.decode("utf-8", "surrogateescape"))
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        job = record_of(Job, values)
        Task(job.model.task)
    except (ValueError, RecursionError, UsageError) as error:
        raise JobError(
            f"{path} can't be read: {error.message if isinstance(error, UsageError) else error}.",
            "Was it written by another version of hfx? Start a new job.",
        ) from error
    return job


# Checking values from a file against the types of a dataclass's fields

Record = TypeVar("Record")


def record_of(kind: type[Record], values: Any) -> Record:
    """Return an instance of the dataclass `kind` from a JSON object with exactly its fields. Raises ValueError."""
    hints = get_type_hints(kind)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise ValueError(f"{kind.__name__} needs the members {', '.join(hints)}")
    return kind(**{name: _value(hint, values[name], name) for name, hint in hints.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    """Return `value` converted to the type `hint`. Raises ValueError for a value of another type."""
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return record_of(hint, value)
    if get_origin(hint) is UnionType:
        return None if value is None else _value(get_args(hint)[0], value, name)
    if get_origin(hint) in (tuple, list, dict, Mapping):
        return _members(hint, value, name)
    if hint is Any or value in get_args(hint) or type(value) is hint:
        return value
    raise ValueError(f"{name!r} can't be {value!r:.40}")


def _members(hint: Any, value: Any, name: str) -> Any:
    """Return a tuple, list or mapping `value` with its members converted to the types in `hint`."""
    origin, inner = get_origin(hint), get_args(hint)
    if type(value) is not (list if origin in (tuple, list) else dict):
        raise ValueError(f"{name!r} can't be {value!r:.40}")
    if isinstance(value, dict):
        return {key: _value(inner[1], each, name) for key, each in value.items()}
    return origin(_value(inner[0], each, name) for each in value)
