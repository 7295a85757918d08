"""The files by which sentence-transformers say how token embeddings become a sentence's, and logits a pair's score.

Without them a checkpoint is pooled by the mean, unnormalized, and a score is the sigmoid of its logit. A module that
hfx doesn't know is refused: leaving it out would give other answers than the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json, read_json_value, read_optional_json
from hfx.exporter.encoder.pooling import Layer, Mode, Pooling, Splade
from hfx.python_backends.settings import DOCUMENT, QUERY

MODULES = "modules.json"
LIBRARY_CONFIG = "config_sentence_transformers.json"
# Where the library looks for the transformer module's config, in its order.
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
LIBRARY = "sentence_transformers."  # what the types of its modules begin with
# The fields of versions before 6, in the order in which results are joined, and the values of `pooling_mode`.
POOLING_FIELDS: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
EMBEDDERS_PROMPTS = (QUERY, DOCUMENT)  # which the library has, empty, where a checkpoint has not
LAYERS = ("Dense", "LayerNorm", "Normalize")
SPLADE, TOKEN_MASK, LOGIT_SCORE = "SpladePooling", "MultiVectorMask", "LogitScore"
ANSWERS = ("yes", "no")  # whose logits are a score, where the files name no other tokens
SPLADE_LOGS = {"relu": 1, "log1p_relu": 2}
# Classes of torch.nn without arguments, that keep a vector's length.
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid",
    "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin",
    "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
)  # fmt: skip
# Settings of the transformer module by which a text is prepared or read in another way.
OTHER_TEXTS = ("processing_kwargs", "query_length", "document_length", "query_expansion")
EMBEDDING, SCORES, TOKEN_EMBEDDINGS = "sentence_embedding", "scores", "token_embeddings"
MOST_VALUES = 1_000_000  # of a vector
TEXT_METHOD = ("forward", "last_hidden_state")
SCORE_METHOD = ("forward", "logits")
LOGITS_NAME = "causal_logits"  # what the library calls those of a language model
TEMPLATE_VARIABLES = {"add_generation_prompt", "enable_thinking"}  # which processing_kwargs may set
CROSS_ENCODER = "CrossEncoder"
CROSS_ENCODER_FIELD = "sbert_ce_default_activation_function"  # of config.json, before version 4
# The last part of an activation's path -> its name in settings.json.
KNOWN_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none"}
OF_SEVERAL = {"Softmax": "softmax"}  # of one score it would be 1


def read_pooling(folder: Path, tokens: bool = False) -> Pooling:
    """What is done with the token embeddings of the checkpoint in `folder`; with `tokens`, of any that is not sparse.

    Raises CheckpointUnsupported for modules, poolings and texts prepared as hfx doesn't.
    """
    if is_multi_vector_encoder(folder):
        return _of_tokens(folder)
    if is_sparse_encoder(folder):
        return _splade(folder)
    if tokens:
        _refuse_prepared_texts(folder, TEXT_METHOD)
        return Pooling((), tokens=True)
    return _pipeline(folder, EMBEDDING) if (folder / MODULES).is_file() else Pooling()


def is_sparse_encoder(folder: Path) -> bool:
    """Whether the vectors of the checkpoint in `folder` are made of a masked language model's logits (SPLADE)."""
    return (folder / MODULES).is_file() and SPLADE in [kind for kind, _ in read_modules(folder)]


def is_embedder(folder: Path) -> bool:
    """Whether a vector is pooled from the token embeddings of the checkpoint in `folder`, and it gives no scores."""
    kinds = [kind for kind, _ in read_modules(folder)] if (folder / MODULES).is_file() else []
    is_ranker = read_optional_json(folder / LIBRARY_CONFIG).get("model_type") == CROSS_ENCODER
    return kinds[:2] == ["Transformer", "Pooling"] and not is_ranker


def scores_answers(folder: Path) -> bool:
    """Whether a score is made of the next token's logits of the language model in `folder`."""
    return (folder / MODULES).is_file() and LOGIT_SCORE in [kind for kind, _ in read_modules(folder)]


def is_multi_vector_encoder(folder: Path) -> bool:
    """Whether the checkpoint in `folder` has a vector for each token (late interaction, ColBERT)."""
    return (folder / MODULES).is_file() and TOKEN_MASK in [kind for kind, _ in read_modules(folder)]


