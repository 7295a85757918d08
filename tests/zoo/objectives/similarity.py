"""One vector a sentence (mean of its tokens, length 1), whose cosine is the similarity: squared error, Spearman."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.zoo.data.similarity import Example
from tests.zoo.objectives.objective import Feature, Objective, batches, inputs, tokens

# The files of the sentence-transformers library, as its version 3 writes them; the library itself is not needed.
_MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
_POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def objective() -> Objective:
    """For examples with two sentences and a score."""
    return Objective(
        head="Model", metric="spearman", texts=lambda e: [e.first, e.second], encode=_encode, loss=_loss,
        evaluate=_evaluate, extra_files=_write_modules,
    )  # fmt: skip


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The correlation of the ranks, -1..1; equal values share the mean of their ranks."""
    import numpy as np

    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    import numpy as np

    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: list[float] = (last - (counts - 1) / 2)[inverse].tolist()
    return means


def _encode(tokenizer: Any, examples: Sequence[Example]) -> list[Feature]:
    firsts, seconds = tokens(tokenizer, [e.first for e in examples]), tokens(tokenizer, [e.second for e in examples])
    return [
        first | {"second": second, "score": example.score}
        for first, second, example in zip(firsts, seconds, examples, strict=True)
    ]


def _cosines(model: Any, features: list[Feature]) -> Any:
    first, second = _embed(model, features), _embed(model, [f["second"] for f in features])
    return (first * second).sum(-1)


def _embed(model: Any, features: list[Feature]) -> Any:
    import torch

    batch = inputs(model, features)
    mask = batch["attention_mask"].unsqueeze(-1).float()
    mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    return torch.nn.functional.mse_loss(_cosines(model, features), torch.tensor([f["score"] for f in features]))


def _evaluate(model: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
    cosines = [c for batch in batches(_encode(tokenizer, examples)) for c in _cosines(model, batch).tolist()]
    return spearman(cosines, [e.score for e in examples])


def _write_modules(folder: Path, model: Any, tokenizer: Any) -> None:
    """Mean pooling over the tokens, then length 1, as all-mpnet-base-v2 has it."""
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
