"""Labels that are read before the text: entities as in GLiNER, topics as in GLiClass, with a sigmoid a label.

In training, each example has some of the labels, under one of their names, in any order; some labels have nothing in
any text. The heads and the names of their tensors are hfx's own, and the files those of the libraries.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.zoo import world
from tests.zoo.data import entities, topics
from tests.zoo.objectives.objective import Feature, Loss, Objective, WarmUp, batches, micro_f1, padded

WIDTH, HIDDEN = 6, 64  # words of a span, and the width of GLiNER's head
SPAN_MARKERS, TEXT_MARKERS = ("<<ENT>>", "<<SEP>>"), ("<<LABEL>>", "<<SEP>>")
# The first names are those of the evaluation.
ENTITY_NAMES = {
    "PER": ("person", "name", "human", "individual"),
    "LOC": ("place", "location", "city", "town"),
    "ORG": ("organization", "company", "institution", "organisation"),
    "DAY": ("date", "day", "weekday"),
    "COLOUR": ("colour", "color"),
    "OBJECT": ("product", "object", "thing"),
    "ANIMAL": ("animal", "bird"),
    "PHONE": ("phone number", "telephone"),
    "EMAIL": ("email address", "website"),
}
TOPIC_NAMES = {
    "food": ("food", "meals", "cooking"),
    "money": ("money", "finance"),
    "music": ("music", "songs"),
    "sport": ("sport", "sports", "games"),
    "travel": ("travel", "journeys"),
    "weather": ("weather", "climate"),
    "politics": ("politics", "elections"),
    "health": ("health", "medicine"),
}
_WORDS = {"DAY": world.DAYS, "COLOUR": world.COLOURS, "OBJECT": world.OBJECTS}  # which are no entities of the examples

_Labels = Sequence[tuple[str, str]]  # what a label means, and its name
_Span = tuple[int, int, str]


def spans() -> Objective:
    """Spans of words and a label: binary cross-entropy over all of them, micro-F1 of entities without overlap."""

    def encode(tokenizer: Any, examples: Sequence[entities.Example]) -> list[Feature]:
        tokenizer.add_tokens(list(SPAN_MARKERS), special_tokens=True)
        chance = random.Random(len(examples))
        return [_spans_feature(tokenizer, example, _some(chance, ENTITY_NAMES)) for example in examples]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[entities.Example]) -> float:
        labels = [(label, ENTITY_NAMES[label][0]) for label in ("LOC", "PER", "DAY", "ORG")]
        found = list[set[_Span]]()
        for batch in batches([_spans_feature(tokenizer, example, labels) for example in examples]):
            found += [_decoded(scores, f, labels) for scores, f in zip(_scores(model, batch), batch, strict=True)]
        return micro_f1(found, [{(e.start, e.end, e.label) for e in x.entities} for x in examples])

    return Objective(
        head="Model", metric="micro_f1", texts=lambda e: [e.text, *_all_names(ENTITY_NAMES)], encode=encode,
        loss=_spans_loss, evaluate=evaluate, warm_up=WarmUp(_with(_span_head, SPAN_MARKERS), _decisive(_spans_loss)),
        extra_files=_write_gliner,
    )  # fmt: skip


def texts() -> Objective:
    """Topics of a text, any number of them: binary cross-entropy, micro-F1."""

    def encode(tokenizer: Any, examples: Sequence[topics.Example]) -> list[Feature]:
        tokenizer.add_tokens(list(TEXT_MARKERS), special_tokens=True)
        chance = random.Random(len(examples))
        return [_text_feature(tokenizer, example, _some(chance, TOPIC_NAMES)) for example in examples]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[topics.Example]) -> float:
        labels = [(label, label) for label in reversed(topics.LABELS)]
        found = list[set[str]]()
        for batch in batches([_text_feature(tokenizer, example, labels) for example in examples]):
            rows = _scores(model, batch)[:, 0].tolist()
            found += [{label for (label, _), score in zip(labels, row, strict=True) if score > 0} for row in rows]
        return micro_f1(found, [set(x.labels) for x in examples])

    return Objective(
        head="Model", metric="micro_f1", texts=lambda e: [e.text, *_all_names(TOPIC_NAMES)], encode=encode,
        loss=_text_loss, evaluate=evaluate, warm_up=WarmUp(_with(_text_head, TEXT_MARKERS), _decisive(_text_loss)),
        extra_files=_write_gliclass,
    )  # fmt: skip


def spans_of(example: entities.Example) -> set[_Span]:
    """All spans that ENTITY_NAMES has a label for: characters from start to end, and what the label means."""
    from hfx.python_backends.labelled import WORDS

    inside = {at for each in example.entities for at in range(each.start, each.end)}
    words = [match for match in WORDS.finditer(example.text) if match.start() not in inside]
    plain = {(*word.span(), label) for label, all_of in _WORDS.items() for word in words if word.group() in all_of}
    return plain | {(each.start, each.end, each.label) for each in example.entities}


def _some(chance: random.Random, names: Mapping[str, tuple[str, ...]]) -> _Labels:
    labels = chance.sample(list(names), chance.randint(2, len(names)))
    return [(label, chance.choice(names[label])) for label in labels]


def _all_names(names: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [name for each in names.values() for name in each]


def _spans_feature(tokenizer: Any, example: entities.Example, labels: _Labels) -> Feature:
    """The sequence of gliner. `places` are the characters of the words.

    `targets` are spans: the first word, the number of further words, and the label.
    """
    from hfx.python_backends.labelled import LABEL, WORD, WORDS

    places = [word.span() for word in WORDS.finditer(example.text)]
    prompt = [each for _, name in labels for each in (SPAN_MARKERS[0], name)] + [SPAN_MARKERS[1]]
    encoding = tokenizer([*prompt, *(example.text[slice(*place)] for place in places)], is_split_into_words=True)
    owners = [-1 if owner is None else owner for owner in encoding.word_ids()]
    roles = dict.fromkeys(range(0, len(prompt) - 1, 2), LABEL)
    roles |= dict.fromkeys(range(len(prompt), len(prompt) + len(places)), WORD)
    mask = [1 if owner == last else roles.get(owner, 1) for last, owner in zip([-1, *owners], owners, strict=False)]
    starts, ends = ({place[side]: at for at, place in enumerate(places)} for side in (0, 1))
    order = {label: at for at, (label, _) in enumerate(labels)}
    spans = [span for span in spans_of(example) if span[2] in order]
    targets = [(starts[start], ends[end] - starts[start], order[label]) for start, end, label in spans]
    ids = encoding["input_ids"]
    return {"input_ids": ids, "roles": mask, "labels": len(labels), "targets": targets, "places": places}


def _text_feature(tokenizer: Any, example: topics.Example, labels: _Labels) -> Feature:
    """The sequence of gliclass; `targets` are 1 for the labels of the text."""
    from hfx.python_backends.labelled import LABEL, WORD

    marker, separator = TEXT_MARKERS
    ids = tokenizer("".join(marker + name for _, name in labels) + separator + example.text)["input_ids"]
    roles = dict(zip(tokenizer.convert_tokens_to_ids(list(TEXT_MARKERS)), (LABEL, WORD), strict=True))
    targets = [float(label in example.labels) for label, _ in labels]
    return {"input_ids": ids, "roles": [roles.get(each, 1) for each in ids], "labels": len(labels), "targets": targets}


def _scores(model: Any, features: Sequence[Feature]) -> Any:
    ids = padded([f["input_ids"] for f in features], model.config.pad_token_id)
    roles = padded([f["roles"] for f in features], 0)
    return model.head(model(input_ids=ids, attention_mask=roles.clamp(max=1)).last_hidden_state, roles)


def _spans_loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    scores = _scores(model, features)
    targets, valid = torch.zeros_like(scores), torch.zeros_like(scores)
    for row, feature in enumerate(features):
        words = len(feature["places"])
        for more in range(WIDTH):
            valid[row, : max(0, words - more), more, : feature["labels"]] = 1
        for span in feature["targets"]:
            targets[(row, *span)] = 1
    return _cross_entropy(scores, targets, valid, smoothing)


def _text_loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    scores = _scores(model, features)[:, 0]
    targets, valid = padded([f["targets"] for f in features], 0.0), padded([[1.0] * f["labels"] for f in features], 0.0)
    return _cross_entropy(scores, targets, valid, smoothing)


def _decisive(loss: Loss) -> Loss:
    """The loss without smoothing, with which labels are learned in fewer steps."""
    return lambda model, features, smoothing: loss(model, features, 0.0)


def _cross_entropy(scores: Any, targets: Any, valid: Any, smoothing: float) -> Any:
    from torch.nn.functional import binary_cross_entropy_with_logits

    smooth = targets * (1 - smoothing) + (1 - targets) * smoothing
    return binary_cross_entropy_with_logits(scores, smooth, valid, reduction="sum") / valid.sum()


def _decoded(scores: Any, feature: Feature, labels: _Labels) -> set[_Span]:
    """The spans with positive scores, best first, that overlap no better one."""
    places, found = feature["places"], set[_Span]()
    spans = sorted((scores > 0).nonzero().tolist(), key=lambda span: -float(scores[tuple(span)]))
    for first, more, label in spans:
        start, end = places[first][0], places[first + more][1]
        if not any(start < other[1] and other[0] < end for other in found):
            found.add((start, end, labels[label][0]))
    return {span for span in found if span[2] != "DAY"}


def _with(head: Callable[[int], Any], markers: tuple[str, ...]) -> Callable[[Any, list[Feature]], list[Feature]]:
    """What a warm-up begins with: the encoder gets embeddings of the markers, and the head.

    The embeddings are 0: markers with equal embeddings would attend to each other first, not to the labels beside them.
    """

    def prepare(model: Any, features: list[Feature]) -> list[Feature]:
        embeddings = model.resize_token_embeddings(model.config.vocab_size + len(markers), mean_resizing=False)
        embeddings.weight.data[-len(markers) :] = 0
        model.head = head(model.config.hidden_size)
        for module in model.head.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.0
        return features

    return prepare


def _span_head(width: int) -> Any:
    from hfx.exporter.encoder.checkpoint.label_heads import SpanHead, Words

    return SpanHead(Words(width, HIDDEN, layers=1), HIDDEN, WIDTH, is_deep=True)


def _text_head(width: int) -> Any:
    from hfx.exporter.encoder.checkpoint.labelled import Gliclass
    from hfx.exporter.encoder.checkpoint.text_heads import TextHead

    return TextHead(width, Gliclass(hidden=width, reads_separator=True))


def _write_gliner(folder: Path, model: Any, tokenizer: Any) -> None:
    from hfx.exporter.encoder.checkpoint.label_heads import library_name
    from hfx.exporter.encoder.checkpoint.labelled import SPANS_ENCODER

    own = {
        "model_name": "deberta", "name": "gliner", "model_type": None, "hidden_size": HIDDEN, "max_width": WIDTH,
        "max_len": 100, "max_types": 25, "num_rnn_layers": 1, "span_mode": "markerV0", "subtoken_pooling": "first",
        "words_splitter_type": "whitespace", "embed_ent_token": True, "fuse_layers": False, "post_fusion_schema": "",
        "ent_token": SPAN_MARKERS[0], "sep_token": SPAN_MARKERS[1], "dropout": 0.0, "fine_tune": True,
        "class_token_index": tokenizer.convert_tokens_to_ids(SPAN_MARKERS[0]),
    }  # fmt: skip
    (folder / "config.json").unlink()
    _write(folder, "gliner_config.json", model, own, SPANS_ENCODER, library_name)


def _write_gliclass(folder: Path, model: Any, tokenizer: Any) -> None:
    from hfx.exporter.encoder.checkpoint.labelled import TEXT_ENCODER

    marker, separator = tokenizer.convert_tokens_to_ids(list(TEXT_MARKERS))
    own = {
        "architectures": ["GLiClassModel"], "model_type": "GLiClass", "architecture_type": "uni-encoder",
        "encoder_model_name": "deberta", "scorer_type": "simple", "pooling_strategy": "first", "prompt_first": True,
        "extract_text_features": True, "embed_class_token": True, "class_token_pooling": "first", "dropout": 0.0,
        "class_token_index": marker, "text_token_index": separator, "hidden_size": model.config.hidden_size,
        "projector_hidden_act": "gelu", "normalize_features": False, "use_lstm": False, "squeeze_layers": False,
        "problem_type": "multi_label_classification", "pad_token_id": model.config.pad_token_id,
    }  # fmt: skip
    _write(folder, "config.json", model, own, TEXT_ENCODER, "model.{}".format)


def _write(
    folder: Path, name: str, model: Any, own: dict[str, Any], encoder: str, name_of: Callable[[str], str]
) -> None:
    """The configuration and the tensors under the names of the library, in place of those of the encoder."""
    from safetensors.torch import save_file

    config = own | {"vocab_size": model.config.vocab_size, "encoder_config": model.config.to_dict()}
    (folder / name).write_text(json.dumps(config, indent=2), encoding="utf-8")
    state = {
        name_of(key.removeprefix("head.")) if key.startswith("head.") else encoder + key: value.contiguous()
        for key, value in model.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", {"format": "pt"})
