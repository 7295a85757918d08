"""Make the ONNX graph of an encoder by torch's tracer or by optimum's exporter.

The graph is in float32, for any number of rows and any width. Attention has to be "eager" (scores, softmax, values):
masks are then sums and comparisons that the tracer can follow. Code that the tracer can't follow becomes wrong without
an error (see architectures.py), so the gate decides whether a graph is right. Where a trace would not compute what the
model's own code computes, `traceable` replaces the code while the graph is made. The replacement gives the same numbers
for every input that the original accepts.
`torch.onnx.export(dynamo=True)` supports the same architectures, but takes 5 s for a small model instead of 0.1 s
(torch 2.13).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from hfx.names import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ROWS, WIDTH = "rows", "width"
MOST_POSITIONS = 8192  # for models whose config does not state the number
BUCKETS = {"relative_position_bucket", "_relative_position_bucket"}  # MPNet's and T5's methods for distances
# Rows and width of the traced batch, and of another batch that tells the axes that depend on the batch from the fixed
# ones. They are unlike the sizes of any model, so that no size of the batch is taken for a constant of the model.
TRACED, OTHER = (2, 11), (3, 7)
# optimum's names of tasks, by transformers' class.
OPTIMUM_TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
MAKES_TYPES = {"BigBirdForQuestionAnswering"}  # models that make token types, other than zeros, if they get none
# Class of a module -> its children whose output (True) or input (False) is read across neighbouring tokens.
SEEN_BESIDE: Mapping[str, Mapping[str, bool]] = {
    "ConvBertSelfAttention": {"conv_out_layer": True, "key_conv_attn_layer": False},
    "MobileBertEmbeddings": {"word_embeddings": True},
    "NystromformerSelfAttention": {"value": True},
}


def token_inputs(model: Any, types: bool) -> tuple[str, ...]:
    """Return which of token ids, attention mask and token types the forward of `model` reads.

    `types` says whether the tokenizer gives token types. They are read if there is more than one type: RoBERTa's
    forward also takes them, and has only one. XLM looks up the token types that it gets in its word embeddings. Other
    parameters of the forward (positions, boxes, languages) keep their defaults.
    """
    taken = inspect.signature(model.forward).parameters
    kinds = getattr(model.config, "type_vocab_size", None)
    has_types = types if kinds is None or type(model).__name__ in MAKES_TYPES else kinds > 1
    read = {INPUT_IDS: True, ATTENTION_MASK: True, TOKEN_TYPE_IDS: has_types}
    return tuple(name for name, is_read in read.items() if is_read and name in taken)


def trace(model: torch.nn.Module, outputs: Sequence[str], opset: int, types: bool = True) -> onnx.ModelProto:
    """Return the graph of `model` (in evaluation mode, attention "eager") from its token inputs to `outputs`.

    Inputs and outputs have transformers' names (`logits`, `start_logits`, `last_hidden_state`). Errors of the model and
    the tracer pass through. Raises OSError if the graph can't be written to TMPDIR.
    """
    import torch

    from hfx.exporter.encoder.graph.disentangled import as_operators
    from hfx.exporter.graph.operators import define

    inputs = token_inputs(model, types)
    wrapped = _positional(model, inputs, tuple(outputs))
    first, second = (example(model, inputs, *size) for size in (TRACED, OTHER))
    with torch.no_grad(), as_operators(model), tempfile.TemporaryDirectory(prefix="hfx-export-") as folder:
        shapes = [[tuple(value.shape) for value in wrapped(*batch)] for batch in (first, second)]
        axes = {name: {0: ROWS, 1: WIDTH} for name in inputs}
        axes |= {name: _dynamic_axes(*pair) for name, *pair in zip(outputs, *shapes, strict=True)}
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            wrapped,
            first,
            str(file),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
        graph = onnx.load(file)
    define(graph)
    return graph


def _positional(model: torch.nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> torch.nn.Module:
    """Wrap `model` so that its inputs are positional and its outputs a tuple, as the tracer needs them."""
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = self.model(**dict(zip(inputs, values, strict=True)), return_dict=True)
            return tuple(result[name] for name in outputs)

    # The tracer sets all modules to the mode of this one: in training mode, the model would apply dropout afterwards.
    return Positional().eval()


def example(model: Any, inputs: Sequence[str], rows: int, width: int) -> tuple[torch.Tensor, ...]:
    """Return the `inputs` of a ragged batch `[rows, width]`, int64, padded on the right.

    Each row ends with the end token (if the vocabulary has one), which BART's classifiers look for.
    """
    import torch

    padding = getattr(model.config, "pad_token_id", None) or 0
    end = getattr(model.config, "eos_token_id", None)
    vocabulary = int(model.config.vocab_size)
    lengths = torch.tensor([max(1, width - 2 * row) for row in range(rows)])
    ids = torch.arange(rows * width).view(rows, width) * 7 % max(1, vocabulary - 3) + min(3, vocabulary - 1)
    if isinstance(end, int) and 0 <= end < vocabulary:
        ids = torch.where(ids == end, (ids + 1) % vocabulary, ids)
        ids[torch.arange(rows), lengths - 1] = end
    if (mask_id := getattr(model, "mask_token_id", None)) is not None:
        ids[0] = mask_id  # as many masks as tokens, so that the outputs' axis of masks is found to be dynamic
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    types = (torch.arange(width)[None] >= lengths[:, None] // 2).long() * mask
    values = {INPUT_IDS: torch.where(mask.bool(), ids, padding), ATTENTION_MASK: mask, TOKEN_TYPE_IDS: types}
    return tuple(values[name] for name in inputs)


def _dynamic_axes(one: tuple[int, ...], other: tuple[int, ...]) -> dict[int, str]:
    """Return names of the axes that differ between the outputs of two batches.

    Raises ValueError if the size of an axis is neither the rows nor the width of its batch.
    """
    names = dict(zip(zip(TRACED, OTHER, strict=True), (ROWS, WIDTH), strict=True))
    different = {axis: sizes for axis, sizes in enumerate(zip(one, other, strict=True)) if sizes[0] != sizes[1]}
    if unknown := [sizes for sizes in different.values() if sizes not in names]:
        raise ValueError(f"an output's axis is {unknown[0][0]} and {unknown[0][1]} for widths of 11 and 7")
    return {axis: names[sizes] for axis, sizes in different.items()}


def optimum_graph(model: PreTrainedModel, auto_class: str, opset: int) -> onnx.ModelProto:
    """Return the graph of `model`, of transformers' `auto_class`, with the inputs and outputs that optimum chooses.

    Raises ModuleNotFoundError without optimum, and OSError if TMPDIR can't be written. Errors of optimum pass through.
    """
    from optimum.exporters.onnx import onnx_export_from_model

    with tempfile.TemporaryDirectory(prefix="hfx-export-") as folder:
        onnx_export_from_model(model, folder, opset=opset, task=OPTIMUM_TASKS[auto_class], do_validation=False)
        return onnx.load(Path(folder) / "model.onnx")


@contextlib.contextmanager
def traceable(model: PreTrainedModel, adapted: Collection[str] = ()) -> Iterator[None]:
    """Return a context in which a trace of `model` computes what the model computes.

    The layers at the paths `adapted` stay products of their own.
    """
    with contextlib.ExitStack() as stack:
        _pool_at_the_last_end(model, stack)
        _pool_at_the_last_token(model, stack)
        _keep_one_set_of_positions(model, stack)
        _tabulate_positions(model, stack)
        _part_gates(model, adapted, stack)
        _zero_padding(model, stack)
        _write_out_masks(model, stack)
        yield


def _pool_at_the_last_end(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Have BART-like classifiers pool at the last end-of-sequence token of each row, without mixing rows.

    Transformers writes the pooling as `hidden[mask].view(rows, -1, width)[:, -1]`, after a check that all rows have the
    same number of such tokens. A traced graph loses the check: rows with different counts (a text may spell "</s>")
    would then mix. Reading each row at its own last token gives the same numbers and can't mix rows.
    """
    head = getattr(model, "classification_head", None)
    eos = getattr(model.config, "eos_token_id", None)
    if head is None or eos is None or not getattr(model.config, "is_encoder_decoder", False):
        return
    # The padding token may be the end token.
    _pool_at_the_last(model, stack, head, lambda ids, mask: ids.eq(eos).long() * mask)


