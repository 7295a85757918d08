"""The languages of a translator, as its tokenizer and its generation settings name them.

mBART and M2M100 (NLLB too) have a token for each language. It stands where transformers' tokenizers put it: the source
language's token is the first or the last token of a text, and the answer begins with the target language's token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfx import names
from hfx.exporter.generation.settings import GenerationSettings
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import vocab_size

MODEL_TYPES = ("mbart", "m2m_100")
# M2M100's tokens (__fr__ for fr), mBART's (fr_XX) and NLLB's (fra_Latn).
TOKEN = re.compile(r"__(?P<bare>[a-z]{2,3})__|[a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}")


@dataclass(frozen=True)
class Languages:
    """The token ids of languages by code, the index of the source's token in a text, and the default languages.

    `starts` is true for the first mBART models: the target's token is their decoder's start token. The decoder of all
    other models is forced to generate the target's token.
    """

    ids: Mapping[str, int]
    source_index: int | None
    source: str | None
    starts: bool
    target: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the content of `languages` in generation.json."""
        target = "decoder_start_token_ids" if self.starts else "forced_bos_token_id"
        return {"ids": dict(self.ids), "source_index": self.source_index, "target": target}

    @property
    def defaults(self) -> dict[str, str]:
        """The languages of a request that names no language, by public field."""
        both = {names.SOURCE_LANG: self.source, names.TARGET_LANG: self.target}
        return {name: code for name, code in both.items() if code}

    @property
    def forced_bos_id(self) -> int | None:
        """The id of the token that answers are forced to begin with by default; None if there is none."""
        return None if self.starts or self.target is None else self.ids[self.target]


def read_languages(checkpoint: Checkpoint, tokenizer: Any, settings: GenerationSettings) -> Languages | None:
    """Return the languages of `checkpoint`; None if its tokenizer has no language token with an embedding."""
    ids = _ids(tokenizer, vocab_size(checkpoint)) if checkpoint.model_type in MODEL_TYPES else {}
    if not ids:
        return None
    codes = {token_id: code for code, token_id in ids.items()}
    specials = tokenizer("")["input_ids"]
    source_index = next((index for index in (0, -1) if specials and specials[index] in codes), None)
    starts = checkpoint.model_type == "mbart" and source_index == -1
    return Languages(
        ids=ids,
        source_index=source_index,
        source=None if source_index is None else codes[specials[source_index]],
        starts=starts,
        target=codes.get(settings.decoder_start_token_ids[0]) if starts else _forced(tokenizer, settings, codes),
    )


def _ids(tokenizer: Any, embeddings: int) -> dict[str, int]:
    """Return token ids by code, without ids beyond `embeddings`.

    transformers gives an mBART tokenizer the tokens of all languages, even if the model has fewer.
    """
    found = {}
    for token_id, token in tokenizer.added_tokens_decoder.items():
        match = TOKEN.fullmatch(token.content) if token.special else None
        if match and token_id < embeddings:
            found[match["bare"] or token.content] = int(token_id)
    return found


def _forced(tokenizer: Any, settings: GenerationSettings, codes: Mapping[int, str]) -> str | None:
    """Return the language of the forced token; if no token is forced, tgt_lang of tokenizer_config.json."""
    if settings.forced_bos_token_id is not None:
        return codes.get(settings.forced_bos_token_id)
    stated = tokenizer.init_kwargs.get("tgt_lang")
    return stated if stated in codes.values() else None
