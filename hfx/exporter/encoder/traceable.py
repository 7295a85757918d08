"""Places where a model's own code means one thing and a trace of it another, replaced while a graph is made.

Each replacement gives the numbers of the original for every input that the original takes. Nothing else about a model
is changed, and everything is put back.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hfx.names import ATTENTION_MASK

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Class of a module -> its children whose output (True) or input is seen from the tokens beside it.
SEEN_BESIDE: Mapping[str, Mapping[str, bool]] = {
    "ConvBertSelfAttention": {"conv_out_layer": True, "key_conv_attn_layer": False},
    "MobileBertEmbeddings": {"word_embeddings": True},
    "NystromformerSelfAttention": {"value": True},
}


@contextlib.contextmanager
def traceable(model: PreTrainedModel) -> Iterator[None]:
    """While this is entered, a trace of `model` is what the model means."""
    with _pooling_at_the_last_end(model), _one_set_of_positions(model), _zeros_at_padding(model):
        yield


@contextlib.contextmanager
def _pooling_at_the_last_end(model: PreTrainedModel) -> Iterator[None]:
    """BART-like classifiers pool at the last end-of-sequence token of each row.

    Transformers writes it as `hidden[mask].view(rows, -1, width)[:, -1]`, and checks before it that all rows have
    equally many such tokens. A traced graph loses the check: rows with different counts (a text may spell "</s>")
    would then mix. Reading each row at its own last token gives the same numbers and can't mix rows.
    """
    head = getattr(model, "classification_head", None)
    eos = getattr(model.config, "eos_token_id", None)
    if head is None or eos is None or not getattr(model.config, "is_encoder_decoder", False):
        yield
        return

    def forward(input_ids: Any = None, attention_mask: Any = None, **unused: Any) -> Any:
        import torch
        from transformers.modeling_outputs import SequenceClassifierOutput

        base = getattr(model, model.base_model_prefix)
        hidden = base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        order = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
        last = (input_ids.eq(eos).long() * order).argmax(dim=1)
        index = last.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return SequenceClassifierOutput(logits=head(hidden.gather(1, index)[:, 0]))

    with _replaced(model, "forward", forward):
        yield


@contextlib.contextmanager
def _one_set_of_positions(model: PreTrainedModel) -> Iterator[None]:
    """DeBERTa computes other relative positions where queries and keys differ in number, which in an encoder never is.

    Its scripted branch would become an `If` of unknown rank, which OpenVINO can't run.
    """
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "build_rpos"):
        yield
        return

    def build_rpos(query_layer: Any, key_layer: Any, relative_pos: Any, *settings: int) -> Any:
        return relative_pos

    with _replaced(module, "build_rpos", build_rpos):
        yield


@contextlib.contextmanager
def _zeros_at_padding(model: PreTrainedModel) -> Iterator[None]:
    """Convolutions see the tokens beside them: padding counts as nothing, as what lies beyond the end of a text does.

    Without it a padded row has other answers than its text alone, which is what a pipeline is given.
    """
    masks: list[Any] = []  # of the forward that runs

    def keep_mask(module: Any, arguments: Any, named: Any) -> None:
        masks[:] = [named.get(ATTENTION_MASK)]

    def mask_output(module: Any, arguments: Any, output: Any) -> Any:
        return output if masks[0] is None else output * masks[0][:, :, None].to(output.dtype)

    def mask_input(module: Any, arguments: Any) -> Any:
        (values,) = arguments  # [rows, channels, tokens]
        return values if masks[0] is None else (values * masks[0][:, None, :].to(values.dtype),)

    handles = []
    for module in model.modules():
        for name, is_output in SEEN_BESIDE.get(type(module).__name__, {}).items():
            child = getattr(module, name)
            handles.append(
                child.register_forward_hook(mask_output) if is_output else child.register_forward_pre_hook(mask_input)
            )
    if handles:
        handles.append(model.register_forward_pre_hook(keep_mask, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    had = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, original)
        else:
            delattr(owner, name)  # a method of the class shows again
