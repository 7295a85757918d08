"""Make the net's float32 ONNX graph of a torch model (export, clean, name, flatten), and write it to a file."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import Sequential
from onnx_ir.passes import common as passes

from hfx import names
from hfx.errors import CheckpointUnsupported, StorageFull
from hfx.exporter.encoder.graph.pooled_graph import append_pooling, sum_by_operators
from hfx.exporter.encoder.graph.ragged import assign, flatten_inputs
from hfx.exporter.encoder.graph.trace import optimum_graph, trace, traceable
from hfx.exporter.encoder.kinds.kind import EncoderKind
from hfx.exporter.graph.writer import check
from hfx.exporter.options import Exporter
from hfx.exporter.plan import OPSET
from hfx.exporter.quiet import quiet_libraries
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TOKEN_INPUTS = (names.INPUT_IDS, names.ATTENTION_MASK, names.TOKEN_TYPE_IDS)
ADVICE: dict[Exporter, str] = {
    "own": "torch's tracer refused it; with --exporter optimum, optimum's exporter may take it.",
    "optimum": "optimum's exporter refused it; --exporter own may take it.",
}
# Tensors of more than SMALLEST_EXTERNAL bytes are stored in the file of weights. There, tensors of more than
# SMALLEST_ALIGNED bytes begin at a page boundary.
SMALLEST_EXTERNAL, SMALLEST_ALIGNED = 1024, 1 << 16


class _TopLevelIdentities(ir.passes.InPlacePass):
    """Removes the `Identity` nodes of the main graph.

    onnx_ir's own pass also enters subgraphs. It fails where a branch returns a value of the enclosing graph, as the
    branches of DeBERTa's relative positions do.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the output of each identity by its input, unless it is an output of the graph."""
        found = [node for node in model.graph if node.op_type == "Identity" and not node.outputs[0].is_graph_output()]
        for node in found:
            if (source := node.inputs[0]) is not None:
                node.outputs[0].replace_all_uses_with(source)
                model.graph.remove(node, safe=True)
        return ir.passes.PassResult(model, modified=bool(found))


class _SameTypeCasts(ir.passes.InPlacePass):
    """Replaces each cast of the main graph whose input already has the target type by an identity.

    torch's tracer writes such casts.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the casts. The types must have been inferred before."""
        changed = False
        for node in model.graph:
            read = node.inputs[0] if node.op_type == "Cast" else None
            if read is not None and read.dtype == node.attributes.get_int("to"):
                node.op_type, changed = "Identity", True
                node.attributes.clear()
        return ir.passes.PassResult(model, modified=changed)


