"""Decoders with their published tokenizers: exported and opened, they give the texts of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.exporter.parity_texts import bundled_texts
from hfx.local.generator import LocalGenerator
from hfx.manifest import read_manifest
from hfx.names import MANIFEST_FILE
from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME, read_spec
from tests.rigs.checkpoints import chat_tokenizers, generator_checkpoints, tiny_generators
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_fallback, byte_level
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_texts")]

POSITIONS, TOKENS = 256, 16
SETTINGS = {"max_new_tokens": TOKENS, "no_repeat_ngram_size": 2}  # random weights would repeat one token
TEXTS = (*LINES, "a", " ".join(LINES[:2]))


def _wrapped(name: str, backend: Any, begin: str = "", end: str = "<|endoftext|>", **options: Any) -> Any:
    """Return `backend` in transformers' class `name`, with `begin` before each text."""
    import transformers
    from tokenizers import processors

    backend.add_special_tokens([token for token in (begin, end) if token])
    if begin:
        tokens = [(begin, backend.token_to_id(begin))]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=tokens
        )
    kind = getattr(transformers, name)
    return kind(tokenizer_object=backend, bos_token=begin or None, eos_token=end, pad_token=end, **options)


def _composed() -> Any:
    """Return Qwen's tokenizer, which composes characters first."""
    from tokenizers import normalizers

    backend = byte_level().backend_tokenizer
    backend.normalizer = normalizers.NFC()
    return _wrapped("Qwen2TokenizerFast", backend)


def _gemma() -> Any:
    """Return Gemma's tokenizer, which is like Llama's without a space before the text."""
    from tokenizers import decoders, normalizers

    backend = byte_fallback().backend_tokenizer
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrapped("GemmaTokenizerFast", backend, "<bos>", "<eos>")


# Generator of tiny_generators -> a tokenizer as its published checkpoints have. test_families_parity.py compares the
# ids of all of them; some sorts of tokenizers are exported.
DECODERS: dict[str, Callable[[], Any]] = {
    "llama-llama3": chat_tokenizers.KINDS["bytes, a beginning (Llama 3)"],
    "neox": lambda: _wrapped("GPTNeoXTokenizerFast", byte_level().backend_tokenizer),
    "opt": lambda: _wrapped("GPT2TokenizerFast", byte_level().backend_tokenizer, "</s>", "</s>"),
    "gemma": _gemma,
    "smollm": chat_tokenizers.KINDS["bytes, a beginning (Llama 3)"],
    "mistral": lambda: _wrapped("LlamaTokenizerFast", byte_fallback().backend_tokenizer, "<s>", "</s>"),
    "qwen3-window": _composed,
}


@cache
def saved(name: str, root: Path) -> Path:
    """Return the checkpoint of `name`."""
    tokenizer = DECODERS[name]()
    tokenizer.model_max_length = POSITIONS
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_generators.build(
        name, vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, pad_token_id=tokenizer.pad_token_id, **ids
    )
    return generator_checkpoints.save_whole(root / name, model, tokenizer, SETTINGS)


@cache
def exported(name: str, root: Path, *options: str) -> tuple[Path, Path]:
    """Return the checkpoint of `name`, and the repository with its export."""
    checkpoint, repository = saved(name, root), root / "-".join(["repository", *options])
    words = ["export", str(checkpoint), "--name", name, "--device", "cpu", "--repository", str(repository), *options]
    assert main(words) == 0
    return checkpoint, repository


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoders")


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", few(DECODERS, "llama-llama3", "gemma"))
def test_texts_are_those_of_transformers(name: str, settings: dict[str, Any], root: Path) -> None:
    import torch
    import transformers

    checkpoint, repository = exported(name, root)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    texts = [*TEXTS, *(text[:100] for text in bundled_texts()[:10])]
    with LocalGenerator.open(repository, name) as generator:
        answers = generator.infer_all([{"text_input": text, **settings} for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            found = model.generate(**inputs, **settings)[0, inputs["input_ids"].shape[1] :]
        assert answer["text_output"] == tokenizer.decode(found, skip_special_tokens=True)
    assert len({answer["text_output"] for answer in answers}) > len(texts) // 2


# test_families_formats.py quantizes the matrices of each decoder.
@pytest.mark.parametrize("name", few(DECODERS, "gemma"))
def test_int8_is_published_on_native_operators(name: str, root: Path) -> None:
    """With random weights, next tokens are near ties: 0.97 of them stayed the same."""
    _, repository = exported(name, root, "--quantize", "--max-drop", "0.07")
    manifest = read_manifest(repository / name / MANIFEST_FILE)
    figures: Any = manifest.parity["cpu"]
    assert figures["greedy"]["batch_variants"] == figures["beams"]["batch_variants"] == 0
    assert read_spec(repository / f"{name}_stream" / "1" / "cpu").runtime == (NATIVE if HAS_NATIVE else ONNXRUNTIME)
