"""The model folders of a generator: NAME, the relay for plain calls, and NAME_stream, the engine; and generation.json.

Every input except the text is optional: the model's defaults apply to inputs that a request leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfx import names
from hfx.exporter.generation.languages import read_languages
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.model_files import copy_files, write_config, write_json, write_tokenizer_json
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.exporter.transformers_versions import cleans_up
from hfx.local import Device
from hfx.python_backends import deploy
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS, Setting
from hfx.python_backends.engine.prefix_cache import DEFAULT_MB
from hfx.python_backends.engine.spec import EngineSpec
from hfx.repository import Staging
from hfx.repository.config_pbtxt import ModelConfig, TensorSpec

OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_OUTPUT, "TYPE_STRING", (1,)),
    TensorSpec(names.FINISH_REASON, "TYPE_STRING", (1,)),  # stop, length or cancelled; empty before the last piece
    TensorSpec(names.INPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.OUTPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.TRUNCATED_TOKENS, "TYPE_INT32", (1,)),
    # One value a token, if the request sets return_log_probs or logprobs.
    TensorSpec(names.OUTPUT_LOG_PROBS, "TYPE_FP32", (-1,)),
    TensorSpec(names.PROMPT_LOG_PROBS, "TYPE_FP32", (-1,)),
    TensorSpec(names.NUM_INPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.NUM_OUTPUT_TOKENS, "TYPE_INT32", (1,)),
    *(
        TensorSpec(name, data_type, (-1, -1))
        for tables in (names.TOKEN_TABLES, names.PROMPT_TOKEN_TABLES)
        for name, data_type in zip(tables, ("TYPE_INT32", "TYPE_STRING", "TYPE_FP32", "TYPE_BOOL"), strict=True)
    ),
)
FORMAT = 1
SETTINGS_FILE, TOKENIZER, CHAT_FILE = "generation.json", "tokenizer.json", "chat.json"
# Triton passes one request a call: both models answer requests one by one, and the engine forms the batches.
MAX_BATCH_SIZE = 1
DRAIN_SECONDS = 10  # the time in which running requests may finish when the server stops
MAX_QUEUE_SECONDS = 30  # about how long an accepted request may wait in the queue
NO_CACHE = (
    "No response_cache: Triton's cache knows a request by its tensors, and can't tell one that samples without a seed,",
    "whose next answer is another one, from one that has the same answer always.",
)
INSTANCES: dict[Device, dict[str, Any]] = {
    "cpu": {"instance_kind": "KIND_CPU"},
    "gpu": {"instance_kind": "KIND_GPU", "one_gpu": True},
}
LACKING: dict[Device, tuple[str, ...]] = {"gpu": ("cpu_runtime", "prefix_cache_mb")}  # parameters


def _optional(name: str, data_type: str, dims: tuple[int, ...] = (1,)) -> TensorSpec:
    return TensorSpec(name, f"TYPE_{data_type}", dims, optional=True)


def _tensors(setting: Setting) -> list[TensorSpec]:
    """Return a tensor for a setting's name and for each of its aliases; none for a setting that is not served."""
    aliases = [alias for alias, name in ALIASES.items() if name == setting.name]
    dims = (-1,) if setting.is_list else (1,)
    return [_optional(name, setting.dtype, dims) for name in (setting.name, *aliases) if setting.dtype]


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_INPUT, "TYPE_STRING", (1,)),
    *(tensor for setting in SETTINGS.values() for tensor in _tensors(setting)),
    _optional(names.STREAM, "BOOL"),
    _optional(names.TIMEOUT_MS, "INT32"),  # counted from the arrival of the request
    _optional(names.RETURN_NUM_INPUT_TOKENS, "BOOL"),
    _optional(names.RETURN_NUM_OUTPUT_TOKENS, "BOOL"),
)
# The engine has one more input: the id of another request to cancel.
STREAM_INPUTS: tuple[TensorSpec, ...] = (*INPUTS, _optional(names.CANCEL_REQUEST, "STRING"))


