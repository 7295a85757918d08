"""What the configurations of GLiNER and GLiClass say, and the encoder and the head that its tensors make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import LABELLED, whole_number
from hfx.exporter.source import Checkpoint

if TYPE_CHECKING:
    from hfx.exporter.encoder.checkpoint.label_heads import Head

# Before the names of the encoder's tensors, in GLiNER and in GLiClass.
SPANS_ENCODER, TEXT_ENCODER = "token_rep_layer.bert_layer.model.", "model.encoder_model."
# What a field must be, its default, and what other values stand for.
OF_GLINER: Mapping[str, tuple[tuple[Any, ...], Any, str]] = {
    "labels_encoder": ((None,), None, "a second encoder for the labels"),
    "labels_decoder": ((None,), None, "a decoder that writes labels"),
    "relations_layer": ((None,), None, "relations between entities"),
    "decoder_config": ((None,), None, "a decoder that reads a stream"),
    "span_encoder_config": ((None,), None, "another encoder for spans"),
    "post_fusion_schema": (("", None), "", "attention between labels and words"),
    "fuse_layers": ((False,), False, "states of several layers"),
    "represent_spans": ((False,), False, "spans of a token-level model"),
    "precomputed_prompts_mode": ((None, False), None, "fixed labels"),
    "words_splitter_type": (("whitespace",), "whitespace", "words that another library divides"),
    "subtoken_pooling": (("first", "last"), "first", "means of a word's tokens"),
    "span_mode": (("markerV0", "marker", "token_level"), "markerV0", "another representation of spans"),
}
OF_GLICLASS: Mapping[str, tuple[tuple[Any, ...], Any, str]] = {
    "architecture_type": (("uni-encoder",), "uni-encoder", "models with another net for the labels"),
    "label_model_name": ((None,), None, "models with another net for the labels"),
    "scorer_type": (("simple", "weighted-dot", "mlp"), "simple", "this scorer"),
    "pooling_strategy": (("first",), "first", "another pooling of the text"),
    "class_token_pooling": (("first", "average"), "first", "another pooling of labels"),
    "prompt_first": ((True,), False, "models that read the labels behind the text"),
    "encoder_layer_id": ((-1,), -1, "states of another layer"),
    **{
        field: ((False,), False, meaning)
        for field, meaning in (
            ("use_lstm", "an LSTM over the text"),
            ("squeeze_layers", "states of several layers"),
            ("use_segment_embeddings", "segments of the text"),
            ("use_calibrator", "a calibrator"),
            ("multimodal", "other media than text"),
        )
    },
}
MOST_TOKENS = 100_000_000
LSTM = "rnn.lstm."


@dataclass(frozen=True)
class Gliner:
    """What gliner_config.json says: the sizes of the head, and how texts and labels are read."""

    hidden: int
    width: int
    words: int
    layers: int
    span_mode: str
    markers: tuple[str, str]
    marker_id: int
    first_tokens: bool
    embeds_marker: bool

    @property
    def by_tokens(self) -> bool:
        """Whether the model scores words, not spans."""
        return self.span_mode == "token_level"


def read_gliner(checkpoint: Checkpoint) -> Gliner:
    """Return what the configuration says. Raises CheckpointUnsupported and CheckpointCorrupt."""
    stated, file = checkpoint.config[LABELLED], checkpoint.folder / "gliner_config.json"
    fix = "Export a uni-encoder model such as gliner_small-v2.1 or gliner_multi_pii-v1, or use gliner itself."
    _refuse_others(file, stated, OF_GLINER, fix)
    markers = tuple(
        str(stated.get(name, default)) for name, default in (("ent_token", "<<ENT>>"), ("sep_token", "<<SEP>>"))
    )
    layers = stated.get("num_rnn_layers", 1)
    return Gliner(
        hidden=whole_number(file, {"hidden_size": 512} | stated, "hidden_size", 100_000),
        width=whole_number(file, {"max_width": 12} | stated, "max_width", 100),
        words=whole_number(file, {"max_len": 384} | stated, "max_len", 8192),
        layers=whole_number(file, {"num_rnn_layers": layers}, "num_rnn_layers", 8, least=0),
        span_mode=str(stated.get("span_mode", "markerV0")),
        markers=(markers[0], markers[1]),
        marker_id=whole_number(file, {"class_token_index": -1} | stated, "class_token_index", MOST_TOKENS, least=-1),
        first_tokens=stated.get("subtoken_pooling", "first") == "first",
        embeds_marker=bool(stated.get("embed_ent_token", True)),
    )


@dataclass(frozen=True)
class Gliclass:
    """What the config.json of a GLiClass says: the sizes of the head, and how texts and labels are read."""

    hidden: int
    scorer: str
    activation: str
    averages: bool
    normalizes: bool
    embeds_marker: bool
    reads_separator: bool
    marker_id: int
    separator_id: int


def read_gliclass(checkpoint: Checkpoint) -> Gliclass:
    """Return what the configuration says. Raises CheckpointUnsupported and CheckpointCorrupt."""
    stated, file = checkpoint.config[LABELLED], checkpoint.folder / "config.json"
    _refuse_others(
        file, stated, OF_GLICLASS, "Export a uni-encoder model such as gliclass-base-v3.0, or use gliclass itself."
    )
    separator = whole_number(file, stated, "text_token_index", MOST_TOKENS)
    return Gliclass(
        hidden=whole_number(
            file, {"hidden_size": checkpoint.config.get("hidden_size")} | stated, "hidden_size", 100_000
        ),
        scorer=str(stated.get("scorer_type", "simple")),
        activation=str(stated.get("projector_hidden_act", "gelu")),
        averages=stated.get("class_token_pooling", "first") == "average",
        normalizes=bool(stated.get("normalize_features", False)),
        embeds_marker=bool(stated.get("embed_class_token", True)),
        reads_separator=bool(stated.get("extract_text_features", False)),
        marker_id=whole_number(file, stated, "class_token_index", MOST_TOKENS),
        separator_id=separator,
    )


def check_markers(checkpoint: Checkpoint, tokenizer: Any, ids: Mapping[str, int]) -> None:
    """Raise CheckpointCorrupt unless the tokenizer has the tokens `ids` under these ids; an id below 0 may be any."""
    for marker, expected in ids.items():
        token = tokenizer.get_vocab().get(marker)
        if token is None or expected not in (-1, token):
            own = "has no such token" if token is None else f"has {token} for it"
            raise CheckpointCorrupt(
                f"The model reads {marker!r} as token {expected}, and the tokenizer of {checkpoint.folder} {own}.",
                "Save both together, by MODEL.save_pretrained(FOLDER) of gliner, or of gliclass and its tokenizer.",
            )


def _refuse_others(
    file: Path, stated: Mapping[str, Any], required: Mapping[str, tuple[tuple[Any, ...], Any, str]], fix: str
) -> None:
    """Raise CheckpointUnsupported for a field of `required` with a value that hfx does not export."""
    for field, (allowed, default, meaning) in required.items():
        if (value := stated.get(field, default)) not in allowed:
            message = f"{field} in {file} is {str(value)[:50]!r}: hfx does not export {meaning}."
            raise CheckpointUnsupported(message, fix)


def load_span_head(checkpoint: Checkpoint, own: Gliner, width: int) -> Head:
    """Return the head of a GLiNER whose encoder's states have `width`. Raises CheckpointCorrupt."""
    from hfx.exporter.encoder.checkpoint.label_heads import SpanHead, TokenHead, Words

    words, is_deep = Words(width, own.hidden, own.layers), own.span_mode == "markerV0"
    head = TokenHead(words, own.hidden) if own.by_tokens else SpanHead(words, own.hidden, own.width, is_deep)
    return _filled(head, checkpoint, _library_name)


