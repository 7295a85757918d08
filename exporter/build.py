"""From a torch model to the net's ONNX graph: exported, cleaned, named and flattened, in float32.

Owns the call of optimum's exporter. It knows the task's tensors, not what happens to the graph afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from hfx import names
from hfx.errors import CheckpointUnsupported, StorageFull
from hfx.exporter.graph.clean import clean
from hfx.exporter.graph.pooling import Pooling, append_pooling
from hfx.exporter.graph.ragged import flatten_inputs
from hfx.exporter.tasks.task import EncoderTask
from hfx.exporter.traceable import traceable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKEN_INPUTS = (names.INPUT_IDS, names.ATTENTION_MASK, names.TOKEN_TYPE_IDS)
HIDDEN_STATE = "last_hidden_state"


def supported_model_types(task: EncoderTask) -> frozenset[str]:
    """Architectures that optimum exports for this task and that read a text as a whole (have a masked-LM class)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    with _quiet():
        from optimum.exporters.onnx import onnx_export_from_model  # noqa: F401  (fills the registry)
        from optimum.exporters.tasks import TasksManager

        exportable = TasksManager.get_supported_model_type_for_task(task.export_task, "onnx")
    return frozenset(exportable) & frozenset(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def build_graph(
    model: PreTrainedModel, task: EncoderTask, opset: int, pad_id: int, pooling: Pooling | None
) -> onnx.ModelProto:
    """The flat float32 graph of `model` for `task`, with the net's tensor names (DESIGN: tensors between the steps).

    `pooling` is given for embeddings only. Raises CheckpointUnsupported when the architecture can't be exported or
    takes other inputs than token ids, mask and types.
    """
    graph = clean(_export(model, task, opset))
    inputs = [value.name for value in graph.graph.input]
    if unknown := [name for name in inputs if name not in TOKEN_INPUTS]:
        raise CheckpointUnsupported(
            f"The model takes inputs that a text doesn't have: {', '.join(unknown)}.",
            "hfx exports models that read token ids, an attention mask and token types.",
        )
    outputs = task.net_outputs(model.config.to_dict())
    if pooling is not None:
        append_pooling(
            graph, pooling, HIDDEN_STATE, names.ATTENTION_MASK, names.EMBEDDING, width=int(outputs[0].dims[-1])
        )
    _keep_outputs(graph, [spec.name for spec in outputs])
    padding = {names.INPUT_IDS: pad_id, names.ATTENTION_MASK: 0, names.TOKEN_TYPE_IDS: 0}
    flatten_inputs(graph, task.item_rank, {name: padding[name] for name in inputs})
    return clean(graph)


def _export(model: PreTrainedModel, task: EncoderTask, opset: int) -> onnx.ModelProto:
    from optimum.exporters.onnx import onnx_export_from_model

    with tempfile.TemporaryDirectory(prefix="hfx-export-") as folder, _quiet(), traceable(model):
        try:
            onnx_export_from_model(model, folder, opset=opset, task=task.export_task, do_validation=False)
        except OSError as error:
            raise StorageFull(
                f"The graph can't be written: {error}.", "Free space in TMPDIR, or point it elsewhere."
            ) from error
        except (ValueError, RuntimeError, NotImplementedError, AttributeError, TypeError, KeyError) as error:
            reason = (str(error) or repr(error)).splitlines()[0]
            raise CheckpointUnsupported(
                f"{type(model).__name__} can't be exported to ONNX: {reason}",
                "optimum's exporter refused it; another attention or a newer optimum may do.",
            ) from error
        return onnx.load(Path(folder) / "model.onnx")


def _keep_outputs(model: onnx.ModelProto, wanted: list[str]) -> None:
    """Drop the outputs that no one reads (hidden states, encoder states); clean() then drops what made them."""
    kept = {value.name: value for value in model.graph.output}
    if missing := [name for name in wanted if name not in kept]:
        raise CheckpointUnsupported(
            f"The exported graph has no output {', '.join(missing)}; it has {', '.join(kept)}.", "Pass another --task."
        )
    values = [kept[name] for name in wanted]
    del model.graph.output[:]
    model.graph.output.extend(values)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's warnings are about tracing and are settled by the parity gate."""
    levels = {name: logging.getLogger(name).level for name in ("optimum", "transformers", "torch.onnx")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
