"""Load a checkpoint's torch model, and compare the names of its tensors with those in the files.

Weights are float32 and the model is in evaluation mode; no remote code is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, MemoryShort, SourceError
from hfx.exporter.config_file import AGAIN
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import MISSHAPEN, MISSING, CheckpointTensors, file_names
from hfx.exporter.transformers_versions import as_written
from hfx.memory import available_memory

if TYPE_CHECKING:
    import torch

FLOAT_BYTES, LIBRARY_BYTES = 4, 600_000_000  # of a float32; of torch, transformers and ONNX Runtime when loaded
# Tensors that no answer of an embedding model depends on: it is pooled from the tokens, never by the pooler.
IGNORED_TENSORS = re.compile(r"(^|\.)pooler\.|^cls\.seq_relationship\.|position_ids$|num_batches_tracked$")
# Fields of config.json that change how a model computes or what else it returns, but not its answers.
PLAIN: dict[str, Any] = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "chunk_size_feed_forward": 0,  # chunks have a fixed size: a trace would keep their number for other lengths
}


def load_model(checkpoint: Checkpoint, auto_class: str, headless: bool, prefix: str = "") -> torch.nn.Module:
    """Load the torch model of a checkpoint as `auto_class` (a transformers Auto class), float32, in evaluation mode.

    The names of its tensors are stored behind `prefix`.
    Raises what `superfluous_tensors` raises, and CheckpointCorrupt if values don't fit.
    """
    import torch
    import transformers

    superfluous_tensors(checkpoint, auto_class, headless, prefix)
    with quiet_libraries(), _load_errors(checkpoint, auto_class):
        model, report = getattr(transformers, auto_class).from_pretrained(
            checkpoint.view,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=not checkpoint.pickled,
            dtype=torch.float32,
            attn_implementation="eager",  # the plain graph: scores, softmax, values
            output_loading_info=True,
            weights_only=True,
            key_mapping={f"^{re.escape(prefix)}": ""} if prefix else None,
            **PLAIN,
        )
    as_written(model, checkpoint, set(report["missing_keys"]))
    CheckpointTensors(checkpoint).require_floats(name for name, _ in model.named_parameters())  # transformers 5 casts
    check_finite(checkpoint, model)
    model.eval()
    return model  # type: ignore[no-any-return]


@lru_cache(maxsize=1)  # the plan and the load of the model ask for the same names
def superfluous_tensors(checkpoint: Checkpoint, auto_class: str, headless: bool, prefix: str = "") -> list[str]:
    """Return the names of stored tensors that transformers leaves out of the model `auto_class`, sorted.

    The names of the model's own tensors are stored behind `prefix`.
    These are the unexpected names of from_pretrained's report, which is made of names and shapes; no value is read.
    Raises CheckpointCorrupt if tensors are missing or have other shapes (a `headless` model, for embeddings, may lack a
    pooler), CheckpointUnsafe for a pickle with more than tensors, and CheckpointUnsupported if transformers has no such
    model.
    """
    import torch
    import transformers

    tensors = CheckpointTensors(checkpoint)  # refuses damaged files, and pickles with more than tensors
    loader, zero = getattr(transformers, auto_class), torch.zeros(())  # expanded, it takes no memory
    with quiet_libraries(), _load_errors(checkpoint, auto_class):
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.view, local_files_only=True, trust_remote_code=False
        )
        with torch.device("meta"):
            model = loader.from_config(config, attn_implementation="eager", trust_remote_code=False)
            model.tie_weights()
        _refuse_too_many(checkpoint, sum(parameter.numel() for parameter in model.parameters()))
        model, report = type(model).from_pretrained(
            None,
            config=config,
            state_dict={name.removeprefix(prefix): zero.expand(shape) for name, shape in tensors.shapes.items()},
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # the report names them
            output_loading_info=True,
        )
    missing = set(report["missing_keys"])
    as_written(model, checkpoint, missing)
    mismatched = {name if isinstance(name, str) else name[0] for name in report["mismatched_keys"]}
    lacking = {name for name in missing - mismatched if not (headless and IGNORED_TENSORS.search(name))}
    fix = "Pass the checkpoint of the task (--task), or put the config.json and the weights of one model together."
    tensors.refuse({MISSHAPEN: mismatched, MISSING: lacking}, fix)
    return sorted(report["unexpected_keys"])


def require_memory(checkpoint: Checkpoint) -> None:
    """Raise MemoryShort if the torch model can't be held, before anything is computed.

    The estimate is the least that an export takes: every value in float32, and the libraries.
    """
    values = CheckpointTensors(checkpoint).values
    needed, available = FLOAT_BYTES * values + LIBRARY_BYTES, available_memory()
    if available is not None and needed > available:
        raise MemoryShort(
            f"{checkpoint.id} has {values:,} values: an export takes at least {needed / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are available.",
            "Export it on a machine or in a container with more memory; the published model takes less.",
        )


def head_rows(model: Any, tokenizer: Any, tokens: Sequence[int | str]) -> torch.Tensor | None:
    """Return the rows of a language model's head for the logits of `tokens` (ids or words); None without tokens.

    The rows of Granite are divided by its `logits_scaling`. Raises CheckpointUnsupported for a word that is no token,
    and an id beyond the head.
    """
    if not tokens:
        return None
    head, vocabulary = model.get_output_embeddings(), tokenizer.get_vocab()
    ids = [token if isinstance(token, int) else vocabulary.get(token, -1) for token in tokens]
    for token, index in zip(tokens, ids, strict=True):
        if not 0 <= index < len(head.weight):
            raise CheckpointUnsupported(
                f"The score is made of the logit of the token {token!r}, which the model does not have.",
                "Pass a re-ranker; its LogitScore module names the tokens (true_token_id, false_token_id).",
            )
    rows: torch.Tensor = head.weight.detach()[ids] / getattr(model.config, "logits_scaling", 1.0)
    return rows


def check_finite(checkpoint: Checkpoint, model: Any) -> None:
    """Refuse values that are not finite, such as float64 values beyond float32: every answer would be NaN."""
    import torch

    for name, parameter in model.named_parameters():
        if parameter.numel() and not all(torch.isfinite(value) for value in torch.aminmax(parameter)):
            raise CheckpointCorrupt(f"{name} in {file_names(checkpoint)} holds values that are not finite.", AGAIN)


def _refuse_too_many(checkpoint: Checkpoint, described: int) -> None:
    """Refuse a config with more parameters than the weight files have bytes, before memory is allocated for them."""
    held = sum(file.stat().st_size for file in checkpoint.weights)
    if described > held:
        raise CheckpointCorrupt(
            f"{checkpoint.folder / 'config.json'} describes {described:,} parameters, which {file_names(checkpoint)} "
            f"with its {held:,} bytes can't hold.",
            "Put the config.json and the weights of one model together, or download the checkpoint again.",
        )


def first_lines(error: BaseException) -> str:
    """Return the first two lines of an error that are not blank, for a message on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__


