"""Write an encoder's graph for GPUs: fused operators of ONNX Runtime, and a second graph for rectangular batches.

The operators are in the domain com.microsoft. They have kernels for CPUs, too, so that their values can be compared
without a GPU. A layer of BERT has seven nodes: `Attention` (one product for queries, keys and values, their biases, and
the attention), three products, two `SkipLayerNormalization` (bias, residual and norm) and one `BiasGelu`.

`Attention` gets the number of tokens of each row instead of a mask. ONNX Runtime 1.31 (attention.cc of its CUDA
provider) computes it in float16 with cuDNN's flash attention on GPUs of compute capability 9.0 and later, with
TensorRT's fused kernels from 7.5 to 8.9, and otherwise with products and a softmax of these lengths. A mask with a
value for each token allows only the last. `GroupQueryAttention` with causal=0 has no kernel in float32, and where it
uses its own flash attention, tokens attend to padding: it replaces the lengths of prompts by the width of the batch
(GetSequenceLengths in group_query_attention_impl.cu).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.encoder.graph.attention import RANK, FoundAttention, find_attentions
from hfx.exporter.encoder.graph.build import clean, inlined
from hfx.exporter.encoder.graph.linears import FoundLinear, GraphView, find_linears, replace_nodes
from hfx.exporter.encoder.graph.masks import KEY_MASK, SEEN
from hfx.exporter.encoder.graph.ragged import OUTPUT, PADDED, SPLIT, NodeList, assign, rename
from hfx.exporter.graph.blocks import Activation
from hfx.exporter.graph.writer import CONTRIB
from hfx.names import ATTENTION_MASK, EMBEDDING, ITEM_SHAPE

# Activation -> its operator, whether the operator adds a bias, and the operator's attributes.
ACTIVATIONS: dict[Activation, tuple[str, bool, dict[str, float]]] = {
    "gelu": ("BiasGelu", True, {}),
    "gelu_tanh": ("FastGelu", True, {}),
    "quick_gelu": ("QuickGelu", False, {"alpha": 1.702}),
}


@dataclass(frozen=True)
class Fused:
    """A graph with fused operators: `attentions` of its attentions are operators, and `traced` are as traced."""

    model: onnx.ModelProto
    attentions: int
    traced: int


def fuse(source: onnx.ModelProto) -> Fused:
    """Return the float32 graph `source` without functions, and with fused operators where they give the same values.

    An attention is fused if it adds only the mask of padding to the scores, and perhaps a bias. Attention windows,
    rotations, and keys that heads share stay as traced. The fused graph expects that the tokens of each row that are
    attended to (mask 1 or 2) come first.
    """
    model = onnx.ModelProto()
    model.CopyFrom(inlined(source))
    _without_copies(model)
    view = GraphView(model)
    fusion, linears = _Fusion(view), find_linears(view)
    attentions = [] if _has_fillers(model) else [each for each in find_attentions(view, linears) if _fits(view, each)]
    for attention in attentions:
        fusion.attention(attention)
    for linear in linears:
        fusion.activation(linear)
    residuals = {linear.out: linear for linear in linears if linear.residual}
    for node in model.graph.node:
        fusion.norm(node, residuals)
    kept = [node for at, node in enumerate(model.graph.node) if at not in fusion.absorbed]
    assign(model.graph.node, [*kept, *fusion.new.nodes])
    model.graph.initializer.extend(fusion.new.constants.values())
    for node in fusion.new.nodes:  # ONNX infers no types of other domains, and float16 conversion needs them
        types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output if name]
        model.graph.value_info.extend(types if node.domain else [])
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    cleaned = clean(model)
    return Fused(cleaned, len(attentions), sum(node.op_type == "Softmax" for node in cleaned.graph.node))


def rows_file(path: Path) -> Path:
    """Return the file of the rectangular graph that belongs to the file `path` of the flat graph."""
    return path.with_suffix(".rows.onnx")


def rows_graph(model: onnx.ModelProto, takes_empty: bool) -> onnx.ModelProto | None:
    """Return the graph `model` with the inputs [rows, width] int32 instead of flat inputs, or None if it has no such.

    Its weights are those of `model`. Each sequence is a row, and item_shape is no input. Rows whose mask is 0 are
    padding; their outputs are finite numbers, because their first token is attended to. If the model `takes_empty`
    texts, such rows may be these, and are computed as they are.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    inputs = [value.name for value in graph.input if value.name != ITEM_SHAPE]
    front = NodeList(PADDED)
    casts = {front.add("Cast", [name], name, to=TensorProto.INT64) for name in inputs}
    nodes = [node for node in graph.node if casts.isdisjoint(node.output)]
    if not takes_empty:
        rename(nodes, PADDED + ATTENTION_MASK, _attended(front))
    outputs = {value.name for value in graph.output}
    for split in [node for node in nodes if node.name.startswith(OUTPUT) and node.name.endswith(SPLIT)]:
        nodes.remove(split)
        (target,), inner = split.output, split.input[0]
        rename(nodes, *((inner, target) if target in outputs else (target, inner)))
    assign(graph.input, (helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", "width"]) for name in inputs))
    for value in graph.output:
        dims = value.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[1].dim_param == "sequences":
            del dims[1]
    graph.initializer.extend(front.constants.values())
    replace_nodes(graph, [*front.nodes, *nodes])
    del graph.value_info[:]
    flat = {*inputs, ITEM_SHAPE}
    others = (node for node in graph.node if node.name not in casts)
    return None if any(flat.intersection(node.input) for node in others) else made


def _attended(front: NodeList) -> str:
    """Return the mask [rows, width] with at least 1 for the first token of each row.

    Only rows of padding change. Models divide by the number of tokens that are attended to, and 0 / 0 is no number.
    """
    mask, one = PADDED + ATTENTION_MASK, front.const("one", [1])
    first = front.add("Slice", [mask, front.const("start", [0]), one, one], "first_mask")
    others = front.add("Slice", [mask, one, front.const("end", [np.iinfo(np.int64).max]), one], "other_masks")
    return front.add("Concat", [front.add("Max", [first, one], "first_attended"), others], "attended", axis=1)


class _Fusion:
    """Collects the fused nodes of one graph, and the positions of the nodes that they replace."""

    def __init__(self, view: GraphView) -> None:
        self.view, self.new, self.absorbed = view, NodeList(), set[int]()

    def attention(self, found: FoundAttention) -> None:
        """Replace the node that joins the heads of an attention; the nodes before it are then no longer read."""
        parts, out = found.projections, found.out
        weights = [(numpy_helper.to_array(self.view.weights[part.weight]), part.transposed) for part in parts]
        matrices = [weight.T if transposed else weight for weight, transposed in weights]
        zeros = (np.zeros(matrix.shape[1], np.float32) for matrix in matrices)
        biases = [z if part.bias is None else part.bias for part, z in zip(parts, zeros, strict=True)]
        # ONNX Runtime's kernel for CPUs reads a bias even if there is none (1.31.1).
        bias = self.new.const(out + ".bias", np.concatenate(biases))
        weight = self.new.const(out + ".weight", np.concatenate(matrices, axis=1))
        others = [name for name in found.added if not name.startswith(KEY_MASK)]
        inputs = [parts[0].x, weight, bias, self._lengths(), "", *others]
        self.absorbed.add(found.end)
        self._add("Attention", inputs, [out], num_heads=found.heads, scale=found.scale)

    def activation(self, linear: FoundLinear) -> None:
        """Replace the bias and the activation of a linear that is no gate."""
        first, *others = linear.nodes
        product = self.view.nodes[first]
        if linear.activation not in ACTIVATIONS or linear.factor or product.op_type != "MatMul":
            return
        op, adds_bias, attributes = ACTIVATIONS[linear.activation]
        x = product.output[0]
        bias = [] if linear.bias is None else [self.new.const(linear.out + ".bias", linear.bias)]
        if op == "BiasGelu" and not bias:
            op = "Gelu"
        if bias and not adds_bias:
            self.new.nodes.append(helper.make_node("Add", [x, *bias], [linear.out + ".sum"], name=linear.out + ".sum"))
            x, bias = linear.out + ".sum", []
        self.absorbed.update(others)
        self._add(op, [x, *bias], [linear.out], **attributes)

    def norm(self, node: onnx.NodeProto, residuals: dict[str, FoundLinear]) -> None:
        """Replace a LayerNormalization of a sum, with the sum. `residuals` are the linears whose output is a sum."""
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        total = node.input[0] if node.op_type == "LayerNormalization" else ""
        added = self.view.maker(total) if total else None
        if added is None or added.op_type != "Add" or attributes.get("axis", -1) != -1 or len(node.output) != 1:
            return
        position = self.view.position(total)
        terms, bias = self._terms(added, residuals.get(total))
        if position in self.absorbed or not terms or self.view.vector(node.input[1]) is None:
            return
        self.absorbed.update({position, self.view.position(node.output[0])})
        read = len(self.view.readers[total]) > 1 or total in self.view.kept
        beta = node.input[2] if len(node.input) > 2 else ""
        outputs = [node.output[0], *(["", "", total] if read else [])]
        epsilon = attributes.get("epsilon", 1e-5)
        self._add("SkipLayerNormalization", [*terms, node.input[1], beta, *bias], outputs, epsilon=epsilon)

    def _terms(self, added: onnx.NodeProto, linear: FoundLinear | None) -> tuple[list[str], list[str]]:
        """Return the two terms of a sum of tokens, of which the second may be the same for all rows, and a bias."""
        if linear is not None and linear.bias is not None and self.view.nodes[linear.nodes[0]].op_type == "MatMul":
            product = self.view.nodes[linear.nodes[0]].output[0]
            return [product, linear.residual], [self.new.const(linear.out + ".bias", linear.bias)]
        shapes = self.view.shapes
        for one, other in (added.input, reversed(added.input)):
            shape = shapes.get(one, ())
            if len(shape) == RANK and shapes.get(other) in (shape, (1, *shape[1:])):
                return [one, other], []
        return [], []

    def _lengths(self) -> str:
        """Return the number of tokens of each row, at least 1, as softmax of no tokens is not a number."""
        name = "hfx.lengths"
        if all(name not in node.output for node in self.new.nodes):
            ones = self.new.add("Cast", [SEEN], "hfx.ones", to=TensorProto.INT32)
            counted = self.new.add(
                "ReduceSum", [ones, self.new.const("hfx.width_axis", [1])], "hfx.counted", keepdims=0
            )
            self.new.add("Max", [counted, self.new.const("hfx.least_length", np.int32(1))], name)
        return name

    def _add(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        while not inputs[-1]:
            inputs.pop()
        self.new.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], domain=CONTRIB, **attributes))