def _pool_at_the_last_token(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Have decoders' classifiers read the last token that is not the padding token.

    Transformers computes scores for all tokens before it picks one, and a trace takes the number of rows as a constant.
    """
    head = getattr(model, "score", None)
    if head is None or not type(model).__name__.endswith("ForSequenceClassification"):
        return
    padding = model.config.pad_token_id
    _pool_at_the_last(model, stack, head, lambda ids, mask: mask if padding is None else mask * ids.ne(padding).long())


def _pool_at_the_last(
    model: PreTrainedModel, stack: contextlib.ExitStack, head: Any, chosen: Callable[[Any, Any], Any]
) -> None:
    """Have `head` read the last token of each row that `chosen(ids, mask)` marks by 1."""

    def forward(input_ids: Any = None, attention_mask: Any = None, **unused: Any) -> Any:
        import torch
        from transformers.modeling_outputs import SequenceClassifierOutput

        feed = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        if shift := getattr(model, "_shift_right", None):  # T5's decoder; BART's shifts the ids by itself
            feed["decoder_input_ids"] = shift(input_ids)
        hidden = model.base_model(**feed).last_hidden_state
        order = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
        last = (chosen(input_ids, attention_mask) * order).argmax(dim=1)
        index = last.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return SequenceClassifierOutput(logits=head(hidden.gather(1, index)[:, 0]))

    stack.callback(delattr, model, "forward")  # the method of the class shows again
    setattr(model, "forward", forward)  # noqa: B010 (mypy refuses to assign a method)


def _keep_one_set_of_positions(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Have DeBERTa and T5 compute relative positions for equally many queries and keys.

    DeBERTa has another computation for different numbers, which never occur in an encoder. Its scripted branch would
    become an `If` of unknown rank. T5 takes the number of keys from the keys themselves, which native operators don't
    keep.
    """
    for each in model.modules():
        if (own := getattr(each, "compute_bias", None)) is not None:
            stack.callback(delattr, each, "compute_bias")  # the method of the class shows again
            setattr(each, "compute_bias", lambda count, _, own=own, **rest: own(count, count, **rest))  # noqa: B010
    module: Any = sys.modules[type(model).__module__]
    if hasattr(module, "build_rpos"):
        stack.callback(setattr, module, "build_rpos", module.build_rpos)
        module.build_rpos = lambda query_layer, key_layer, relative_pos, *settings: relative_pos


def _tabulate_positions(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Have angles of rotary positions, and MPNet's and T5's buckets of distances, read from tables, not computed.

    Every processor then uses the sines and logarithms of the exporting machine. Otherwise a different last bit of a
    logarithm could select another bucket. A text is no longer than the number of positions.
    """
    import torch

    longest = int(getattr(model.config, "max_position_embeddings", MOST_POSITIONS))

    class Rotary(torch.nn.Module):
        def __init__(self, own: Any) -> None:
            super().__init__()
            kinds: list[Any] = [(kind,) for kind in getattr(own, "layer_types", ())] or [()]
            places = torch.zeros(1), torch.arange(longest)[None]
            self.tables = {kind: [table[0] for table in own(*places, *kind)] for kind in kinds}

        def forward(self, x: torch.Tensor, position_ids: torch.Tensor, *kind: str) -> Any:
            return tuple(table[position_ids] for table in self.tables[kind])

    def buckets_of(module: Any, bucket: Any) -> Callable[..., torch.Tensor]:
        stated = {each: getattr(module, f"relative_attention_{each}", None) for each in ("num_buckets", "max_distance")}
        stated["bidirectional"] = not getattr(module, "is_decoder", False)
        taken = inspect.signature(bucket).parameters
        settings = {each: value for each, value in stated.items() if each in taken and value is not None}
        buckets = bucket(torch.arange(-longest, longest), **settings)
        return lambda distance, **_: buckets[distance + longest]

    for module in list(model.modules()):
        own = getattr(module, "rotary_emb", None)
        types = getattr(own, "rope_type", ())
        if types and {"default", "linear"} >= set(types.values() if isinstance(types, dict) else [types]):
            stack.callback(setattr, module, "rotary_emb", own)
            setattr(module, "rotary_emb", Rotary(own).eval())  # noqa: B010 (mypy refuses the attribute)
        for name in BUCKETS & set(dir(module)):
            buckets = buckets_of(module, getattr(module, name))
            stack.callback(delattr, module, name)  # the method of the class shows again
            setattr(module, name, buckets)


def _part_gates(model: PreTrainedModel, adapted: Collection[str], stack: contextlib.ExitStack) -> None:
    """Split ModernBERT's linear for gates and values in two, as in other models; such a pair becomes one operator.

    Linears at the paths `adapted`, and those beside them, stay whole.
    """
    import torch

    class Parted(torch.nn.Module):
        def __init__(self, own: Any) -> None:
            super().__init__()
            self.gate, self.value = parts = [torch.nn.Linear(1, 1, device="meta") for _ in range(2)]
            biases = (None, None) if own.Wi.bias is None else map(torch.nn.Parameter, own.Wi.bias.detach().chunk(2))
            for part, weight, bias in zip(parts, own.Wi.weight.detach().chunk(2), biases, strict=True):
                part.register_parameter("weight", torch.nn.Parameter(weight))
                part.register_parameter("bias", bias)
            self.act, self.down = own.act, own.Wo

        def forward(self, hidden: torch.Tensor) -> Any:
            return self.down(self.act(self.gate(hidden)) * self.value(hidden))

    whole = {path.rpartition(".mlp.")[0] for path in adapted}
    parents = [
        module
        for path, module in model.named_modules()
        if type(getattr(module, "mlp", None)).__name__ == "ModernBertMLP" and path not in whole
    ]
    for parent in parents:
        stack.callback(setattr, parent, "mlp", parent.mlp)
        parent.mlp = Parted(parent.mlp).eval()


def _write_out_masks(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Make the masks of Gemma 3 without causal masks by comparisons.

    Its own code makes them by functions of positions under torch.vmap, which can't be traced.
    """
    import torch

    if not getattr(model.config, "use_bidirectional_attention", False):
        return
    window = model.config.sliding_window

    def prepare(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        seen, hidden = named[ATTENTION_MASK][:, None, None, :].bool(), torch.finfo(torch.float32).min
        places = torch.arange(seen.shape[-1])
        near = (places[:, None] - places).abs() < window
        kinds = {"full_attention": seen, "sliding_attention": seen & near}
        return arguments, named | {ATTENTION_MASK: {name: (~kind).float() * hidden for name, kind in kinds.items()}}

    stack.callback(model.base_model.register_forward_pre_hook(prepare, with_kwargs=True).remove)


def _zero_padding(model: PreTrainedModel, stack: contextlib.ExitStack) -> None:
    """Set padding to zero where modules read neighbouring tokens, as convolutions do.

    Padding then has the same effect as the space beyond the end of a text. Otherwise a padded row would have another
    answer than its text alone, as a pipeline gets it.
    """
    masks: list[Any] = []  # the attention mask of the current forward

    def keep_mask(module: Any, arguments: Any, named: Any) -> None:
        masks[:] = [named.get(ATTENTION_MASK)]

    def mask_output(module: Any, arguments: Any, output: Any) -> Any:
        return output if masks[0] is None else output * masks[0][:, :, None].to(output.dtype)

    def mask_input(module: Any, arguments: Any) -> Any:
        (values,) = arguments  # [rows, channels, tokens]
        return values if masks[0] is None else (values * masks[0][:, None, :].to(values.dtype),)

    stack.callback(model.register_forward_pre_hook(keep_mask, with_kwargs=True).remove)
    for module in model.modules():
        for name, is_output in SEEN_BESIDE.get(type(module).__name__, {}).items():
            child = getattr(module, name)
            masked = (
                child.register_forward_hook(mask_output) if is_output else child.register_forward_pre_hook(mask_input)
            )
            stack.callback(masked.remove)