def _of_tokens(folder: Path) -> Pooling:
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if (kinds[:1], kinds[-1:]) != (["Transformer"], [TOKEN_MASK]) or not {*kinds[1:-1]} <= set(LAYERS):
        raise CheckpointUnsupported(
            f"{folder / MODULES} lists the modules {', '.join(kinds)}, which hfx can't export.",
            f"Supported, of vectors of tokens: Transformer, any of {', '.join(LAYERS)}, and {TOKEN_MASK}.",
        )
    _refuse_prepared_texts(folder, TEXT_METHOD)
    file = folder / modules[-1][1] / "config.json"
    config = read_json(file)
    for field in ("skiplist_words", "keep_only_token_ids"):
        if config.get(field):
            raise CheckpointUnsupported(
                f"{field} in {file} leaves tokens out: {str(config[field])[:80]}. hfx gives the vectors of all.",
                "Leave the field empty, export, and leave these tokens out yourself.",
            )
    layers = [read_layer(folder, *module, TOKEN_EMBEDDINGS, TOKEN_EMBEDDINGS) for module in modules[1:-1]]
    return Pooling((), tuple(layers), tokens=True)


def _splade(folder: Path) -> Pooling:
    modules = read_modules(folder)
    if [kind for kind, _ in modules] not in (["Transformer", SPLADE], ["MLMTransformer", SPLADE]):
        raise CheckpointUnsupported(
            f"{folder / MODULES} lists the modules {', '.join(kind for kind, _ in modules)}, which hfx can't export.",
            f"Supported, of sparse vectors: Transformer, {SPLADE}.",
        )
    _refuse_prepared_texts(folder, SCORE_METHOD)
    file = folder / modules[1][1] / "config.json"
    config = read_json(file)
    mode, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if mode not in get_args(Splade) or activation not in SPLADE_LOGS:
        raise CheckpointUnsupported(
            f"{file} asks for {str(mode)[:50]!r} of {str(activation)[:50]!r}, which hfx can't export.",
            f"Supported: {' or '.join(get_args(Splade))} of {' or '.join(SPLADE_LOGS)}.",
        )
    most = read_optional_json(folder / LIBRARY_CONFIG).get("max_active_dims")
    layers = [] if most is None else [_active(folder / LIBRARY_CONFIG, most)]
    return Pooling((), tuple(layers), splade=mode, logs=SPLADE_LOGS[activation])


def _active(file: Path, most: Any) -> Layer:
    return Layer("Active", outputs=_size(file, {"max_active_dims": most}, "max_active_dims"))


def read_scoring(folder: Path, is_language_model: bool = False) -> Pooling | None:
    """`read_pooling` of a cross-encoder, whose last layer gives scores; None where its transformer does so.

    Without modules.json, scores of a language model are those of ANSWERS.
    """
    modules = read_modules(folder) if (folder / MODULES).is_file() else [("Transformer", "")]
    kinds = [kind for kind, _ in modules]
    if is_language_model and kinds == ["Transformer", LOGIT_SCORE]:
        _refuse_prepared_texts(folder, SCORE_METHOD)
        return Pooling(("lasttoken",), answers=_answers(folder / modules[1][1] / "config.json"))
    if is_language_model and not (folder / MODULES).is_file():
        return Pooling(("lasttoken",), answers=ANSWERS)
    if kinds == ["Transformer"]:
        _refuse_prepared_texts(folder, SCORE_METHOD)
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
        raise CheckpointUnsupported(
            f"module_input_name in {file} is {str(name)[:80]!r}, which hfx can't export.", f"Supported: {LOGITS_NAME}."
        )
    chosen, other = config.get("true_token_id"), config.get("false_token_id")
    ids = [each for each in (chosen, other) if type(each) is int and each >= 0]
    if len(ids) != (1 if other is None else 2):
        raise CheckpointCorrupt(f"true_token_id or false_token_id in {file} is not a token id.", AGAIN)
    return tuple(ids)


def _pipeline(folder: Path, output: str) -> Pooling:
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    behind = [(kind, path) for kind, path in modules[2:] if kind != "Dropout"]  # it does nothing here
    if kinds[:2] != ["Transformer", "Pooling"] or not {kind for kind, _ in behind} <= set(LAYERS):
        raise CheckpointUnsupported(
            f"{folder / MODULES} lists the modules {', '.join(kinds) or '(none)'}, which hfx can't export.",
            f"Supported: Transformer, Pooling, and then any of {', '.join(LAYERS)}.",
        )
    _refuse_prepared_texts(folder, TEXT_METHOD)
    outputs = [EMBEDDING] * (len(behind) - 1) + [output]
    layers = [read_layer(folder, *module, out) for module, out in zip(behind, outputs, strict=bool(behind))]
    if output == SCORES and not behind:
        raise CheckpointUnsupported(f"{folder / MODULES} lists no module that gives scores.", "Its last one must.")
    cut = read_optional_json(folder / LIBRARY_CONFIG).get("truncate_dim")
    if cut is not None:
        layers.append(Layer("Truncate", outputs=_size(folder / LIBRARY_CONFIG, {"truncate_dim": cut}, "truncate_dim")))
    file = folder / modules[1][1] / "config.json"
    return Pooling(_modes(file), tuple(layers), read_json(file).get("include_prompt") is not False)


