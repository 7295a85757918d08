"""What the configurations of GLiNER and GLiClass say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.checkpoint_files import LABELS_TOKENIZER
from hfx.exporter.config_file import LABELLED, checked_config, whole_number
from hfx.exporter.source import Checkpoint

# Before the names of the encoder's tensors, in GLiNER and in GLiClass.
SPANS_ENCODER, TEXT_ENCODER = "token_rep_layer.bert_layer.model.", "model.encoder_model."
LABELS_ENCODER = "token_rep_layer.labels_encoder.model."  # the same of a bi-encoder's encoder of labels
# What a field must be, its default, and what other values stand for.
OF_GLINER: Mapping[str, tuple[tuple[Any, ...], Any, str]] = {
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
POOLINGS = ("first", "avg", "sum", "rms", "max", "abs_avg", "abs_max")
OF_GLICLASS: Mapping[str, tuple[tuple[Any, ...], Any, str]] = {
    "architecture_type": (("uni-encoder",), "uni-encoder", "models with another net for the labels"),
    "label_model_name": ((None,), None, "models with another net for the labels"),
    "scorer_type": (("simple", "weighted-dot", "mlp"), "simple", "this scorer"),
    "pooling_strategy": (POOLINGS, "first", "another pooling of the text"),
    "class_token_pooling": (("first", "average"), "first", "another pooling of labels"),
    "prompt_first": ((True,), False, "models that read the labels behind the text"),
    "projector_hidden_act": (("gelu", "gelu_new", "relu", "silu", "tanh"), "gelu", "this activation"),
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


@dataclass(frozen=True)
class Gliner:
    """What gliner_config.json says: the sizes of the head, and how texts and labels are read.

    `labels_config` is the configuration of a bi-encoder's net for the labels; empty if they are read with the text.
    """

    hidden: int = 512
    width: int = 12
    words: int = 384
    layers: int = 1
    span_mode: str = "markerV0"
    markers: tuple[str, str] = ("<<ENT>>", "<<SEP>>")
    marker_id: int = -1
    first_tokens: bool = True
    embeds_marker: bool = True
    adds_markers: bool = False
    labels_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_tokens(self) -> bool:
        """Whether the model scores words, not spans."""
        return self.span_mode == "token_level"


def read_gliner(checkpoint: Checkpoint) -> Gliner:
    """Return what the configuration says. Raises CheckpointUnsupported and CheckpointCorrupt."""
    stated, file = checkpoint.config[LABELLED], checkpoint.folder / "gliner_config.json"
    fix = "Export a uni-encoder model such as gliner_small-v2.1 or gliner_multi_pii-v1, or use gliner itself."
    _refuse_others(file, stated, OF_GLINER, fix)

    is_bi_encoder = stated.get("labels_encoder") is not None
    labels = stated.get("labels_encoder_config")
    if is_bi_encoder and not (isinstance(labels, dict) and (checkpoint.folder / LABELS_TOKENIZER).is_dir()):
        raise CheckpointUnsupported(
            f"{checkpoint.folder} lacks the configuration or the tokenizer of the labels' encoder.",
            "Save it again: GLiNER.from_pretrained(MODEL).save_pretrained(FOLDER) of gliner 0.2.29 or later.",
        )

    def number(field: str, default: int, most: int, least: int = 1) -> int:
        return whole_number(file, {field: default} | stated, field, most, least)

    usual = Gliner()
    return Gliner(
        hidden=number("hidden_size", usual.hidden, 100_000),
        width=number("max_width", usual.width, 100),
        words=number("max_len", usual.words, 8192),
        layers=number("num_rnn_layers", usual.layers, 8, least=0),
        span_mode=str(stated.get("span_mode", usual.span_mode)),
        markers=(str(stated.get("ent_token", usual.markers[0])), str(stated.get("sep_token", usual.markers[1]))),
        marker_id=number("class_token_index", usual.marker_id, MOST_TOKENS, least=-1),
        first_tokens=stated.get("subtoken_pooling", "first") == "first",
        embeds_marker=bool(stated.get("embed_ent_token", usual.embeds_marker)),
        labels_config=checked_config(file, labels) if is_bi_encoder and labels else {},
        adds_markers=not is_bi_encoder and -1 in (stated.get("class_token_index", -1), stated.get("vocab_size", -1)),
    )


@dataclass(frozen=True)
class Gliclass:
    """What the config.json of a GLiClass says: the sizes of the head, and how texts and labels are read."""

    hidden: int = 0
    scorer: str = "simple"
    activation: str = "gelu"
    averages: bool = False
    normalizes: bool = False
    pooling: str = "first"
    embeds_marker: bool = True
    reads_separator: bool = False
    marker_id: int = -1
    separator_id: int = -1


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
        pooling=str(stated.get("pooling_strategy", "first")),
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
    for name, (allowed, default, meaning) in required.items():
        if (value := stated.get(name, default)) not in allowed:
            message = f"{name} in {file} is {str(value)[:50]!r}: hfx does not export {meaning}."
            raise CheckpointUnsupported(message, fix)
