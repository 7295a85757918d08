"""Read sentence-transformers' files on how token embeddings become a vector, and how logits become a score.

Without these files, token embeddings are pooled by the mean, without normalization, and a score is the sigmoid of its
logit. A module that hfx doesn't know is refused: without it, answers would differ from the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json, read_optional_json, whole_number
from hfx.exporter.encoder.checkpoint.module_list import (
    LOGIT_SCORE,
    MODULES,
    SPLADE,
    STATIC,
    home,
    is_static,
    module_kinds,
    not_exported,
    query_table,
    read_modules,
    unsupported_modules,
)
from hfx.exporter.encoder.checkpoint.pooling import (
    AnswerLogits,
    Layer,
    Mode,
    Pooling,
    SpladeMode,
    SpladePooling,
    TokenLayers,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer_checks import try_built
from hfx.python_backends.settings import DOCUMENT, QUERY

LIBRARY_CONFIG = "config_sentence_transformers.json"
# The names under which the library looks for the transformer module's config, in its order.
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Fields of versions before 6, in the order in which their results are joined -> the values of `pooling_mode`.
POOLING_FIELDS: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
EMBEDDERS_PROMPTS = (QUERY, DOCUMENT)  # the library has these prompts, empty, if a checkpoint has none
LAYERS = ("Dense", "LayerNorm", "Normalize")
ANSWERS = ("yes", "no")  # their logits make the score if the files name no other tokens
SPLADE_LOGS = {"relu": 1, "log1p_relu": 2}
# Classes of torch.nn that take no arguments and keep a vector's length.
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid",
    "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin",
    "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
)  # fmt: skip
# Settings of the transformer module that change how a text is prepared or read.
OTHER_TEXTS = ("processing_kwargs", "query_length", "document_length", "query_expansion")
EMBEDDING, SCORES, TOKEN_EMBEDDINGS = "sentence_embedding", "scores", "token_embeddings"
MOST_VALUES = 1_000_000  # the longest vector
TEXT_METHOD, TEXT_TASK = ("forward", "last_hidden_state"), "feature-extraction"
SCORE_METHOD = ("forward", "logits")
LOGITS_NAME = "causal_logits"  # the library's name for the logits of a language model
TEMPLATE_VARIABLES = {"add_generation_prompt", "enable_thinking"}  # processing_kwargs may set these
CROSS_ENCODER, TORCH = "CrossEncoder", "torch.nn."
CROSS_ENCODER_FIELD = "sbert_ce_default_activation_function"  # of config.json, before version 4
# The last part of an activation's path -> its name in settings.json.
KNOWN_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none"}
OF_SEVERAL = {"Softmax": "softmax"}  # for several scores; the softmax of one score would be 1


def read_pooling(folder: Path, tokens: bool = False) -> Pooling:
    """Return how the token embeddings of the checkpoint in `folder` are pooled.

    With `tokens`, nothing is pooled, unless the checkpoint is a sparse encoder.
    Raises CheckpointUnsupported for modules, poolings and preparations of texts that hfx doesn't have.
    """
    refuse_messages(folder)
    if is_sparse_encoder(folder):
        return _splade(folder)
    if tokens:
        refuse_prepared_texts(folder, TEXT_METHOD)
        return TokenLayers()
    if (folder / MODULES).is_file():
        return _pipeline(folder, EMBEDDING)
    config = read_optional_json(folder / "config.json")
    is_causal = [*(config.get("architectures") or ()), ""][0].endswith("ForCausalLM") and config.get("is_causal", True)
    return Pooling(("lasttoken",) if is_causal else ("mean",))


def is_sparse_encoder(folder: Path) -> bool:
    """Return whether the checkpoint in `folder` makes vectors of a masked language model's logits (SPLADE)."""
    return SPLADE in module_kinds(folder)


def is_embedder(folder: Path) -> bool:
    """Return whether the checkpoint in `folder` pools its token embeddings to a vector, and gives no scores."""
    is_ranker = read_optional_json(folder / LIBRARY_CONFIG).get("model_type") == CROSS_ENCODER
    kinds = module_kinds(folder)
    return (kinds[:1] == [STATIC] or kinds[:2] == ["Transformer", "Pooling"]) and not is_ranker