@dataclass(frozen=True)
class Prompts:
    """Texts by name that are put before a text, or a pair's query; `default` is put there unless a request has one."""

    texts: Mapping[str, str]
    default: str


def read_prompts(folder: Path, names: Iterable[str], may_be_empty: bool = False) -> Prompts | None:
    """The prompts of a checkpoint, and empty ones of other `names`; None where all are, unless they `may_be_empty`.

    Raises CheckpointCorrupt.
    """
    file = folder / LIBRARY_CONFIG
    config = read_optional_json(file) if (folder / MODULES).is_file() else {}
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


@dataclass(frozen=True)
class Message:
    """How the library makes messages of texts, for a chat template.

    `is_stated` where the files say that it does so, not only that it would with a template; `has_parts` where the
    content of a message is a list (None: the template tells). `variables` are the template's.
    """

    is_stated: bool
    has_parts: bool | None
    variables: Mapping[str, Any]


def read_message(folder: Path) -> Message | None:
    """How texts for the checkpoint in `folder` become messages; None where the files say that they do not."""
    config = _transformer_config(folder)
    modalities, settings = config.get("modality_config"), config.get("processing_kwargs") or {}
    stated = modalities.get("message") if isinstance(modalities, dict) else {}
    if stated is None:
        return None
    form = stated.get("format", "auto") if isinstance(stated, dict) else "auto"
    variables = settings.get("chat_template") if isinstance(settings, dict) else {}
    has_parts = None if form == "auto" else form == "structured"
    return Message(modalities is not None, has_parts, variables if isinstance(variables, dict) else {})


def put_into_lower_case(tokenizer: Any, folder: Path) -> None:
    """Have texts put into lower case where the checkpoint in `folder` says so and its tokenizer does not do it."""
    from tokenizers import normalizers

    if _transformer_config(folder).get("do_lower_case") is not True:
        return
    backend = tokenizer.backend_tokenizer
    own = backend.normalizer
    state = b"" if own is None else own.__getstate__()
    if b'"Lowercase"' not in state and b'"lowercase":true' not in state:
        before = [normalizers.Lowercase()]
        backend.normalizer = normalizers.Sequence(before if own is None else [*before, own])


def read_max_length(folder: Path) -> int | None:
    """`max_seq_length` of the transformer module's config, which bounds what the model was trained to read."""
    length = _transformer_config(folder).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def is_cross_encoder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint in `folder`, with this config.json, was saved by sentence-transformers' CrossEncoder."""
    library = read_optional_json(folder / LIBRARY_CONFIG)
    return library.get("model_type") == CROSS_ENCODER or _activation_path(folder, config) is not None


def read_activation(folder: Path, config: Mapping[str, Any], labels: int = 1) -> str:
    """The activation (sigmoid, softmax, none) that CrossEncoder.predict (6.2) applies to the logits of a pair.

    Raises CheckpointUnsupported for another one.
    """
    path = _activation_path(folder, config) or ("Sigmoid" if labels == 1 else "Identity")
    known = KNOWN_ACTIVATIONS if labels == 1 else KNOWN_ACTIVATIONS | OF_SEVERAL
    if path.rsplit(".", 1)[-1] not in known:
        raise CheckpointUnsupported(
            f"The scores of {folder} go through {path!r}, which hfx can't export.",
            f"Supported activations: {', '.join(known)} of torch.nn.",
        )
    return known[path.rsplit(".", 1)[-1]]


