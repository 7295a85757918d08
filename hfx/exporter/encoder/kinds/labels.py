"""GLiClass: the labels that a request names, scored in one pass over the labels and the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hfx import names
from hfx.exporter.encoder.checkpoint.labelled import TEXT_ENCODER, Gliclass, check_markers, read_gliclass
from hfx.exporter.encoder.kinds.kind import Config, Request, Settings, width
from hfx.exporter.encoder.kinds.spans import ReadsLabels
from hfx.exporter.encoder.kinds.zero_shot import ZeroShot
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind
from hfx.python_backends.labelled import LABEL
from hfx.python_backends.onnxruntime.config import LABEL_MASK
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

MARKERS = ("<<LABEL>>", "<<SEP>>")  # gliclass's own


@dataclass(frozen=True, kw_only=True)
class Labels(ReadsLabels, ZeroShot):
    """A zero-shot classifier that reads all labels of a request, and the text, in one sequence."""

    name: ClassVar[Kind] = Kind.LABELS
    architectures: ClassVar[tuple[str, ...]] = ("GLiClass",)
    prefix: ClassVar[str] = TEXT_ENCODER
    pooler_tensors: ClassVar[tuple[str, ...]] = ("model.",)
    net_parameters: ClassVar[Mapping[str, str]] = {LABEL_MASK: str(LABEL)}

    gliclass: Gliclass = field(default_factory=Gliclass)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        return {**super().fields(checkpoint, options), "gliclass": read_gliclass(checkpoint)}

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        """Return one logit for each label."""
        return (TensorSpec(names.LOGITS, "TYPE_FP32", (-1, 1, -1)),)

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        own, (marker, separator) = self.gliclass, MARKERS
        check_markers(checkpoint, tokenizer, {marker: own.marker_id, separator: own.separator_id})
        reading = {"averaged": own.averages, "reads_separator": own.reads_separator}
        return {"labelled": reading | {"markers": list(MARKERS), "embeds_marker": own.embeds_marker}}

    def last_step_settings(self, config: Config) -> Settings:
        return {"entailment": None, "contradiction": None}

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        from hfx.exporter.encoder.checkpoint.text_heads import load_text_head

        model, _ = super().load_model(checkpoint, tokenizer)
        return model, load_text_head(checkpoint.home, self.gliclass, width(checkpoint.config))

    def request_options(self, sample: int, config: Config) -> Request:
        """Return options so that labels are compared alone and with each other."""
        return {names.MULTI_LABEL: sample % 2 == 1}

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the ids that gliclass makes of the labels and the text."""
        marker, separator = MARKERS
        prompt = "".join(marker + label for label in request[names.CANDIDATE_LABELS]) + separator
        text = prompt + request[names.TEXT_INPUT]
        return [tokenizer(text, truncation=True, max_length=max_length, verbose=False)["input_ids"]]