def _without_copies(model: onnx.ModelProto) -> None:
    """Rewrite three forms of traced nodes that no CUDA graph can capture, as they copy numbers to the GPU or from it.

    transformers numbers the tokens of a batch by `range(rows) * width`. It becomes a range with the step `width`, as a
    range reads sizes on the processor. torch traces `squeeze(1)` with a branch for sizes other than 1. The place of the
    largest number is found on the GPU in floats only; a double has the value of each token id and position.
    """
    view, new, nodes = GraphView(model), NodeList("hfx.captured."), list[onnx.NodeProto]()
    for node in model.graph.node:
        begin = len(new.nodes)
        made = _counted(view, new, node) if node.op_type == "Mul" else _squeezed(view, new, node)
        if made:
            new.nodes[-1].output[0] = node.output[0]
        elif node.op_type == "ArgMax":
            node.input[0] = new.add("Cast", [node.input[0]], f"{node.name}.double", to=TensorProto.DOUBLE)
        nodes += [*new.nodes[begin:], *([] if made else [node])]
    assign(model.graph.node, nodes)
    model.graph.initializer.extend(new.constants.values())


def _counted(view: GraphView, new: NodeList, product: onnx.NodeProto) -> str:
    """Make the nodes of a product of 0, 1, 2, ... and a size; return its name, which is empty for other products."""
    for counted, size in (product.input, reversed(product.input)):
        source, axes, node = view.maker(size), list[str](), view.maker(counted)
        while node is not None and node.op_type == "Unsqueeze":
            axes.insert(0, node.input[1])
            node = view.maker(node.input[0])
        shape = view.maker(source.input[0]) if source is not None and source.op_type == "Gather" else None
        if node is None or node.op_type != "Range" or shape is None or shape.op_type != "Shape":
            continue
        bounds = [view.integers.get(node.input[at]) for at in (0, 2)]
        if bounds == [(0,), (1,)] and view.shapes[size] in ((), (1,)):
            step = new.add("Reshape", [size, new.const("scalar", np.empty(0, np.int64))], product.name + ".step")
            limit = new.add("Mul", [node.input[1], step], product.name + ".limit")
            name = new.add("Range", [node.input[0], limit, step], product.name + ".range")
            for at, axis in enumerate(axes):
                name = new.add("Unsqueeze", [name, axis], f"{product.name}.{at}")
            return name
    return ""