def _activation_path(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The dotted path of an activation, from the places where CrossEncoder looks for it, in its order."""
    own = config.get("sentence_transformers")
    places = (
        read_optional_json(folder / LIBRARY_CONFIG).get("activation_fn"),
        own.get("activation_fn") if isinstance(own, dict) else None,
        config.get(CROSS_ENCODER_FIELD),
    )
    return next((str(path) for path in places if path is not None), None)


def _transformer_config(folder: Path) -> dict[str, Any]:
    return next((read_json(folder / name) for name in TRANSFORMER_CONFIGS if (folder / name).is_file()), {})


def _refuse_prepared_texts(folder: Path, method: tuple[str, str]) -> None:
    """What sentence-transformers do to a text before its tokenizer sees it, and another way through the model."""
    config = _transformer_config(folder)
    modalities = config.get("modality_config")
    text = modalities.get("text") if isinstance(modalities, dict) else None
    if isinstance(text, dict) and (text.get("method"), text.get("method_output_name")) != method:
        raise CheckpointUnsupported(
            f"The texts for {folder} go through {text.get('method')!r} of the model to "
            f"{text.get('method_output_name')!r} (modality_config).",
            f"hfx exports models of which {method[0]!r} gives {method[1]!r}.",
        )
    for field in OTHER_TEXTS:
        if config.get(field) and not (field == "processing_kwargs" and _sets_template(config[field])):
            raise CheckpointUnsupported(
                f"The texts for {folder} have tokenizer settings of their own ({field}): {str(config[field])[:80]}.",
                f"Set them in tokenizer_config.json, remove {field} from its sentence_*_config.json, and export.",
            )


def _sets_template(settings: Any) -> bool:
    """Whether `processing_kwargs` have nothing but variables of a chat template."""
    if not isinstance(settings, dict) or not all(isinstance(each, dict) for each in settings.values()):
        return False
    template = settings.get("chat_template", {})
    return {name for name, each in settings.items() if each} <= {"chat_template"} and {*template} <= TEMPLATE_VARIABLES


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """The kinds and paths of the modules in modules.json. Raises CheckpointCorrupt, CheckpointUnsafe."""
    file = folder / MODULES
    try:
        entries = read_json_value(file)
        modules = [(_kind(str(entry["type"])), str(entry["path"])) for entry in entries]
        outside = [path for _, path in modules if not (folder / path).resolve().is_relative_to(folder.resolve())]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{file} is not a list of modules: {error!r}.", AGAIN) from error
    if outside:
        raise CheckpointUnsafe(f"{file} names {outside[0]!r}, outside the checkpoint.", "Use a checkpoint you trust.")
    return modules


def _kind(path: str) -> str:
    """The class of one of the library's modules, wherever it stood in versions 2 to 6; any other path as it is."""
    return path.rsplit(".", 1)[-1] if path.startswith(LIBRARY) else path


def _modes(file: Path) -> tuple[Mode, ...]:
    """Of version 6 `pooling_mode`, a name or several; before, fields that are true, the mean where none is."""
    config = read_json(file)
    stated = config.get("pooling_mode")
    if stated is None:
        fields = {key: value for key, value in config.items() if key.startswith("pooling_mode_") and value is not False}
        stated = [POOLING_FIELDS.get(key, key) if fields[key] is True else key for key in _in_order(fields)] or ["mean"]
    modes = stated if isinstance(stated, list) else [stated]
    if not modes or not all(isinstance(mode, str) and mode in POOLING_FIELDS.values() for mode in modes):
        raise CheckpointUnsupported(
            f"{file} asks for the pooling {', '.join(map(str, modes)) or '(none)'}, which hfx can't export.",
            f"Supported: {', '.join(POOLING_FIELDS.values())}.",
        )
    return tuple(modes)


def _in_order(fields: Iterable[str]) -> list[str]:
    known = list(POOLING_FIELDS)
    return sorted(fields, key=lambda name: known.index(name) if name in known else len(known))


def read_layer(folder: Path, kind: str, path: str, output: str, source: str = EMBEDDING) -> Layer:
    """The module at `path`, which makes `output` of `source`. Raises CheckpointCorrupt, CheckpointUnsupported."""
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
            raise CheckpointUnsupported(
                f"{field} in {file} is {str(stated)[:80]!r}, which hfx can't export.",
                f"Supported here: {expected}.",
            )
    if kind == "Normalize":
        return Layer("Normalize")
    if kind == "LayerNorm":
        width = _size(file, config, "dimension")
        return Layer("LayerNorm", path, width, width)
    return Layer(
        "Dense",
        path,
        _size(file, config, "in_features"),
        _size(file, config, "out_features"),
        config.get("bias") is not False,
        _activation(file, str(config.get("activation_function", "torch.nn.Tanh"))),
        config.get("use_residual") is True,
    )


def _activation(file: Path, path: str) -> str:
    """The class of torch.nn at a dotted `path`."""
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise CheckpointUnsupported(
            f"{file} names the activation {path[:80]!r}, which hfx can't export.",
            f"Supported, of torch.nn: {', '.join(ACTIVATIONS)}.",
        )
    return name


def _size(file: Path, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_VALUES:
        raise CheckpointCorrupt(
            f"{field} in {file} is {str(value)[:50]!r}; it should be a whole number from 1 to {MOST_VALUES}.", AGAIN
        )
    return value
