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
        Option(
            help="Name of the published model. Default: derived from MODEL.",
            rich_help_panel=PUBLICATION,
            metavar="NAME",
        ),
    ] = None
    task: Annotated[
        str | None,
        Option(help="Task. Default: derived from the checkpoint.", rich_help_panel=CHECKPOINT, metavar="TASK"),
    ] = None
    revision: Annotated[
        str | None,
        Option(help="Branch, tag or commit, if MODEL is a hub id.", rich_help_panel=CHECKPOINT, metavar="REVISION"),
    ] = None
    quantize: Annotated[bool, Option("--quantize", help="Use int8 on CPU and fp16 on GPU.", rich_help_panel=MODEL)] = (
        False
    )
    precision: Annotated[
        Precision | None,
        Option(
            help="Precision. Default: fp32 on CPU, fp16 on GPU. Generators are always fp16 on GPU.",
            rich_help_panel=MODEL,
        ),
    ] = None
    device: Annotated[Device, Option(help="Device to build for.", rich_help_panel=MODEL)] = "both"
    cpu_runtime: Annotated[
        CpuRuntime,
        Option(help="CPU runtime. auto picks the fastest. openvino is for encoders only.", rich_help_panel=MODEL),
    ] = "auto"
    cpu_math: Annotated[
        CpuMath,
        Option(
            help="Encoders: CPU arithmetic of an fp32 model. bf16 needs OpenVINO. It is less exact, but "
            "faster on some processors.",
            rich_help_panel=MODEL,
        ),
    ] = "fp32"
    exporter: Annotated[
        Exporter,
        Option(
            help="Encoders: exporter of the graph, hfx's own or optimum. optimum needs the extra [optimum].",
            rich_help_panel=MODEL,
        ),
    ] = "own"
    repository: Annotated[
        Path, Option(help="Model repository to publish to.", rich_help_panel=PUBLICATION, metavar="DIR")
    ] = Path("model_repository")
    triton: Annotated[str, Option(help="Triton release to build for.", rich_help_panel=MODEL, metavar="TAG")] = (
        DEFAULT_TAG
    )
    max_batch_size: Annotated[
        int | None, Option(help="Encoders: largest batch. Default: 64.", rich_help_panel=MODEL)
    ] = None
    slots: Annotated[
        int | None,
        Option(
            help="Generators: most sequences (texts or beams) decoded at a time. Default: 32.", rich_help_panel=MODEL
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Option(
            help="Maximum length in tokens. Decoders: of prompt and output together. Default: the "
            "checkpoint's limit; T5 has none.",
            rich_help_panel=MODEL,
        ),
    ] = None
    aggregation: Annotated[
        str | None,
        Option(
            help="Token classification: none, simple, first, average or max. Default: simple.",
            rich_help_panel=MODEL,
            metavar="KIND",
        ),
    ] = None
    dimensions: Annotated[
        bool,
        Option(
            "--dimensions",
            help="Embeddings: let requests ask for shorter vectors (Matryoshka). Needed only if the "
            "checkpoint does not declare it.",
            rich_help_panel=MODEL,
        ),
    ] = False
    token_vectors: Annotated[
        bool,
        Option(
            "--token-vectors",
            help="Embeddings: return one vector per token instead of one per text.",
            rich_help_panel=MODEL,
        ),
    ] = False
    verify_data: Annotated[
        tuple[Path, ...],
        Option(
            help="Labelled rows: CSV, TSV, JSON lines or Parquet. Repeatable.",
            rich_help_panel=VERIFICATION,
            metavar="FILE",
        ),
    ] = ()
    max_drop: Annotated[
        float | None,
        Option(
            help="Largest loss that passes, as a share of the answers (or tokens) and of the metric. "
            "Default: set by the precision; 0.01 of the metric.",
            rich_help_panel=VERIFICATION,
            metavar="SHARE",
        ),
    ] = None
    force: Annotated[
        bool, Option("--force", help="Replace a published model of the same name.", rich_help_panel=PUBLICATION)
    ] = False
    command: str = "hfx export"

    def __post_init__(self) -> None:
        if self.quantize and self.precision not in (None, "int8"):
            raise UsageError("--quantize and --precision exclude each other.", "Leave one of them out.")
