"""Read adapter_config.json, with which peft describes a LoRA adapter, and refuse what isn't plain LoRA.

The names of the tensors say which modules are adapted. The fields say how a product is scaled, which modules are
stored whole, and whether the adapter needs more than W + scale * B A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json
from hfx.strict_json import Node

ADAPTER_CONFIG = "adapter_config.json"
ALONE = "It is a model of its own: export it by itself with `hfx export`."
MERGE = (
    "Merge it and export the merged model by itself: model.merge_and_unload().save_pretrained(FOLDER) and "
    "tokenizer.save_pretrained(FOLDER)."
)
SEQ_CLS, TOKEN_CLS, FEATURE_EXTRACTION = "SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION"
TASK_TYPES = (SEQ_CLS, TOKEN_CLS, FEATURE_EXTRACTION)
HEADS = ("classifier", "score")  # peft stores these modules whole for SEQ_CLS and TOKEN_CLS
MAX_RANK = 256
MAX_PATTERNS, MAX_PATTERN = 1_000, 256  # entries of rank_pattern and alpha_pattern, and characters of each
PATTERN_SECONDS = 1.0  # a regular expression may take exponential time
# These initial values leave the backbone's weights as they are; pissa, olora, corda, loftq and lora_ga subtract the
# initial product from them, which the adapter's file doesn't tell.
INITIALIZATIONS = (True, False, "gaussian", "orthogonal", "eva")
# Fields that change neither what a tensor means nor how it is used.
IGNORED = (
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "inference_mode", "layers_pattern",
    "layers_to_transform", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules",
)  # fmt: skip
READ = (
    "peft_type", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save",
    "init_lora_weights", "bias",
)  # fmt: skip
# Fields that must be unset, and what they add to LoRA.
REFUSED = {
    "use_dora": "scales the columns of the weights (DoRA)",
    "fan_in_fan_out": "adapts transposed weights (Conv1D of GPT-2)",
    "lora_bias": "adds biases to the products",
    "trainable_token_indices": "changes rows of the embeddings",
    "layer_replication": "repeats layers of the backbone",
    "target_parameters": "adapts parameters that belong to no linear layer",
    "loftq_config": "quantizes the backbone",
    "use_qalora": "quantizes the backbone",
    "corda_config": "changes the backbone's weights before the training",
    "lora_ga_config": "changes the backbone's weights before the training",
    "velora_config": "is a variant of LoRA",
    "kasa_config": "is a variant of LoRA",
    "monteclora_config": "is a variant of LoRA",
    "use_bdlora": "is a variant of LoRA",
    "arrow_config": "chooses among adapters by the input",
    "alora_invocation_tokens": "adapts only the tokens after an invocation",
    "megatron_config": "is for Megatron's parallel layers",
    "ensure_weight_tying": "ties adapted weights",
    "enable_lora": "is for merged linear layers of peft 0.2",
}


@dataclass(frozen=True)
class AdapterConfig:
    """The checked fields of an adapter_config.json.

    `task_type` is one of TASK_TYPES or None. `modules_to_save` are endings of the paths of modules that are stored
    whole. The keys of `ranks` and `alphas` are peft's patterns of module paths. `trained_on` names the checkpoint of
    the training, if the file says so; it is only compared for a note.
    """

    file: Path
    task_type: str | None
    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    modules_to_save: tuple[str, ...]
    trained_on: str = ""

    def rank_of(self, module: str) -> int:
        """Return the rank that the product of `module` must have."""
        return next((self.ranks[pattern] for pattern in self._applying(self.ranks, module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of the product B A of `module`: alpha / r, or alpha / sqrt(r) with use_rslora."""
        rank = self.rank_of(module)
        return self._alpha_of(module) / (math.sqrt(rank) if self.rslora else rank)

    def stores(self, parameter: str) -> bool:
        """Return whether `modules_to_save` has peft store `parameter` whole.

        As in peft, a name applies to every module whose path ends with it, even in the middle of a word:
        `classifier` applies to `pre_classifier` too.
        """
        parts = parameter.split(".")
        modules = (".".join(parts[:count]) for count in range(1, len(parts)))
        return any(module.endswith(self.stored_modules) for module in modules)

    def for_peft(self, modules: Iterable[str]) -> dict[str, Any]:
        """Return an adapter_config.json that adapts exactly `modules`, without patterns that could run for ever.

        Patterns without special characters stay, so that peft applies them by itself.
        """
        modules = list(modules)
        plain = all(re.fullmatch(r"[\w.-]+", pattern) for pattern in (*self.ranks, *self.alphas))
        ranks = {re.escape(module): self.rank_of(module) for module in modules}
        alphas = {re.escape(module): self._alpha_of(module) for module in modules}
        return {
            "peft_type": "LORA",
            "task_type": self.task_type,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "rank_pattern": dict(self.ranks) if plain else ranks,
            "alpha_pattern": dict(self.alphas) if plain else alphas,
            "modules_to_save": list(self.modules_to_save) or None,
            "target_modules": modules,
            "bias": "none",
            "inference_mode": True,
        }

    @property
    def stored_modules(self) -> tuple[str, ...]:
        """The endings of the paths of modules that peft stores whole, also those that it adds for a task."""
        heads = HEADS if self.task_type in (SEQ_CLS, TOKEN_CLS) else ()
        return tuple(dict.fromkeys((*self.modules_to_save, *heads)))

    def _alpha_of(self, module: str) -> float:
        """Return alpha for `module`. Raises CheckpointUnsupported if patterns with different values apply to it.

        peft uses the first pattern, but its save_pretrained sorts the patterns, and the order of the training is lost.
        A wrong rank shows in the shapes; a wrong alpha would not.
        """
        values = {self.alphas[pattern]: pattern for pattern in self._applying(self.alphas, module)}
        if len(values) > 1:
            raise CheckpointUnsupported(
                f"{self.file}: alpha_pattern has {' and '.join(map(repr, values.values()))} for {module}, with other "
                "values each; peft sorts the patterns when it saves them, so the file doesn't tell the trained one.",
                "Keep the pattern that came first in the training.",
            )
        return next(iter(values), self.alpha)

    def _applying(self, patterns: Iterable[str], module: str) -> Iterator[str]:
        """Yield those of `patterns` that peft applies to `module`, of which it uses the first.

        The rule is that of peft.utils.other.get_pattern_key, with a limit of time.
        """
        for pattern in patterns:
            try:
                if _compiled(pattern).match(module, timeout=PATTERN_SECONDS):
                    yield pattern
            except TimeoutError as error:
                raise CheckpointCorrupt(
                    f"{self.file}: the pattern {pattern!r} takes more than {PATTERN_SECONDS:.0f} s to be compared.",
                    "Write the paths of the modules in its place.",
                ) from error
            except ValueError as error:
                raise CheckpointCorrupt(f"{self.file}: the pattern {pattern!r} {error}.", AGAIN) from error


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Return the checked adapter_config.json of `folder`.

    Raises CheckpointCorrupt for a damaged file, and CheckpointUnsupported for an adapter that isn't plain LoRA, with
    the file and the field.
    """
    file = folder / ADAPTER_CONFIG
    fields = dict(Node(str(file), "", read_json(file), AGAIN, CheckpointCorrupt).items())
    _refuse_unsupported(fields, Node(str(file), "", None, MERGE, CheckpointUnsupported))
    return AdapterConfig(
        file=file,
        task_type=_task_type(file, fields),
        rank=_rank(_required(file, fields, "r")),
        alpha=_number(_required(file, fields, "lora_alpha")),
        rslora=_flag(fields, "use_rslora"),
        ranks={pattern: _rank(node) for pattern, node in _patterns(fields, "rank_pattern")},
        alphas={pattern: _number(node) for pattern, node in _patterns(fields, "alpha_pattern")},
        modules_to_save=_names(fields, "modules_to_save"),
        trained_on=str(fields["base_model_name_or_path"].value or "") if "base_model_name_or_path" in fields else "",
    )


def _refuse_unsupported(fields: Mapping[str, Node], root: Node) -> None:
    """Raise CheckpointUnsupported for a field that makes the adapter more than W + scale * B A."""
    kind = fields["peft_type"].value if "peft_type" in fields else None
    if kind != "LORA":
        root.child("peft_type", kind).refuse(f"is {_shown(kind)}; hfx shares backbones with LORA adapters only")
    for name, node in fields.items():
        entry, value = root.child(name, node.value), node.value
        unset = value is None or value is False or value in ({}, [])
        if name in REFUSED and not unset:
            entry.refuse(f"is {_shown(value)}, which {REFUSED[name]}; hfx takes plain LoRA only")
        if name == "bias" and value != "none":
            entry.refuse(f"is {_shown(value)}: the biases of the backbone are changed too")
        if name == "init_lora_weights" and value not in INITIALIZATIONS:
            entry.refuse(
                f"is {_shown(value)}, which may change the backbone's weights before the training",
                f"{MERGE} Or, after pissa, corda or olora, save a plain adapter with peft's "
                "path_initial_model_for_weight_conversion.",
            )
        if not unset and name not in (*IGNORED, *READ, *REFUSED):
            entry.refuse(f"is {_shown(value)}; hfx doesn't know this field", f"Remove it if it has no effect. {MERGE}")


@lru_cache(2 * MAX_PATTERNS)
def _compiled(pattern: str) -> Any:
    """Return the expression by which peft compares `pattern` with a module's path. Raises ValueError."""
    import regex  # which transformers needs; re has no limit of time

    try:
        return regex.compile(rf"(.*\.)?({pattern})$")
    except regex.error as error:
        raise ValueError(f"is no regular expression: {error}") from error


