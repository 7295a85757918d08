"""A checkpoint as MLServer's older transformers and tokenizers can read it, with the lengths of its answers.

Owns what is changed of its small files. It must not know how it is served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import OpenFailed
from bench.peers.cases import Wanted

TYPES = {"bf16": "bfloat16", "fp32": "float32"}
REWRITTEN = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def readable(checkpoint: Path, target: Path, wanted: Wanted | None, precision: str) -> None:
    """The checkpoint by links, its small files such that transformers 4.41 and tokenizers 0.19 can read them.

    How many tokens are written stands in the model's own settings, as what a request says can't be put in a batch.
    """
    target.mkdir()
    for path in checkpoint.iterdir():
        if path.name not in (*REWRITTEN, "vocab.json", "merges.txt"):
            (target / path.name).symlink_to(path.resolve())
    config, tokenizer = _json(checkpoint / "config.json"), _json(checkpoint / "tokenizer.json")
    settings = _json(checkpoint / "tokenizer_config.json")
    pad, pad_id = _padding(settings, tokenizer)
    config["torch_dtype"] = TYPES[precision]
    if wanted is not None:
        ids = {name: config.get(name) for name in ("eos_token_id", "bos_token_id", "decoder_start_token_id")}
        if not config.get("is_encoder_decoder"):  # an end of id 0 is taken for none
            last = config["vocab_size"] - 1
            ids = {"eos_token_id": last, "bos_token_id": last}
            config |= {**ids, "pad_token_id": pad_id}
        config["task_specific_params"] = _prefixes(config.get("task_specific_params"))
        pads = {"pad_token_id": config.get("pad_token_id", pad_id)}
        write(target / "generation_config.json", {**_lengths(wanted), **_known(ids), **_known(pads)})
    write(target / "config.json", config)
    side = "right" if wanted is None or config.get("is_encoder_decoder") else "left"
    write(target / "tokenizer_config.json", {**settings, "pad_token": pad, "padding_side": side})
    write(target / "tokenizer.json", _old_merges(tokenizer))


def _lengths(wanted: Wanted) -> dict[str, Any]:
    lengths = {"max_new_tokens": wanted.new, "min_new_tokens": wanted.new}
    return {**lengths, "do_sample": False, "num_beams": wanted.beams, "no_repeat_ngram_size": wanted.ngram}


def _padding(settings: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> tuple[str, int]:
    """A token to pad with: the tokenizer's own, or the last one where that has id 0, which is taken for none.

    Any will do, as what is padded is masked.
    """
    ids = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    known = vocabulary if isinstance(vocabulary, dict) else {entry[0]: n for n, entry in enumerate(vocabulary)}
    ids = {**known, **ids}
    own = settings.get("pad_token")
    own = own["content"] if isinstance(own, dict) else own
    if own and ids.get(own):
        return own, ids[own]
    return max(ids.items(), key=lambda item: item[1])


def _prefixes(tasks: Any) -> dict[str, Any]:
    """What a task says of its texts, and not of how it decodes."""
    return {name: {"prefix": entry["prefix"]} for name, entry in (tasks or {}).items() if entry.get("prefix")}


def _old_merges(tokenizer: dict[str, Any]) -> dict[str, Any]:
    merges = tokenizer["model"].get("merges")
    if merges is not None:
        tokenizer["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    return tokenizer


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OpenFailed(f"MLServer's runtime needs {path.name}") from None
    return found


def write(path: Path, values: Mapping[str, Any]) -> None:
    """A file of JSON."""
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
