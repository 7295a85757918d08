"""What the user asks of an export, with the options of `hfx export` that say it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from hfx.errors import UsageError
from hfx.releases import DEFAULT_TAG

Precision = Literal["fp32", "fp16", "int8", "int4"]
Device = Literal["cpu", "gpu", "both"]
CpuRuntime = Literal["auto", "openvino", "onnxruntime", "native"]
CpuMath = Literal["fp32", "bf16"]
Exporter = Literal["own", "optimum"]
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01

CHECKPOINT, MODEL, VERIFICATION, PUBLICATION = (
    "Checkpoint",
    "Model",
    "Verification",
    "Publication",
)  # headings of --help


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for; None is "you choose". `command` is quoted by the files that are generated."""

    name: Annotated[
        str | None,
        Option(help="Name to publish as. Default: derived from MODEL.", rich_help_panel=PUBLICATION, metavar="NAME"),
    ] = None
    task: Annotated[
        str | None,
        Option(help="Task. Default: derived from the checkpoint.", rich_help_panel=CHECKPOINT, metavar="TASK"),
    ] = None
    revision: Annotated[
        str | None, Option(help="Branch, tag or commit of a hub id.", rich_help_panel=CHECKPOINT, metavar="REVISION")
    ] = None
    quantize: Annotated[bool, Option("--quantize", help="int8 on CPU, fp16 on GPU.", rich_help_panel=MODEL)] = False
    precision: Annotated[
        Precision | None,
        Option(help="One precision. Default: fp32 on CPU and fp16 on GPU.", rich_help_panel=MODEL),
    ] = None
    device: Annotated[Device, Option(help="What to build for.", rich_help_panel=MODEL)] = "both"
    cpu_runtime: Annotated[
        CpuRuntime,
        Option(help="Runtime on the CPU; auto takes the fastest. Encoders alone: openvino.", rich_help_panel=MODEL),
    ] = "auto"
    cpu_math: Annotated[
        CpuMath,
        Option(
            help="Encoders: the fp32 file's arithmetic on CPU; bf16 (OpenVINO) is less exact, and faster on some "
            "processors.",
            rich_help_panel=MODEL,
        ),
    ] = "fp32"
    exporter: Annotated[
        Exporter,
        Option(
            help="Encoders: hfx or optimum makes the graph; optimum needs the extra [optimum].", rich_help_panel=MODEL
        ),
    ] = "own"
    repository: Annotated[
        Path, Option(help="Where models are published.", rich_help_panel=PUBLICATION, metavar="DIR")
    ] = Path("model_repository")
    triton: Annotated[
        str, Option(help="Tag of the Triton release to build for.", rich_help_panel=MODEL, metavar="TAG")
    ] = DEFAULT_TAG
    max_batch_size: Annotated[
        int | None, Option(help="Encoders: rows of a batch at most. Default: 64.", rich_help_panel=MODEL)
    ] = None
    slots: Annotated[
        int | None,
        Option(help="Generators: rows (texts, beams) at a time at most. Default: 32.", rich_help_panel=MODEL),
    ] = None
    max_length: Annotated[
        int | None,
        Option(
            help="Tokens of a text (a decoder: and its output) at most. Default: the checkpoint's; T5 has no limit.",
            rich_help_panel=MODEL,
        ),
    ] = None
    aggregation: Annotated[
        str | None,
        Option(
            help="Token classification: none, simple (the default), first, average or max.",
            rich_help_panel=MODEL,
            metavar="KIND",
        ),
    ] = None
    dimensions: Annotated[
        bool,
        Option(
            "--dimensions",
            help="Embeddings: requests may have shorter vectors (Matryoshka), where the checkpoint doesn't say so.",
            rich_help_panel=MODEL,
        ),
    ] = False
    token_vectors: Annotated[
        bool,
        Option(
            "--token-vectors",
            help="Embeddings: a vector for each token instead of one for the text.",
            rich_help_panel=MODEL,
        ),
    ] = False
    verify_data: Annotated[
        tuple[Path, ...],
        Option(help="Labelled CSV or TSV; may be given several times.", rich_help_panel=VERIFICATION, metavar="FILE"),
    ] = ()
    max_drop: Annotated[
        float | None,
        Option(
            help="Share of answers (or tokens), and of the metric, that may be lost.",
            rich_help_panel=VERIFICATION,
            metavar="SHARE",
        ),
    ] = None
    force: Annotated[
        bool, Option("--force", help="Replace a published model of this name.", rich_help_panel=PUBLICATION)
    ] = False
    command: str = "hfx export"

    def __post_init__(self) -> None:
        if self.quantize and self.precision not in (None, "int8"):
            raise UsageError("--quantize and --precision exclude each other.", "Leave one of them out.")