def write_relay(plan: GeneratorPlan, staging: Staging) -> None:
    """Write the folder of NAME, the entry point for plain infer calls, which it relays to the engine."""
    folder = staging.folder(plan.name)
    copy_files(folder, deploy.relay_files())
    (folder / "configs").mkdir()
    config = ModelConfig(
        name=plan.name,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=INPUTS,
        outputs=OUTPUTS,
        instance_kind="KIND_CPU",
        parameters={
            "engine": plan.name + names.STREAM_SUFFIX,
            "task": str(plan.kind.task),  # for clients, which can't infer the task from the tensors
        },
        note=NO_CACHE,
    )
    for device in plan.built:  # the same file for each device: the relay runs no model
        write_config(config, plan.command, folder / "configs" / f"{device}.pbtxt")
    write_config(config, plan.command, folder / "config.pbtxt")


def write_stream_configs(plan: GeneratorPlan, folder: Path, chosen: Mapping[Device, CpuChoice]) -> None:
    """Write config.pbtxt of NAME_stream, and one file for each device to configs/; `chosen` has their runtimes."""
    (folder / "configs").mkdir(exist_ok=True)
    for device in reversed(plan.built):  # the CPU last: if both are built, its file is config.pbtxt
        config = stream_config(plan, device, chosen[device].runtime)
        write_config(config, plan.command, folder / "configs" / f"{device}.pbtxt")
        write_config(config, plan.command, folder / "config.pbtxt")


def stream_config(plan: GeneratorPlan, device: Device, runtime: Runtime) -> ModelConfig:
    """Return the configuration of the engine on one device: one instance, because the engine batches requests."""
    parameters = {
        "device": device,
        "cpu_runtime": runtime,
        "slots": str(plan.slots),
        "max_queue_size": str(plan.max_queue),
        "max_queue_seconds": str(MAX_QUEUE_SECONDS),
        **({"prefix_cache_mb": str(DEFAULT_MB)} if plan.kind.net_kind == "decoder" else {}),
        "intra_op_thread_count": str(plan.threads),
        "drain_seconds": str(DRAIN_SECONDS),
    }
    return ModelConfig(
        name=plan.name + names.STREAM_SUFFIX,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=STREAM_INPUTS,
        outputs=OUTPUTS,
        **INSTANCES[device],
        parameters={name: value for name, value in parameters.items() if name not in LACKING.get(device, ())},
        decoupled=True,
        note=NO_CACHE,
    )


def write_text_files(plan: GeneratorPlan, version: Path, tokenizer: Any, spec: EngineSpec) -> None:
    """Write tokenizer.json, generation.json (the settings of decoding) and, for a chat template, chat.json.

    front/chat.py reads chat.json to turn the messages of a chat into a text.
    """
    write_tokenizer_json(tokenizer, version / TOKENIZER)
    write_json(version / SETTINGS_FILE, generation_json(plan, tokenizer, spec))
    template = chat_template(tokenizer)
    if template:
        write_json(version / CHAT_FILE, chat_json(tokenizer, template))


def chat_json(tokenizer: Any, template: str) -> dict[str, Any]:
    """Return the content of chat.json: the chat template, and the special tokens that it may use."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return {"format": FORMAT, "template": template, "special_tokens": special}


def chat_template(tokenizer: Any) -> str:
    """Return the template of a chat without tools; empty if the tokenizer has no template."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else ""


def generation_json(plan: GeneratorPlan, tokenizer: Any, spec: EngineSpec) -> dict[str, Any]:
    """Return the content of generation.json. The lengths are the model's limits, or the plan's if they are lower."""
    languages = read_languages(plan.checkpoint, tokenizer, plan.settings)
    settings = plan.settings.as_json()
    special = sorted(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)
    return {
        "format": FORMAT,
        "task": str(plan.kind.task),
        "kind": spec.kind,
        "max_source": min(spec.max_source, plan.max_source or spec.max_source) if spec.has_encoder else None,
        "max_length": min(spec.max_length, plan.max_length),
        **settings,
        "defaults": {**settings["defaults"], **(languages.defaults if languages else {})},
        "languages": languages and languages.as_json(),
        "clean_up_tokenization_spaces": cleans_up(tokenizer, plan.checkpoint),
        "special_token_ids": special,
    }
