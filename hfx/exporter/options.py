"""The options of an export, as the user passes them to `hfx export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.mixed_precision import Precision, Search
from hfx.options import option
from hfx.releases import DEFAULT_TAG

Device = Literal["cpu", "gpu", "both"]
CpuRuntime = Literal["auto", "onnxruntime", "native"]
CpuMath = Literal["fp32", "bf16"]
Exporter = Literal["own", "optimum"]
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01
SHORTEST = 8  # tokens: room for the special tokens of a pair and a few words

CHECKPOINT, VERIFICATION, PUBLICATION = "Checkpoint", "Verification", "Publication"  # headings of --help


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export. None means that the export chooses.

    `command` is quoted in the generated files. `searched` is what an earlier export found out.
    """

    PANEL: ClassVar[str] = "Model"

    name: str | None = option(
        None,
        "Name of the published model. Default: derived from MODEL.",
        rich_help_panel=PUBLICATION,
        metavar="NAME",
    )
    task: str | None = option(
        None, "Task. Default: derived from the checkpoint.", rich_help_panel=CHECKPOINT, metavar="TASK"
    )
    revision: str | None = option(
        None, "Branch, tag or commit, if MODEL is a hub id.", rich_help_panel=CHECKPOINT, metavar="REVISION"
    )
    quantize: bool = option(False, "Use int8 on CPU and fp16 on GPU.")
    precision: Precision | None = option(
        None, "Precision. Default: fp32 on CPU, fp16 on GPU. Generators are always fp16 on GPU."
    )
    device: Device = option("both", "Device to build for.")
    cpu_runtime: CpuRuntime = option("auto", "CPU runtime. auto picks the fastest.")
    cpu_math: CpuMath = option(
        "fp32",
        "Encoders: CPU arithmetic of an fp32 model. bf16 is less exact, but faster on processors with "
        "AVX512-BF16. Answers are the same on all processors.",
    )
    exporter: Exporter = option(
        "own", "Encoders: exporter of the graph, hfx's own or optimum. optimum needs the extra [optimum]."
    )
    repository: Path = option(
        Path("model_repository"), "Model repository to publish to.", rich_help_panel=PUBLICATION, metavar="DIR"
    )
    triton: str = option(DEFAULT_TAG, "Triton release to build for.", metavar="TAG")
    max_batch_size: int | None = option(None, "Encoders: largest batch. Default: 64.")
    slots: int | None = option(None, "Generators: most sequences (texts or beams) decoded at a time. Default: 32.")
    max_length: int | None = option(
        None,
        "Maximum length in tokens. Decoders: of prompt and output together. Default: the "
        "checkpoint's limit; T5 has none.",
    )
    aggregation: str | None = option(
        None, "Token classification: none, simple, first, average or max. Default: simple.", metavar="KIND"
    )
    answer: tuple[str, ...] = option(
        (),
        "Text classification by a language model: a label and the answer that stands for it, as the model would begin "
        "it. At least two.",
        metavar="LABEL=TEXT",
    )
    system: str | None = option(
        None,
        "Text classification by a language model: the system message, such as a policy.",
        metavar="TEXT",
    )
    threshold: tuple[str, ...] = option(
        (),
        "Text classification: score from which moderations flag all labels, or one. Repeatable. Default: 0.5.",
        metavar="[LABEL=]SCORE",
    )
    safe_label: tuple[str, ...] = option(
        (), "Text classification: label of texts that moderations do not flag. Repeatable.", metavar="LABEL"
    )
    dimensions: bool = option(
        False,
        "Embeddings: let requests ask for shorter vectors (Matryoshka). Needed only if the "
        "checkpoint does not declare it.",
    )
    token_vectors: bool = option(False, "Embeddings: return one vector per token instead of one per text.")
    verify_data: tuple[Path, ...] = option(
        (),
        "Labelled rows: CSV, TSV, JSON lines or Parquet. Repeatable.",
        rich_help_panel=VERIFICATION,
        metavar="FILE",
    )
    calibrate: Path | None = option(
        None,
        "Classifiers: labelled rows that set the temperature by which logits are divided.",
        rich_help_panel=VERIFICATION,
        metavar="FILE",
    )
    max_drop: float | None = option(
        None,
        "Largest loss that passes, as a share of the answers (or tokens) and of the metric. "
        "Default: set by the precision; 0.01 of the metric.",
        rich_help_panel=VERIFICATION,
        metavar="SHARE",
    )
    strict: bool = option(
        False,
        "Publish nothing if int8 or int4 fails. Without it, as many matrix products as needed stay in finer formats.",
        rich_help_panel=VERIFICATION,
    )
    adapters: Path | None = option(
        None,
        "Adapters of MODEL: a folder of peft's LoRA folders, or of checkpoints with other heads. Each becomes a model, "
        "and all share MODEL's memory.",
        rich_help_panel=CHECKPOINT,
        metavar="FOLDER",
    )
    adapter: tuple[str, ...] = option(
        (), "One adapter of MODEL. Repeatable.", rich_help_panel=CHECKPOINT, metavar="NAME=FOLDER"
    )
    force: bool = option(False, "Replace a published model of the same name.", rich_help_panel=PUBLICATION)
    command: str = "hfx export"
    searched: Search | None = None

    def __post_init__(self) -> None:
        if self.quantize and self.precision not in (None, "int8"):
            raise UsageError("--quantize and --precision exclude each other.", "Leave one of them out.")


def checked_max_length(requested: int | None, longest: int, shortest: int = SHORTEST) -> int:
    """Return the `requested` --max-length, or `longest`, the most tokens that the checkpoint reads.

    Raises CheckpointUnsupported if `longest` is below `shortest`, and UsageError if `requested` is out of their range.
    """
    if longest < shortest:
        raise CheckpointUnsupported(
            f"By its files, this checkpoint reads at most {longest} tokens; {shortest} are needed for its task.",
            "Correct max_position_embeddings (config.json), model_max_length (tokenizer_config.json) or max_seq_length "
            "(sentence_bert_config.json).",
        )
    if requested is None:
        return longest
    if not shortest <= requested <= longest:
        raise UsageError(
            f"--max-length {requested} is out of range.",
            f"This checkpoint reads {shortest} to {longest} tokens.",
        )
    return requested
