"""transformers: the peer on torch; and `generate` and the pipeline over any model that offers them.

On CPU in fp32 or bf16, on a GPU in fp16. The variant "compiled" has a static cache, with which transformers compiles
the net of a generator; other nets are compiled by torch. "sdpa" asks for torch's attention by name, and a mask that
hides nothing is left out, as torch's flash attention takes none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.child import Run
from bench.packages import Packages
from bench.peers import Batch, Ids, Model

PACKAGES: tuple[Packages, ...] = ()
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
COMPILED, SDPA = "compiled", "sdpa"


class Generating:
    """`generate` on token ids."""

    def __init__(self, net: Any, model: Model, variant: str = "") -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        self._net, self._start = net, model.start
        self._cache = {"cache_implementation": "static"} if variant == COMPILED else {}
        self._settings: Any = copy.deepcopy(net.generation_config)
        ends = self._settings.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        if self._settings.pad_token_id is None:
            self._settings.pad_token_id = min((each for each in self._ends if each is not None), default=0)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row, up to the first end token."""
        import torch

        ids, mask = self._padded(prompts)
        config = copy.deepcopy(self._settings)
        config.update(
            do_sample=False,
            num_beams=batch.beams,
            no_repeat_ngram_size=batch.ngram,
            max_new_tokens=batch.new,
            min_new_tokens=batch.new,
            min_length=0,
            max_length=None,
            decoder_start_token_id=self._start,
            **self._cache,
        )
        self._net.generation_config = config  # the defaults of a passed one would yield to the model's own
        with torch.inference_mode():
            found = self._net.generate(input_ids=ids, attention_mask=mask)
        before = 1 if self._start is not None else ids.shape[1]
        return [self._cut(row) for row in found[:, before:].tolist()]

    def _padded(self, prompts: Sequence[Ids]) -> tuple[Any, Any]:
        """Ids and mask; a decoder's prompts end together, as the new tokens follow them."""
        import torch

        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._settings.pad_token_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            place = slice(0, len(prompt)) if self._start is not None else slice(width - len(prompt), width)
            ids[row, place] = torch.tensor(prompt)
            mask[row, place] = 1
        return ids.to(self._net.device), mask.to(self._net.device)

    def _cut(self, row: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(row) if token in self._ends), len(row))
        return row[: end + 1]


class Encoding:
    """A function from numpy's tensors to a net's output, behind the checkpoint's tokenizer."""

    def __init__(self, model: Model, run: Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]]) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.folder)
        self._longest, self._run = model.longest, run

    def net(self, texts: Sequence[str]) -> Run:
        """The net alone."""
        tensors = self._tensors(texts)
        return lambda: self._run(tensors)

    def _tensors(self, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
        found = self._tokenizer(
            list(texts), return_tensors="np", padding=True, truncation=True, max_length=self._longest
        )
        return dict(found)


class Labelling(Encoding):
    """The likeliest label."""

    def labels(self, texts: Sequence[str]) -> list[str]:
        """The label of each text."""
        return [str(label) for label in self._run(self._tensors(texts)).argmax(axis=1)]


class Embedding(Encoding):
    """The mean of the hidden states of each text's tokens."""

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text."""
        tensors = self._tensors(texts)
        mask = tensors["attention_mask"][..., None].astype(np.float32)
        total: NDArray[np.float32] = (self._run(tensors) * mask).sum(axis=1)
        return total / mask.sum(axis=1)


class Classifying:
    """The pipeline, and the net alone."""

    def __init__(self, net: Any, model: Model, variant: str = "") -> None:
        import torch
        import transformers
        from transformers import AutoTokenizer, pipeline

        transformers.logging.set_verbosity_error()
        self._net: Any = torch.compile(net) if variant == COMPILED else net
        self._longest, self._variant = model.longest, variant
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.folder)
        self._pipeline: Any = pipeline(
            "text-classification", model=net, tokenizer=self._tokenizer, device=torch.device(net.device)
        )

    def labels(self, texts: Sequence[str]) -> list[str]:
        """The likeliest label of each text."""
        found = self._pipeline(list(texts), batch_size=len(texts), truncation=True, max_length=self._longest)
        return [each["label"] for each in found]

    def net(self, texts: Sequence[str]) -> Run:
        """The net alone."""
        import torch

        tensors = self._tokenizer(list(texts), return_tensors="pt", padding=True)
        unused = {"token_type_ids"}
        if self._variant == SDPA and tensors["attention_mask"].all():
            unused.add("attention_mask")
        feed = {name: tensor for name, tensor in tensors.items() if name not in unused}

        def run() -> None:
            with torch.inference_mode():
                self._net(**{name: tensor.to(self._net.device) for name, tensor in feed.items()}).logits.cpu()

        return run


def wrapped(net: Any, model: Model, variant: str = "") -> Generating | Classifying | Embedding:
    """A net of the model's kind."""
    if model.kind == "embedder":
        return Embedding(model, _hidden_states(net))
    return Classifying(net, model, variant) if model.kind == "classifier" else Generating(net, model, variant)


def _hidden_states(net: Any) -> Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]]:
    import torch

    def run(tensors: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        with torch.inference_mode():
            found = net(**{name: torch.from_numpy(values) for name, values in tensors.items()}).last_hidden_state
        rows: NDArray[np.float32] = found.float().numpy()
        return rows

    return run


def open_net(
    model: Model, folder: str, precision: str, threads: int, variant: str
) -> Generating | Classifying | Embedding:
    """The checkpoint in eval mode."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    kind = getattr(transformers, model.transformers_class)
    attention = {"attn_implementation": SDPA} if variant == SDPA else {}
    net = kind.from_pretrained(model.folder, dtype=getattr(torch, TYPES[precision]), **attention).eval()
    return wrapped(net.to("cuda") if precision == "fp16" else net, model, variant)