def _splade(folder: Path) -> Pooling:
    modules, table = read_modules(folder), query_table(folder)
    if [kind for kind, _ in modules] not in (["Transformer", SPLADE], ["MLMTransformer", SPLADE]):
        raise unsupported_modules(folder, f"Transformer, {SPLADE}")
    active = _cut(folder, "Active", "max_active_dims")
    if table and active:
        raise CheckpointUnsupported(
            f"max_active_dims in {folder / LIBRARY_CONFIG} is for two routes.", "Remove it, and cut vectors when read."
        )
    refuse_prepared_texts(folder, SCORE_METHOD)
    file = folder / modules[1][1] / "config.json"
    config = read_json(file)
    mode, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if mode not in get_args(SpladeMode) or activation not in SPLADE_LOGS:
        supported = f"{' or '.join(get_args(SpladeMode))} of {' or '.join(SPLADE_LOGS)}"
        raise not_exported(f"{file} asks for {str(mode)[:50]!r} of {str(activation)[:50]!r}", supported)
    return SpladePooling(layers=active, mode=mode, logs=SPLADE_LOGS[activation], table=table)


def _cut(folder: Path, kind: Literal["Active", "Truncate"], field: str) -> tuple[Layer, ...]:
    """Return the layer that keeps as many numbers as a `field` of the library's config says; none without the field."""
    file = folder / LIBRARY_CONFIG
    config = read_optional_json(file)
    return () if config.get(field) is None else (Layer(kind, outputs=whole_number(file, config, field, MOST_VALUES)),)


def read_scoring(folder: Path, is_language_model: bool = False) -> Pooling | None:
    """Return the pooling of a cross-encoder, whose last layer gives scores; None if its transformer gives the scores.

    Without modules.json, the score of a language model is made of the logits of ANSWERS.
    Raises CheckpointUnsupported and CheckpointCorrupt.
    """
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if is_language_model and kinds == ["Transformer", LOGIT_SCORE]:
        refuse_prepared_texts(folder, SCORE_METHOD)
        return AnswerLogits(answers=_answers(folder / modules[1][1] / "config.json"))
    if is_language_model and not modules:
        return AnswerLogits(answers=ANSWERS)
    if kinds in ([], ["Transformer"]):
        refuse_prepared_texts(folder, SCORE_METHOD)
        return None
    pooling = _pipeline(folder, SCORES)
    if not pooling.pools_prompt:
        raise CheckpointUnsupported(
            f"The pooling of {folder} leaves prompts out (include_prompt), which hfx can't export of a cross-encoder.",
            "Of embedders, hfx exports it.",
        )
    return pooling


def _answers(file: Path) -> tuple[int, ...]:
    config = read_json(file)
    if (name := config.get("module_input_name", LOGITS_NAME)) != LOGITS_NAME:
        raise not_exported(f"module_input_name in {file} is {str(name)[:80]!r}", LOGITS_NAME)
    chosen, other = config.get("true_token_id"), config.get("false_token_id")
    ids = [each for each in (chosen, other) if type(each) is int and each >= 0]
    if len(ids) != (1 if other is None else 2):
        raise CheckpointCorrupt(f"true_token_id or false_token_id in {file} is not a token id.", AGAIN)
    return tuple(ids)


def _pipeline(folder: Path, output: str) -> Pooling:
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    first = [STATIC] if kinds[:1] == [STATIC] else ["Transformer", "Pooling"]
    behind = [(kind, path) for kind, path in modules[len(first) :] if kind != "Dropout"]  # it does nothing here
    if kinds[: len(first)] != first or not {kind for kind, _ in behind} <= set(LAYERS):
        raise unsupported_modules(folder, f"{', '.join(first)}, and then any of {', '.join(LAYERS)}")
    refuse_prepared_texts(folder, TEXT_METHOD)
    outputs = [EMBEDDING] * (len(behind) - 1) + [output]
    layers = [read_layer(folder, *module, out) for module, out in zip(behind, outputs, strict=bool(behind))]
    if output == SCORES and not behind:
        raise CheckpointUnsupported(f"{folder / MODULES} lists no module that gives scores.", "Its last one must.")
    layers += _cut(folder, "Truncate", "truncate_dim")
    if first == [STATIC]:
        return Pooling(("mean",), tuple(layers))
    file = folder / modules[1][1] / "config.json"
    return Pooling(_modes(file), tuple(layers), bool(read_json(file).get("include_prompt", True)))


@dataclass(frozen=True)
class Prompts:
    """Prompts by name. A prompt is put before a text, or the query of a pair.

    `default` is the prompt of requests that name none.
    """

    texts: Mapping[str, str]
    default: str


