"""Folders of generation models around the toys of engine_toys.py, and their expected answers.

A token of the toys is a letter here, TEXT[id], so that their arithmetic can be read as text. Id 0 is the end, and an
encoder-decoder's answers begin with "a".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hfx.python_backends.generation.configuration import Configuration
from tests.rigs.engine import engine_toys

END = "<end>"
TEXT = "\0abcdefghijklmnopqrstuvwxyz ."
START = 1

assert len(TEXT) == engine_toys.VOCABULARY


def facts(**changed: Any) -> dict[str, Any]:
    """Return generation.json of the decoder toy, or, with a `max_source`, of the encoder-decoder."""
    has_encoder = changed.get("max_source") is not None
    return {
        "format": 1,
        "task": "text2text-generation" if has_encoder else "text-generation",
        "kind": "encoder-decoder" if has_encoder else "decoder",
        "max_length": engine_toys.MAX_LENGTH,
        "max_source": None,
        "default_max_length": None,
        "defaults": {},
        "eos_token_ids": [2],
        "pad_token_id": 0,
        "bos_token_id": None,
        "decoder_start_token_ids": [2] if has_encoder else [],
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
        "suppress_tokens": [],
        "begin_suppress_tokens": [],
        "bad_words_ids": [],
        "bad_words_at_start": True,
        "renormalize_logits": False,
        "prefix": "",
        "languages": None,
        "clean_up_tokenization_spaces": False,
        "special_token_ids": [],
        **changed,
    }


def configuration(**changed: Any) -> Configuration:
    """Return a configuration that needs no folder."""
    return Configuration.of(facts(**changed))


def letters() -> Any:
    """Return the tokenizers.Tokenizer of one token a letter."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {END if token_id == 0 else letter: token_id for token_id, letter in enumerate(TEXT)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END])
    return tokenizer


def write_model(folder: Path, *, fails: bool = False, positions: int = engine_toys.MAX_LENGTH, **changed: Any) -> Path:
    """Write a published model's version folder around a toy with `positions` positions. Return `folder`."""
    toy: dict[str, Any] = {"eos_token_ids": [0], "special_token_ids": [0], "max_length": positions}
    if changed.get("max_source") is not None:
        engine_toys.write_encoder_decoder(folder / "cpu", fails, max_length=positions)
        toy["decoder_start_token_ids"] = [START]
    else:
        engine_toys.write_decoder(folder / "cpu", fails, max_length=positions)
    letters().save(str(folder / "tokenizer.json"))
    (folder / "generation.json").write_text(json.dumps(facts(**{**toy, **changed})))
    return folder


def ids_of(text: str) -> list[int]:
    return [TEXT.index(letter) for letter in text]


def text_of(ids: Sequence[int]) -> str:
    return "".join(TEXT[token_id] for token_id in ids if token_id)


def continued(text: str, count: int, eos: Sequence[int] = (0,)) -> str:
    """Return the text of the decoder toy after `text`: at most `count` letters."""
    return text_of(engine_toys.greedy(ids_of(text), count, eos=eos))


def answered(text: str, count: int) -> str:
    """Return the answer of the encoder-decoder toy."""
    return text_of(engine_toys.greedy([START], count, source=ids_of(text), eos=[0]))