def _task_type(file: Path, fields: Mapping[str, Node]) -> str | None:
    value = fields["task_type"].value if "task_type" in fields else None
    if value is None or value in TASK_TYPES:
        return value
    raise CheckpointUnsupported(
        f"{file}: task_type is {_shown(value)}; adapters that share a backbone are for {', '.join(TASK_TYPES)}.", MERGE
    )


def _required(file: Path, fields: Mapping[str, Node], name: str) -> Node:
    if name not in fields:
        raise CheckpointCorrupt(f"{file} has no {name}.", AGAIN)
    return fields[name]


def _rank(node: Node) -> int:
    """Return the rank in a node. Raises CheckpointUnsupported above MAX_RANK."""
    if (rank := node.integer(1)) > MAX_RANK:
        fix = f"{MERGE} Or train it with a lower rank."
        replace(node, error=CheckpointUnsupported).refuse(f"is {_shown(rank)}; adapters may have {MAX_RANK}", fix)
    return rank


def _number(node: Node) -> float:
    if type(node.value) not in (int, float) or not -1e6 <= node.value <= 1e6:
        node.refuse("must be a number from -1,000,000 to 1,000,000")
    return node.value  # type: ignore[no-any-return]  # an int stays one, as in peft's own file


def _flag(fields: Mapping[str, Node], name: str) -> bool:
    if name not in fields:
        return False
    if type(fields[name].value) is not bool:
        fields[name].refuse("must be true or false")
    return bool(fields[name].value)


def _patterns(fields: Mapping[str, Node], name: str) -> list[tuple[str, Node]]:
    if name not in fields or fields[name].value is None:
        return []
    entries = fields[name].items()
    if len(entries) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN for pattern, _ in entries):
        fields[name].refuse(f"may have {MAX_PATTERNS} patterns of {MAX_PATTERN} characters")
    return entries


def _names(fields: Mapping[str, Node], name: str) -> tuple[str, ...]:
    if name not in fields or fields[name].value is None:
        return ()
    return tuple(node.text() for node in fields[name].elements())


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