def read_prompts(folder: Path, names: Iterable[str], may_be_empty: bool = False) -> Prompts | None:
    """Return the prompts of a checkpoint, with empty prompts for those of `names` that it lacks.

    The result is None if all prompts are empty, unless they `may_be_empty`. Raises CheckpointCorrupt.
    """
    file = folder / LIBRARY_CONFIG
    config = _of_library(file)
    stated, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(stated, dict) or not all(isinstance(text, str | None) for text in stated.values()):
        raise CheckpointCorrupt(f"prompts in {file} are no texts by name.", AGAIN)
    texts = dict.fromkeys(names, "")
    texts |= {name: text or "" for name, text in stated.items()}
    if default is not None and str(default) not in texts:
        raise CheckpointCorrupt(
            f"default_prompt_name in {file} is {str(default)[:50]!r}, and prompts has none of this name.", AGAIN
        )
    if not any(texts.values()) and not may_be_empty:
        return None
    return Prompts(texts, texts[str(default)] if default is not None else "")


def put_into_lower_case(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Make `tokenizer` lower-case texts, if the `checkpoint` says so and it does not do so already.

    Raises CheckpointUnsafe and CheckpointCorrupt, because its added tokens may then match other texts, or none.
    """
    from tokenizers import normalizers

    if transformer_config(checkpoint.folder)[1].get("do_lower_case") is not True:
        return
    backend = tokenizer.backend_tokenizer
    own = backend.normalizer
    state = b"" if own is None else own.__getstate__()
    if b'"Lowercase"' not in state and b'"lowercase":true' not in state:
        before = [normalizers.Lowercase()]
        backend.normalizer = normalizers.Sequence(before if own is None else [*before, own])
        try_built(checkpoint, tokenizer)


def read_max_length(folder: Path) -> int | None:
    """Return `max_seq_length` of the transformer module's config, the most tokens that the model learned to read."""
    length = transformer_config(folder)[1].get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def is_cross_encoder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether sentence-transformers' CrossEncoder saved the checkpoint in `folder`, with this config.json."""
    library = read_optional_json(folder / LIBRARY_CONFIG)
    return library.get("model_type") == CROSS_ENCODER or _activation_path(folder, config) is not None


def read_activation(folder: Path, config: Mapping[str, Any], labels: int = 1) -> str:
    """Return the activation (sigmoid, softmax, none) that CrossEncoder.predict (6.2) applies to the logits of a pair.

    Raises CheckpointUnsupported for any other activation.
    """
    path = _activation_path(folder, config) or f"{TORCH}{'Sigmoid' if labels == 1 else 'Identity'}"
    known = KNOWN_ACTIVATIONS if labels == 1 else KNOWN_ACTIVATIONS | OF_SEVERAL
    if not path.startswith(TORCH) or path.rsplit(".", 1)[-1] not in known:
        raise not_exported(f"The scores of {folder} go through {path!r}", f"{', '.join(known)} of torch.nn")
    return known[path.rsplit(".", 1)[-1]]


def _activation_path(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the dotted path of the activation, from the places where CrossEncoder looks for it, in its order."""
    own, field = config.get("sentence_transformers"), "activation_fn"
    path = own[field] if isinstance(own, dict) and field in own else config.get(CROSS_ENCODER_FIELD)
    return _of_library(folder / LIBRARY_CONFIG).get(field) or path


def _of_library(file: Path) -> dict[str, Any]:
    """Return the object in a file of the library; empty without modules.json, as the library then ignores the file."""
    return read_optional_json(file) if (file.parent / MODULES).is_file() else {}


def transformer_config(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that has, or would have, the transformer module's settings, and the settings.

    The settings are empty without a transformer module.
    """
    files = [home(folder) / name for name in TRANSFORMER_CONFIGS]
    file = next(filter(Path.is_file, files), files[0])
    is_read = (folder / MODULES).is_file() and not is_static(folder)
    return file, read_optional_json(file) if is_read else {}


def refuse_prepared_texts(folder: Path, method: tuple[str, str], but: Collection[str] = ()) -> None:
    """Refuse a checkpoint if sentence-transformers prepares its texts before the tokenizer, or calls another `method`.

    Raises CheckpointUnsupported. The settings of OTHER_TEXTS that are in `but` are accepted.
    """
    config = transformer_config(folder)[1]
    modalities = config.get("modality_config")
    text = modalities.get("text") if isinstance(modalities, dict) else None
    if isinstance(text, dict) and (text.get("method"), text.get("method_output_name")) != method:
        raise CheckpointUnsupported(
            f"The texts for {folder} go through {text.get('method')!r} of the model to "
            f"{text.get('method_output_name')!r} (modality_config).",
            f"hfx exports models of which {method[0]!r} gives {method[1]!r}.",
        )
    if text is None and (task := config.get("transformer_task")) and (task == TEXT_TASK) != (method == TEXT_METHOD):
        raise CheckpointUnsupported(
            f"transformer_task for {folder} is {str(task)[:50]!r}, whose results these modules are not made for.",
            f"hfx exports models of which {method[0]!r} gives {method[1]!r}.",
        )
    for field in (each for each in OTHER_TEXTS if each not in but):
        if config.get(field) and not (field == OTHER_TEXTS[0] and _sets_template(config[field])):
            fix = f"Set them in tokenizer_config.json, remove {field} from its sentence_*_config.json, and export."
            raise CheckpointUnsupported(
                f"The texts for {folder} have settings of their own ({field}): {str(config[field])[:80]}.",
                fix if field == OTHER_TEXTS[0] else f"hfx reads {field} of a ColBERT (MultiVectorMask) only.",
            )


def refuse_messages(folder: Path) -> None:
    """Raise CheckpointUnsupported if sentence-transformers turns single texts into chat messages."""
    file, config = transformer_config(folder)
    modalities = config.get("modality_config")
    if isinstance(modalities, dict) and "message" in modalities:
        raise CheckpointUnsupported(
            f"The texts for {folder} become messages of a chat template (modality_config in {file.name}).",
            "hfx puts pairs of a re-ranker into a template, not single texts.",
        )


def _sets_template(settings: Any) -> bool:
    """Return whether `processing_kwargs` set nothing but known variables of a chat template."""
    if not isinstance(settings, dict) or not all(isinstance(each, dict) for each in settings.values()):
        return False
    template = settings.get("chat_template", {})
    return {name for name, each in settings.items() if each} <= {"chat_template"} and {*template} <= TEMPLATE_VARIABLES


def _modes(file: Path) -> tuple[Mode, ...]:
    """Return the pooling modes: in version 6 the name or names in `pooling_mode`, before it the fields that are true.

    The mode is the mean if there are none. Raises CheckpointUnsupported for unknown modes.
    """
    config = read_json(file)
    stated = config.get("pooling_mode")
    if stated is None:
        fields = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        fields.sort(key=[*POOLING_FIELDS, *fields].index)
        stated = [POOLING_FIELDS.get(key, key) for key in fields] or ["mean"]
    modes = stated if isinstance(stated, list) else [stated]
    if not modes or not all(isinstance(mode, str) and mode in POOLING_FIELDS.values() for mode in modes):
        pooling = ", ".join(map(str, modes)) or "(none)"
        raise not_exported(f"{file} asks for the pooling {pooling}", ", ".join(POOLING_FIELDS.values()))
    return tuple(modes)


def read_layer(folder: Path, kind: str, path: str, output: str, source: str = EMBEDDING) -> Layer:
    """Return the module at `path`, which makes `output` from `source`.

    Raises CheckpointCorrupt and CheckpointUnsupported.
    """
    file = folder / path / "config.json"
    config = read_json(file) if kind != "Normalize" else read_optional_json(file)
    read = config.get("module_input_name") or source
    names = {
        "module_input_name": (read, source),
        "module_output_name": (config.get("module_output_name") or read, output),
    }
    if kind == "LayerNorm":
        names["module_output_name"] = (source, output)
    for field, (stated, expected) in names.items():
        if stated != expected:
            raise not_exported(f"{field} in {file} is {str(stated)[:80]!r}", expected)
    if kind == "Normalize":
        return Layer("Normalize")
    if kind == "LayerNorm":
        width = whole_number(file, config, "dimension", MOST_VALUES)
        return Layer("LayerNorm", path, width, width)
    return Layer(
        "Dense",
        path,
        whole_number(file, config, "in_features", MOST_VALUES),
        whole_number(file, config, "out_features", MOST_VALUES),
        bool(config.get("bias", True)),
        _activation(file, str(config.get("activation_function", "torch.nn.Tanh"))),
        bool(config.get("use_residual")),
    )


def _activation(file: Path, path: str) -> str:
    """Return the class of torch.nn at a dotted `path`. Raises CheckpointUnsupported for a class not in ACTIVATIONS."""
    name = path.rsplit(".", 1)[-1]
    if not path.startswith(TORCH) or name not in ACTIVATIONS:
        raise not_exported(f"{file} names the activation {path[:80]!r}", f"{', '.join(ACTIVATIONS)} of torch.nn")
    return name
