"""Translate a model-settings.json of MLServer's Hugging Face runtime to options of `hfx export` for the same model.

A setting without a counterpart causes a warning that names it; a setting that would change the answers is refused. The
settings are those of MLServer 1.7: `mlserver.settings.ModelSettings` and
`mlserver_huggingface.settings.HuggingFaceSettings`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import ModelCorrupt, UsageError
from hfx.names import GENERATION_TASKS, default_name
from hfx.strict_json import Node, read_json

MAX_BYTES = 1 << 20
RUNTIME = "HuggingFaceRuntime"
TRANSLATION = re.compile(r"translation(?:_(\w+)_to_(\w+))?")
READ = {
    "": {"name", "implementation", "parameters", "max_batch_size"},
    "parameters": {"uri", "extra"},
    "parameters.extra": {
        "task", "task_suffix", "pretrained_model", "pretrained_tokenizer", "model_kwargs", "framework", "device",
        "optimum_model",
    },
}  # fmt: skip
# The reasons why settings are left out. optimum_model is not among these settings: every export is an ONNX model.
LEFT_OUT = {
    "max_batch_time": "Triton's batcher takes what is there when the model is free; no request waits for others",
    "parallel_workers": "one process serves all requests of a model; instances are of config.pbtxt",
    "warm_workers": "exported models warm up when they are loaded",
    "cache_enabled": "answers are not cached",
    "platform": "the export writes it",
    "versions": "hfx.json has them",
    "inputs": "the task has them",
    "outputs": "the task has them",
    "parameters.version": "Triton's version of a published model is 1",
    "parameters.content_type": "requests say it themselves",
    "parameters.format": "it is of other runtimes",
    "parameters.environment_path": "published models need no environment of their own",
    "parameters.environment_tarball": "published models need no environment of their own",
    "parameters.inference_pool_gid": "each Python model has a process of its own",
    "parameters.autogenerate_inference_pool_gid": "each Python model has a process of its own",
    "parameters.extra.inter_op_threads": "the export measures them",
    "parameters.extra.intra_op_threads": "the export measures them",
}


@dataclass(frozen=True)
class MigratedExport:
    """MODEL, the options of `hfx export` by parameter name, and warnings about settings that were left out."""

    model: str
    options: Mapping[str, Any]
    warnings: tuple[str, ...]

    def command(self, options: Mapping[str, Any]) -> str:
        """Return the command line with `options`, which may be more than those of the settings."""
        typed = (f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items())
        return " ".join(("hfx export", shlex.quote(self.model), *typed))


def read_settings(path: Path) -> MigratedExport:
    """Return the export that a model-settings.json stands for. Raises UsageError."""
    try:
        root = read_json(path, MAX_BYTES)
        settings, parameters = dict(root.items()), _below(root, "parameters")
        extra = _below(parameters, "extra")
        warnings = [text for node in (root, parameters, extra) for text in _left_out(node)]
        return _migrated(path, settings, dict(parameters.items()), dict(extra.items()), warnings)
    except ModelCorrupt as error:
        raise UsageError(error.message, "Give a model-settings.json of MLServer's Hugging Face runtime.") from error


def _below(node: Node, name: str) -> Node:
    value = dict(node.items()).get(name)
    return node.child(name, {}) if value is None or value.value is None else value


def _left_out(node: Node) -> Iterator[str]:
    """Yield a warning for each setting that is not read."""
    for name, child in node.items():
        if name not in READ[node.where] and child.value not in (None, [], "", {}):
            reason = LEFT_OUT.get(child.where, "it is not a setting of MLServer that hfx knows")
            yield f"{child.where} is left out: {reason}."


def _migrated(
    path: Path,
    settings: Mapping[str, Node],
    parameters: Mapping[str, Node],
    extra: Mapping[str, Node],
    warnings: list[str],
) -> MigratedExport:
    implementation = settings["implementation"].text() if "implementation" in settings else ""
    if not implementation.endswith(RUNTIME):
        raise UsageError(
            f"{path} is for {implementation or 'no runtime'}.",
            f"Only models of mlserver_huggingface.{RUNTIME} are read.",
        )
    _refuse_changes(extra)
    options: dict[str, Any] = {}
    if "name" in settings:
        options["name"] = default_name(name := settings["name"].text())
        if options["name"] != name:
            warnings.append(f"The model {name!r} is published as {options['name']!r}.")
    if "task" in extra:
        options["task"] = _task(extra, warnings)
    options["device"] = _device(extra.get("device"))
    rows = settings["max_batch_size"].integer(0) if "max_batch_size" in settings else 0
    if rows > 1 and options.get("task") in GENERATION_TASKS:
        warnings.append("max_batch_size is left out: --slots says how many texts are generated at a time.")
    elif rows > 1:
        options["max_batch_size"] = rows
    return MigratedExport(_model(path, parameters, extra), options, tuple(warnings))


def _refuse_changes(extra: Mapping[str, Node]) -> None:
    """Raise UsageError for settings that can't be left out without changing the answers."""
    if "model_kwargs" in extra and extra["model_kwargs"].value:
        raise UsageError(
            f"model_kwargs ({', '.join(dict(extra['model_kwargs'].items()))}) has no counterpart.",
            "Remove it from the file; --precision says how the model computes.",
        )
    model, tokenizer = (
        extra[key].value if key in extra else None for key in ("pretrained_model", "pretrained_tokenizer")
    )
    if tokenizer is not None and tokenizer != model:
        raise UsageError(
            f"pretrained_tokenizer {tokenizer!r} is another checkpoint than pretrained_model {model!r}.",
            "Save the tokenizer into the checkpoint's folder, and name that as pretrained_model.",
        )
    if "framework" in extra and extra["framework"].value not in (None, "pt"):
        raise UsageError(
            f"framework {extra['framework'].value!r} can't be read.",
            "Convert the checkpoint to PyTorch (transformers: from_pretrained(..., from_tf=True), save_pretrained).",
        )


def _task(extra: Mapping[str, Node], warnings: list[str]) -> str:
    """Return the task's name without languages, which requests state themselves."""
    task = extra["task"].text()
    suffix = extra["task_suffix"].optional_text() if "task_suffix" in extra and extra["task_suffix"].value else ""
    if match := TRANSLATION.fullmatch(task + (suffix or "")):
        if match[1]:
            warnings.append(f"Send source_lang {match[1]!r} and target_lang {match[2]!r} with each request.")
        return "translation"
    return task


def _device(node: Node | None) -> str:
    """Return "cpu" for -1 and "cpu", and "gpu" for a number or "cuda:N". Raises UsageError for another device."""
    value = -1 if node is None or node.value is None else node.value
    if value in (-1, "-1", "cpu"):
        return "cpu"
    if (type(value) is int and value >= 0) or (isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?|\d+", value)):
        return "gpu"
    raise UsageError(f"device {value!r} is neither a CPU nor a GPU of CUDA.", "Write -1, 0 or cuda:0.")


def _model(path: Path, parameters: Mapping[str, Node], extra: Mapping[str, Node]) -> str:
    """Return MODEL: pretrained_model, or else `uri`; a folder may be relative to the file."""
    places = (extra.get("pretrained_model"), parameters.get("uri"))
    text = next((node.text() for node in places if node is not None and node.value), "")
    if not text:
        raise UsageError(f"{path} names no checkpoint.", "Write pretrained_model into parameters.extra.")
    beside = path.parent / text
    return str(beside) if beside.is_dir() else text
