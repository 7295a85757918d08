"""hfx without a server: the published files in a process of their own, for what its servers add to them.

A checkpoint is exported into the cache first, without the gate: random weights answer with near ties.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import PeerFailed
from bench.peers.cases import Answered, Batch
from bench.peers.conversions import files_key
from bench.peers.library import InProcess
from bench.peers.memory import peak_bytes
from bench.peers.model import Kind, Reading, read
from bench.peers.peer import Identity, Opened, Peer, cores
from bench.peers.resident import Prepare, Resident, Run, apart
from hfx import names
from hfx.errors import HfxError
from hfx.names import GENERATION_TASKS
from hfx.perf import cache

if TYPE_CHECKING:
    from hfx.python_backends.generation.generator import TextGenerator

TITLE = "hfx, no server"
SOURCES = ("exporter", "python_backends", "repository")


class Ours(Peer):
    """The engine or session that hfx's backends open."""

    name = "hfx"
    title = TITLE
    about = "the published files in a process, without a server: what Triton adds to them"

    def precisions(self, kind: Kind) -> tuple[str, ...]:
        """See Peer."""
        return ("int8", "fp32") if kind == "classifier" else ("int8", "int4", "fp32")

    def versions(self) -> Mapping[str, str]:
        """See Peer."""
        return {"hfx": version("hfx"), "openvino": version("openvino"), "onnxruntime": version("onnxruntime")}

    def open(self, checkpoint: Path, task: str, precision: str = "", threads: int | None = None) -> Opened:
        """See Peer."""
        model, reading = read(checkpoint, task)
        chosen = self.chosen(reading.kind, precision)
        name = names.default_name(model.checkpoint)
        return open_published(exported(model.checkpoint, task, chosen), name, threads)


def open_published(repository: Path, name: str, threads: int | None = None, slots: int | None = None) -> Opened:
    """The published model NAME; THREADS and SLOTS are its configuration's where they are not given.

    Of an encoder, the configuration alone says how many threads there are. Raises PeerFailed.
    """
    from hfx.repository.catalog import model as published

    try:
        manifest = published(repository, name)
    except HfxError as error:
        raise PeerFailed(error.message) from error
    generates = manifest.task in GENERATION_TASKS
    opener = open_generator if generates else open_encoder
    resident = Resident(opener, repository=str(repository), name=name, threads=threads or 0, slots=slots or 0)
    reading = Reading(str(manifest.task), "decoder" if generates else "classifier", "", 0)  # its own files know more
    identity = Identity("hfx", TITLE, name, str(manifest.task), str(manifest.precision.cpu or ""), threads or cores())
    return InProcess(identity, reading, resident)


def open_generator(repository: str, name: str, threads: int, slots: int) -> Prepare:
    """The engine; answers a Batch."""
    from hfx.local import read_config
    from hfx.local.generator import CPU_RUNTIME, PARAMETERS
    from hfx.python_backends.generation.generator import TextGenerator

    folder = Path(repository) / (name + names.STREAM_SUFFIX)
    config = read_config(folder / "configs" / "cpu.pbtxt")["parameters"]
    options: dict[str, Any] = {option: int(config[key]["string_value"]) for option, key in PARAMETERS.items()}
    options |= {key: value for key, value in {"threads": threads, "slots": slots}.items() if value}
    runtime = config.get(CPU_RUNTIME, {}).get("string_value")
    generator = TextGenerator.open(folder / "1", runtime=runtime, **options)
    generator.warm_up()

    def prepare(case: Batch) -> Run:
        return lambda: _generated(generator, case)

    return prepare


def _generated(generator: TextGenerator, case: Batch) -> tuple[Answered, int]:
    wanted = case.wanted
    found = generator.generate_many(
        case.texts,
        max_tokens=wanted.new,
        min_tokens=wanted.new,
        num_beams=wanted.beams,
        no_repeat_ngram_size=wanted.ngram,
        do_sample=False,
        long="truncate",
    )
    written, texts = tuple(each.output_tokens for each in found), tuple(each.text for each in found)
    return Answered(sum(each.input_tokens for each in found), written, texts), peak_bytes()


def open_encoder(repository: str, name: str, threads: int, slots: int) -> Prepare:
    """All steps of an encoder, one after the other; answers a Batch."""
    from hfx.local.encoder import LocalModel

    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    model = LocalModel.open(Path(repository), name)

    def prepare(case: Batch) -> Run:
        requests = [{names.TEXT_INPUT: text} for text in case.texts]

        def run() -> tuple[Answered, int]:
            answers = model.infer_all(requests)
            return Answered(labels=tuple(each[names.LABEL][0] for each in answers)), peak_bytes()

        return run

    return prepare


def exported(checkpoint: Path | str, task: str, precision: str, slots: int | None = None) -> Path:
    """A repository with the checkpoint for CPU, by its default name; made again when it or a source of hfx changes.

    Raises OpenFailed where it can't be exported.
    """
    import hfx

    root = Path(hfx.__file__).parent
    digest = hashlib.sha256(files_key(str(checkpoint)).encode())
    for path in (path for name in SOURCES for path in sorted((root / name).resolve().rglob("*.py"))):
        digest.update(path.read_bytes())
    where = hashlib.sha256(str(checkpoint).encode()).hexdigest()[:8]
    stem = f"published-{precision}-{slots or 'usual'}-{task}-{Path(checkpoint).name}-{where}-"
    arguments = {"checkpoint": str(checkpoint), "task": task, "precision": precision, "slots": slots}
    folder = cache.made(
        f"models/{stem}{digest.hexdigest()[:12]}", lambda staging: apart(export, folder=str(staging), **arguments)
    )
    for other in folder.parent.glob(f"{stem}*"):  # of other sources: nobody comes back to them
        if not other.name.startswith(folder.name):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def export(checkpoint: str, task: str, precision: str, slots: int | None, folder: str) -> None:
    """`hfx export` without the gate."""
    from hfx.exporter import pipeline
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.plan import make_plan
    from hfx.exporter.source import open_checkpoint

    options = ExportOptions(
        name=names.default_name(checkpoint),
        task=task,
        precision=precision,
        device="cpu",
        slots=slots,
        repository=Path(folder),
        max_drop=1.0,
        force=True,
        command="python -m bench.peers",
    )
    plan = make_plan(open_checkpoint(checkpoint), options)
    pipeline.export(plan, contextlib.nullcontext, pipeline.without_gate(plan))