def clean(model: onnx.ModelProto, *first: ir.passes.PassBase) -> onnx.ModelProto:
    """Return `model` after the passes `first`, and cleaned.

    It has no identities, unused nodes, duplicate initializers, common subexpressions or constant nodes.
    """
    pipeline = Sequential(
        *first,
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        _TopLevelIdentities(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.ClearMetadataAndDocStringPass(),
        passes.TopologicalSortPass(),
    )
    return ir.to_proto(pipeline(ir.from_proto(model)).model)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with its custom operators replaced by their definitions; `model` itself if it defines none."""
    return clean(model, passes.InlinePass()) if model.functions else model


def build_graph(
    model: PreTrainedModel,
    kind: EncoderKind,
    pad_id: int,
    pooler: torch.nn.Module | None,
    exporter: Exporter = "own",
    types: bool = True,
    adapted: Collection[str] = (),
) -> onnx.ModelProto:
    """Return the flat float32 graph of `model` for `kind`, with the net's tensor names (names.py), made by `exporter`.

    `pooler` (pooling.py) is given if the output is pooled from hidden states. `types` says whether the tokenizer gives
    token types; if not, all token types are 0. The layers at the paths `adapted` stay products of their own.
    Raises CheckpointUnsupported if the architecture can't be exported or takes other inputs than token ids, mask and
    types, and StorageFull if TMPDIR can't be written.
    """
    outputs = kind.net_outputs(model.config.to_dict())
    read = [str(pooler.reads)] if pooler is not None else [spec.name for spec in outputs]
    graph = clean(_export(model, kind, read, exporter, types, adapted), passes.ShapeInferencePass(), _SameTypeCasts())
    sum_by_operators(graph, names.ATTENTION_MASK)
    if not types:
        _of_one_type(graph)
    inputs = [value.name for value in graph.graph.input]
    if unknown := [name for name in inputs if name not in TOKEN_INPUTS]:
        raise CheckpointUnsupported(
            f"The model takes inputs that a text doesn't have: {', '.join(unknown)}.",
            "hfx exports models that read token ids, an attention mask and token types.",
        )
    if pooler is not None:
        append_pooling(graph, pooler, read[0], names.ATTENTION_MASK, outputs[0].name, kind.vectors)
    _keep_outputs(graph, outputs)
    padding = {names.INPUT_IDS: pad_id, names.ATTENTION_MASK: 0, names.TOKEN_TYPE_IDS: 0}
    table: Any = None if pooler is None else pooler.table
    flatten_inputs(graph, kind.item_rank, {name: padding[name] for name in inputs}, table)
    return clean(graph)


def _of_one_type(model: onnx.ModelProto) -> None:
    """Replace the input token_type_ids, if there is one, by zeros, as the model does when it gets no token types."""
    graph = model.graph
    kept = [value for value in graph.input if value.name != names.TOKEN_TYPE_IDS]
    if len(kept) < len(graph.input):
        assign(graph.input, kept)
        graph.node.insert(0, onnx.helper.make_node("Sub", [names.INPUT_IDS, names.INPUT_IDS], [names.TOKEN_TYPE_IDS]))


def _export(
    model: PreTrainedModel,
    kind: EncoderKind,
    outputs: list[str],
    exporter: Exporter,
    types: bool,
    adapted: Collection[str],
) -> onnx.ModelProto:
    """Return the padded graph; optimum chooses the outputs of its graph itself."""
    with quiet_libraries(), traceable(model, adapted):
        try:
            if exporter == "optimum":
                return optimum_graph(model, kind.auto_class, OPSET)
            return trace(model, outputs, OPSET, types)
        except OSError as error:
            raise StorageFull(
                f"The graph can't be written: {error}.", "Free space in TMPDIR, or point it elsewhere."
            ) from error
        except (ArithmeticError, ValueError, RuntimeError, AttributeError, TypeError, LookupError) as error:
            reason = (str(error) or repr(error)).splitlines()[0]
            raise CheckpointUnsupported(
                f"{type(model).__name__} can't be exported to ONNX: {reason}", ADVICE[exporter]
            ) from error


def _keep_outputs(model: onnx.ModelProto, wanted: Sequence[TensorSpec]) -> None:
    """Drop the outputs that are not wanted (hidden states, encoder states); clean() then drops their nodes.

    Raises CheckpointUnsupported if a wanted output is missing, or has another number of values than config.json
    describes.
    """
    kept = {value.name: value for value in model.graph.output}
    if missing := [spec.name for spec in wanted if spec.name not in kept]:
        raise CheckpointUnsupported(
            f"The exported graph has no output {', '.join(missing)}; it has {', '.join(kept)}.", "Pass another --task."
        )
    for spec in wanted:
        sizes = [dim.dim_value for dim in kept[spec.name].type.tensor_type.shape.dim]  # 0: any
        count = sizes[-1] if sizes else 0
        if count and spec.dims[-1] not in (-1, count):
            raise CheckpointUnsupported(
                f"The model gives {count} {spec.name}, and config.json describes {spec.dims[-1]}.",
                "Correct the fields that describe its head (id2label, summary_proj_to_labels).",
            )
    assign(model.graph.output, [kept[spec.name] for spec in wanted])


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` to `path` and its weights to a file beside it, and check the graph.

    Runtimes map the file of weights into memory. Of the embeddings, only the rows that texts have used take memory; and
    where a runtime makes its own packed copy of weights, the mapped originals take none.
    Raises CheckpointUnsupported if onnx.checker refuses the graph.
    """
    ir.save(
        ir.from_proto(model),
        path,
        external_data=_weights(path).name,
        size_threshold_bytes=SMALLEST_EXTERNAL,
        alignment=mmap.PAGESIZE,
        align_threshold=SMALLEST_ALIGNED,
    )
    check(path)


def save_beside(model: onnx.ModelProto, path: Path) -> None:
    """Write `model`, whose weights are in a file beside `path` already, and check it. Raises CheckpointUnsupported."""
    path.write_bytes(model.SerializeToString())
    check(path)


def rename(path: Path, target: Path) -> None:
    """Rename the file of a graph, and the file of its weights, to `target` in the same folder."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = _weights(target).name
    target.write_bytes(model.SerializeToString())
    if _weights(path).exists():
        _weights(path).rename(_weights(target))
    path.unlink()


def remove(path: Path) -> None:
    """Remove the file of a graph and the file of its weights, if they exist."""
    for each in (path, _weights(path)):
        each.unlink(missing_ok=True)


def _weights(path: Path) -> Path:
    return path.with_name(path.name + ".data")
