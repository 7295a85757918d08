"""The files with which the sentence-transformers library finds its way in a checkpoint: modules, pooling, lengths.

Owns their names and fields, as version 3 of that library writes them; the library itself is not needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
_POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder: Path, model: Any, tokenizer: Any) -> None:
    """Mean pooling over the tokens, then length 1, as all-mpnet-base-v2 and all-MiniLM-L6-v2 have it."""
    import torch
    import transformers

    versions = {
        "sentence_transformers": "3.0.1", "transformers": transformers.__version__, "pytorch": torch.__version__
    }  # fmt: skip
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(_MODULES)
    ]
    pooling = {"word_embedding_dimension": model.config.hidden_size}
    pooling |= {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in _POOLINGS}
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False})
    library = {"__version__": versions, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", library)
    (folder / "2_Normalize").mkdir()


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