def _squeezed(view: GraphView, new: NodeList, node: onnx.NodeProto) -> str:
    """Make the node of a `squeeze(1)` of a tensor with one number there; return its name, empty for other nodes."""
    branches = [each.g.node for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    squeezes = [nodes[0] for nodes in branches if len(nodes) == 1 and nodes[0].op_type == "Squeeze"]
    if node.op_type != "If" or len(branches) != 2 or len(squeezes) != 1:
        return ""
    x, squeezed = squeezes[0].input[0], node.output[0]
    shape = view.shapes.get(x, ())
    if shape[1:2] != (1,) or view.shapes.get(squeezed) != (*shape[:1], *shape[2:]):
        return ""
    return new.add("Squeeze", [x, new.const("axis", [1])], node.name)


def _has_fillers(model: onnx.ModelProto) -> bool:
    """Return whether the output are vectors of tokens.

    Late interaction has some that no token attends to (mask -1).

    In `Attention`, the output of a token beyond the row's length depends on the kernel.
    """
    return any(
        value.name == EMBEDDING and len(value.type.tensor_type.shape.dim) == RANK for value in model.graph.output
    )


def _fits(view: GraphView, found: FoundAttention) -> bool:
    """Return whether `Attention` computes a found attention."""
    if not found.projections or found.rotation:
        return False
    rows, width, _ = view.shapes[found.out]
    others = [view.shapes[name] for name in found.added if not name.startswith(KEY_MASK)]
    whole = all(shape[0] in (1, rows) and shape[2:] == (width, width) for shape in others)
    return len(others) == len(found.added) - 1 and whole