def load_text_head(checkpoint: Checkpoint, own: Gliclass, width: int) -> Head:
    """Return the head of a GLiClass whose encoder's states have `width`. Raises CheckpointCorrupt."""
    from hfx.exporter.encoder.checkpoint.label_heads import TextHead

    return _filled(TextHead(width, own), checkpoint, lambda name: f"model.{name}")


def _filled(head: Head, checkpoint: Checkpoint, name_of: Callable[[str], str]) -> Head:
    """Return `head` with the checkpoint's tensors. Raises CheckpointCorrupt if one is missing or misshapen."""
    import torch

    from hfx.exporter.tensors import CheckpointTensors

    tensors = CheckpointTensors(checkpoint)
    stored = {name: tensors.parameter(name_of(name), *value.shape) for name, value in head.named_parameters()}
    tensors.require()
    head.load_state_dict({name: torch.from_numpy(each.read().copy()) for name, each in stored.items()})
    return head.eval()


def _library_name(name: str) -> str:
    """Return gliner's name of a tensor of the head."""
    if name.startswith("words.lstm."):  # words.lstm.LAYER.weight_ih_l0_reverse
        layer, _, rest = name.removeprefix("words.lstm.").partition(".")
        return LSTM + rest.replace("_l0", f"_l{layer}")
    if name.startswith("words.projection."):
        return name.replace("words.", "token_rep_layer.")
    if name.startswith("prompt."):
        return name.replace("prompt.", "prompt_rep_layer.")
    return (
        "scorer." if name.startswith(("proj_token", "proj_label", "out_mlp")) else "span_rep_layer.span_rep_layer."
    ) + name