@contextmanager
def _load_errors(checkpoint: Checkpoint, auto_class: str) -> Iterator[None]:
    """Turn errors of transformers in a block into those of hfx: a config or file may fail anywhere in it."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise _load_error(checkpoint, auto_class, error) from error


def _load_error(checkpoint: Checkpoint, auto_class: str, error: Exception) -> SourceError:
    text, reason = str(error), checkpoint.in_folder(first_lines(error))
    if "does not recognize this architecture" in text:
        return CheckpointUnsupported(
            f"transformers {version('transformers')} does not have the architecture {checkpoint.model_type!r} "
            f"({checkpoint.folder / 'config.json'}).",
            "pip install --upgrade transformers",
        )
    if "Unrecognized configuration class" in text:
        return CheckpointUnsupported(
            f"Transformers has no {auto_class} for {checkpoint.model_type!r} ({checkpoint.folder / 'config.json'}).",
            "Pass --task for what the model does.",
        )
    if isinstance(error, ImportError):
        return CheckpointUnsupported(
            f"{checkpoint.folder / 'config.json'} asks for a package that is not installed: {reason}",
            "Install it, or remove the field that asks for it.",
        )
    return CheckpointCorrupt(
        f"{checkpoint.folder / 'config.json'} and {file_names(checkpoint)} can't be loaded: {reason}",
        "Compare the named field or tensor with the original, or download the checkpoint again.",
    )
