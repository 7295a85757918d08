"""The heads of GLiNER, which score spans or words by the embeddings of labels that a request names.

A text is read behind its labels, in one sequence. The attention mask says what each token stands for
(python_backends/labelled.py). The gate runs a head as gliner (0.2) computes it; the net's graph is the trace of what
`folded` returns, which gives the same scores with fewer products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from hfx.exporter.encoder.checkpoint.labelled import Gliner
from hfx.exporter.encoder.checkpoint.pooling import HIDDEN_STATE
from hfx.exporter.load import check_finite
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.python_backends.labelled import LABEL, WORD


class Head(nn.Module):
    """The base class of heads: a pooler (pooling.py) of the encoder's hidden states [rows, tokens, hidden].

    `axes` names the dynamic axes of the output. The heads of bi-encoders also get the vectors of labels
    [rows, labels, numbers], which `labels` makes of their texts.
    """

    reads: ClassVar[str] = HIDDEN_STATE
    has_masks: ClassVar[bool] = True
    table: ClassVar[None] = None
    labels: Any = None
    axes: ClassVar[dict[int, str]]

    def look_up(self, ids: torch.Tensor, mask: torch.Tensor) -> float:
        """Return 0: no output is read from a table."""
        return 0.0

    def folded(self) -> nn.Module:
        """Return a module with the same results and fewer products, for the net's graph."""
        return self


def places_of(mask: torch.Tensor, role: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the tokens with the mask `role`, in order, and their number in each row [rows, 1].

    The places [rows, tokens] are 0 behind the last one.
    """
    is_role = mask.eq(role)
    number = is_role.long().cumsum(1)
    rows, tokens = mask.shape
    order = torch.arange(tokens).expand(rows, tokens)
    target = torch.where(is_role, number - 1, tokens)
    found = torch.zeros(rows, tokens + 1, dtype=torch.long).scatter(1, target, order)
    return found[:, :-1], number[:, -1:]


def picked(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the hidden states [rows, n, hidden] at `places` [rows, n]."""
    rows, tokens, width = hidden.shape
    flat = places + torch.arange(rows)[:, None] * tokens
    return hidden.reshape(rows * tokens, width).index_select(0, flat.flatten()).view(rows, -1, width)


def labels_of(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of labels [rows, labels, hidden], of at least one label.

    A row with fewer labels than another row has the state of its first token in the remaining places.
    """
    places, count = places_of(mask, LABEL)
    return picked(hidden, places[:, : count.max().clamp(min=1)])


class _LstmOperator(torch.autograd.Function):
    """Writes ONNX's LSTM, whose results do not depend on the other rows: one layer in both directions."""

    @staticmethod
    def forward(ctx: Any, words: torch.Tensor, *read: Any) -> torch.Tensor:
        """Return values of the right shape; a trace needs no more."""
        return words.clone()

    @staticmethod
    def symbolic(g: Any, words: Any, lengths: Any, weight: Any, recurrent: Any, bias: Any, size: int) -> Any:
        """Return the states [rows, words, 2 * size]."""
        by_word = g.op("Transpose", words, perm_i=[1, 0, 2])
        length = g.op("Cast", lengths, to_i=6)  # int32
        options: Any = {"hidden_size_i": size, "direction_s": "bidirectional"}
        states = g.op("LSTM", by_word, weight, recurrent, bias, length, **options)
        by_row = g.op("Transpose", states, perm_i=[2, 0, 1, 3])
        result = g.op("Reshape", by_row, g.op("Constant", value_t=torch.tensor([0, -1, 2 * size])))
        result.setType(words.type())
        return result


def both_ways(layer: nn.LSTM, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the states of one bidirectional layer for `words` [rows, words, inputs], of which a row has `lengths`."""
    if torch.onnx.is_in_onnx_export():
        read: Any = (words, lengths, *_onnx_weights(layer), layer.hidden_size)
        return _LstmOperator.apply(*read)  # type: ignore[no-any-return, no-untyped-call]
    packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    states, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=words.shape[1])
    return states


class Words(nn.Module):
    """The embeddings of words [rows, tokens, hidden], zero behind the last word, and of labels [rows, labels, hidden].

    `encoder_width` is the width of the encoder's states, which are projected to `hidden` if it is another width. The
    words of a row go through `layers` of a bidirectional LSTM.
    """

    def __init__(self, encoder_width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.projection = nn.Linear(encoder_width, hidden) if encoder_width != hidden else nn.Identity()
        self.lstm = nn.ModuleList(
            nn.LSTM(hidden, hidden // 2, batch_first=True, bidirectional=True) for _ in range(layers)
        )

    def forward(
        self, states: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the words, the number of words of each row [rows, 1], and the labels: `vectors` if they are given."""
        hidden = self.projection(states)
        places, count = places_of(mask, WORD)
        is_word = torch.arange(mask.shape[1])[None] < count
        words = picked(hidden, places) * is_word[:, :, None].to(hidden.dtype)
        for layer in self.lstm:
            assert isinstance(layer, nn.LSTM)
            words = both_ways(layer, words, count[:, 0].clamp(min=1))
            words = words * is_word[:, :, None].to(hidden.dtype)
        return words, count, labels_of(hidden, mask) if vectors is None else vectors


def _onnx_weights(layer: Any) -> list[torch.Tensor]:
    """Return the weights, recurrent weights and biases of both directions in ONNX's order of gates (i, o, f, c)."""

    def ordered(name: str) -> torch.Tensor:
        ways = (getattr(layer, f"{name}_l0{way}").detach().chunk(4) for way in ("", "_reverse"))
        return torch.stack([torch.cat([i, o, f, c]) for i, f, c, o in ways])

    return [ordered("weight_ih"), ordered("weight_hh"), torch.cat([ordered("bias_ih"), ordered("bias_hh")], 1)]


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return two linears with a ReLU between them; their names are those of gliner's projection layers."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, outputs))


class SpanHead(Head):
    """Scores [rows, tokens, width, labels] of the spans that begin at each word and have 1 to `width` words.

    A span is made of its first and its last word (`markerV0` of gliner, and `marker` with one linear at the end).
    Scores of spans beyond the last word are 0.
    """

    axes: ClassVar[dict[int, str]] = {0: "rows", 1: "tokens", 3: "labels"}

    def __init__(self, words: Words, hidden: int, width: int, is_deep: bool) -> None:
        super().__init__()
        self.words, self.width = words, width
        inner = 4 * hidden if is_deep else 2 * hidden
        self.project_start, self.project_end = (perceptron(hidden, inner, hidden) for _ in range(2))
        self.out_project: Any = perceptron(2 * hidden, 4 * hidden, hidden) if is_deep else nn.Linear(2 * hidden, hidden)
        self.prompt = perceptron(hidden, 4 * hidden, hidden)

    def forward(self, states: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores for the encoder's `states`, the attention mask and, of a bi-encoder, the labels."""
        words, count, labels = self.words(states, mask, vectors)
        starts, ends = self.project_start(words), self.project_end(words)
        ends = torch.stack(following(ends, self.width), 2)
        spans = torch.cat([starts[:, :, None].expand_as(ends), ends], -1).relu()
        scores = torch.einsum("BLKD,BCD->BLKC", self.out_project(spans), self.prompt(labels))
        return scores * inside(scores, count)

    def folded(self) -> nn.Module:  # noqa: D102
        return FoldedSpans(self).eval()


def following(words: torch.Tensor, width: int) -> list[torch.Tensor]:
    """Return the words [rows, tokens, hidden] that follow 0 to `width` - 1 words later, zeros behind the last one."""
    padded = functional.pad(words, (0, 0, 0, width - 1))
    return [padded[:, by : by - width + 1 or None] for by in range(width)]


def inside(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return 1 for the spans of `scores` [rows, tokens, width, labels] that end within `count` words, otherwise 0."""
    last = torch.arange(scores.shape[1])[:, None] + torch.arange(scores.shape[2])
    return (last[None] < count[:, :, None])[..., None].to(scores.dtype)


class FoldedSpans(nn.Module):
    """The scores of a SpanHead.

    The first linear of `out_project` is a sum over both ends of a span, so it is computed for each word, not for each
    span. Its last linear is multiplied with the labels instead of with the spans.
    """

    def __init__(self, head: SpanHead) -> None:
        super().__init__()
        self.words, self.width, self.prompt = head.words, head.width, head.prompt
        self.project_start, self.project_end = head.project_start, head.project_end
        self.of_label: nn.Module
        is_deep = isinstance(head.out_project, nn.Sequential)
        first, last = (head.out_project[0], head.out_project[3]) if is_deep else (head.out_project, None)
        start, end = first.weight.detach().chunk(2, 1)
        self.of_start, self.of_end = _linear(start, first.bias.detach()), _linear(end)
        self.of_label = _linear(last.weight.detach().T.contiguous()) if last else nn.Identity()
        self.offset = nn.Parameter(last.bias.detach()) if last else None

    def forward(self, states: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores for the encoder's `states`, the attention mask and, of a bi-encoder, the labels."""
        words, count, labels = self.words(states, mask, vectors)
        starts = self.of_start(self.project_start(words).relu())
        ends = self.of_end(self.project_end(words).relu())
        prompts = self.prompt(labels)
        keys = self.of_label(prompts).transpose(1, 2)
        if self.offset is None:
            by_width = [(starts + end) @ keys for end in following(ends, self.width)]
        else:
            base = (prompts * self.offset).sum(-1)[:, None]
            by_width = [(starts + end).relu() @ keys + base for end in following(ends, self.width)]
        scores = torch.stack(by_width, 2)
        return scores * inside(scores, count)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    linear.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        linear.bias = nn.Parameter(bias)
    return linear


class TokenHead(Head):
    """Scores [rows, tokens, 3, labels]: each word as the first, the last, and any word of an entity (gliner's Scorer).

    Scores behind the last word are 0.
    """

    axes: ClassVar[dict[int, str]] = {0: "rows", 1: "tokens", 3: "labels"}

    def __init__(self, words: Words, hidden: int) -> None:
        super().__init__()
        self.words = words
        self.proj_token, self.proj_label = nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, 2 * hidden)
        self.out_mlp = nn.Sequential(
            nn.Linear(3 * hidden, 4 * hidden), nn.Dropout(), nn.ReLU(), nn.Linear(4 * hidden, 3)
        )

    def forward(self, states: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores for the encoder's `states`, the attention mask and, of a bi-encoder, the labels."""
        words, count, labels = self.words(states, mask, vectors)
        of_words, of_labels = self.proj_token(words)[:, :, None], self.proj_label(labels)[:, None]
        shape = (*of_words.shape[:2], of_labels.shape[2], of_words.shape[3])
        (word, word_factor), (label, label_factor) = (x.expand(shape).chunk(2, -1) for x in (of_words, of_labels))
        scores: torch.Tensor = self.out_mlp(torch.cat([word, label, word_factor * label_factor], -1)).transpose(2, 3)
        return scores * inside(scores[:, :, :1], count)

    def folded(self) -> nn.Module:  # noqa: D102
        return FoldedTokens(self).eval()


class FoldedTokens(nn.Module):
    """The scores of a TokenHead; the parts of its first linear that read words or labels alone are computed once."""

    def __init__(self, head: TokenHead) -> None:
        super().__init__()
        self.words, self.proj_token, self.proj_label = head.words, head.proj_token, head.proj_label
        first: Any = head.out_mlp[0]
        self.last: Any = head.out_mlp[3]
        of_word, of_label, of_both = first.weight.detach().chunk(3, 1)
        self.of_word, self.of_label, self.of_both = (
            _linear(of_word),
            _linear(of_label, first.bias.detach()),
            _linear(of_both),
        )

    def forward(self, states: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores for the encoder's `states`, the attention mask and, of a bi-encoder, the labels."""
        words, count, labels = self.words(states, mask, vectors)
        word, word_factor = self.proj_token(words).chunk(2, -1)
        label, label_factor = self.proj_label(labels).chunk(2, -1)
        both = self.of_both(word_factor[:, :, None] * label_factor[:, None])
        sums = self.of_word(word)[:, :, None] + self.of_label(label)[:, None] + both
        scores: torch.Tensor = self.last(sums.relu()).transpose(2, 3)
        return scores * inside(scores[:, :, :1], count)


def load_span_head(checkpoint: Checkpoint, own: Gliner, width: int) -> Head:
    """Return the head of a GLiNER whose encoder's states have `width`. Raises CheckpointCorrupt."""
    is_deep = own.span_mode == "markerV0"
    with torch.device("meta"):  # no memory is taken before the shapes are compared
        words = Words(width, own.hidden, 0 if own.labels_config else own.layers)
        head = TokenHead(words, own.hidden) if own.by_tokens else SpanHead(words, own.hidden, own.width, is_deep)
    return filled(head, checkpoint, library_name)


def filled(head: Head, checkpoint: Checkpoint, name_of: Callable[[str], str]) -> Head:
    """Return `head`, which is on the device "meta", with the checkpoint's tensors.

    Raises CheckpointCorrupt if one is missing or misshapen, or has values that are not finite.
    """
    tensors = CheckpointTensors(checkpoint)
    stored = {name: tensors.parameter(name_of(name), *value.shape) for name, value in head.named_parameters()}
    tensors.require()
    tensors.require_floats(map(name_of, stored))
    head.load_state_dict({name: torch.from_numpy(each.read().copy()) for name, each in stored.items()}, assign=True)
    check_finite(checkpoint, head)
    return head.eval()


def library_name(name: str) -> str:
    """Return gliner's name of a tensor of the head."""
    if name.startswith("words.lstm."):  # words.lstm.LAYER.weight_ih_l0_reverse
        layer, _, rest = name.removeprefix("words.lstm.").partition(".")
        return "rnn.lstm." + rest.replace("_l0", f"_l{layer}")
    if name.startswith("words.projection."):
        return name.replace("words.", "token_rep_layer.")
    if name.startswith("prompt."):
        return name.replace("prompt.", "prompt_rep_layer.")
    return (
        "scorer." if name.startswith(("proj_token", "proj_label", "out_mlp")) else "span_rep_layer.span_rep_layer."
    ) + name
