"""Small random checkpoints of many configurations, written by sentence-transformers itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.checkpoints.tiny_checkpoints import HIDDEN, POSITIONS, SPECIALS, WORDS
from tests.zoo import tokenization

DECODER_POSITIONS, STATIC_WIDTH = 400, 24
CASED_WORDS = (*WORDS, "The", "Cat", "Paris", "A")
BARE: Any = {"create_model_card": False}  # whose template takes as long to compile as all else to write
TEXTS = (
    "the cat sat in paris.",
    "",
    "a bad film?",
    "THE CAT SAT in Paris. A dog",
    "good",
    "the dog ran in a good film. " * 3,
    "the dog ran in a good film. " * 90,
    "[SEP] a [MASK] b [CLS]",
    *(f"a {'b ' * n}cats" for n in range(8, 64, 5)),
)


@dataclass(frozen=True)
class Recipe:
    """`modules` behind the transformer, `settings` of the library's model, `transformer` settings of its first module.

    `cased` tokenizers do not lowercase; without `special` tokens a text has none around it. The transformer is a BERT,
    or a `decoder` of this model type, whose tokenizer pads on a `side`, or the encoder of a T5. A BERT has these
    `words`.
    """

    modules: tuple[Any, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    transformer: dict[str, Any] = field(default_factory=dict)
    cased: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    decoder: str = ""
    side: str = "left"
    words: tuple[str, ...] = CASED_WORDS


def base(folder: Path, recipe: Recipe, head: str = "Model", **config: Any) -> Path:
    """Save the transformer and its tokenizer by transformers."""
    from transformers import BertTokenizerFast

    if recipe.decoder in ("t5", "mt5"):
        return _t5(folder, recipe)
    if recipe.decoder:
        return _decoder(folder, recipe)
    model = tiny_checkpoints.bert(
        head, vocab_size=len(SPECIALS) + len(recipe.words), initializer_range=0.3, **recipe.config, **config
    )
    model.save_pretrained(folder)
    BertTokenizerFast(
        tokenizer_object=bert_words(recipe.words, recipe.cased),
        model_max_length=POSITIONS,
        do_lower_case=not recipe.cased,
    ).save_pretrained(folder)
    return folder


def _t5(folder: Path, recipe: Recipe) -> Path:
    """Save the encoder of a T5, as its class for embeddings saves it."""
    from transformers import AutoConfig, AutoModelForTextEncoding

    tokenizer = tokenization.train("t5", TEXTS, 400, DECODER_POSITIONS)
    tokenizer.save_pretrained(folder)
    sizes = {"d_model": HIDDEN, "d_kv": 16, "num_heads": 2, "d_ff": 48, "num_layers": 2, "vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(recipe.decoder, **(sizes | recipe.config))
    AutoModelForTextEncoding.from_config(config).save_pretrained(folder)
    return folder


def bert_words(words: tuple[str, ...], cased: bool) -> Any:
    """Return BERT's tokenizer of SPECIALS and `words`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _decoder(folder: Path, recipe: Recipe) -> Path:
    """Save a decoder as published embedders: Qwen's byte-level pieces and an end, or Gemma's "▁" between two tokens."""
    from tokenizers import processors

    make, single = (_qwen_pieces, "$A {end}") if "qwen" in recipe.decoder else (_gemma_pieces, "{begin} $A {end}")
    tokenizer = make(padding_side=recipe.side, model_max_length=DECODER_POSITIONS)
    ends = {"begin": tokenizer.bos_token, "end": tokenizer.eos_token}
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single.format(**ends),
        pair="$A $B",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in ends.values() if token],
    )
    tokenizer.save_pretrained(folder)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"vocab_size": len(tokenizer), "hidden_size": HIDDEN, "max_position_embeddings": DECODER_POSITIONS}
    tiny_encoders.build(recipe.decoder, "AutoModel", **(sizes | ids | recipe.config)).save_pretrained(folder)
    return folder


def _qwen_pieces(**settings: Any) -> Any:
    from transformers import Qwen2Tokenizer

    vocabulary, merges = learned_pieces(tokenization.train("gpt2", TEXTS, 400, 64))
    return Qwen2Tokenizer(vocab=vocabulary | {"<|im_end|>": len(vocabulary)}, merges=merges, **settings)


def _gemma_pieces(**settings: Any) -> Any:
    from tokenizers import Tokenizer, models, normalizers, trainers
    from transformers import GemmaTokenizer

    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    pieces.train_from_iterator([word for text in TEXTS for word in text.replace(" ", " \n").split("\n")], trainer)
    vocabulary, merges = learned_pieces(pieces)
    return GemmaTokenizer(vocab=vocabulary, merges=merges, **settings)


def learned_pieces(tokenizer: Any) -> tuple[dict[str, int], list[Any]]:
    """Return the vocabulary and the merges of a trained byte-pair tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def write_embedder(folder: Path, recipe: Recipe) -> Any:
    """Save the recipe's SentenceTransformer in `folder`; return the model as the library reads it back."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    torch.manual_seed(1)
    source = base(folder / "base", recipe)
    modules = [Transformer(str(source), **recipe.transformer), *(make() for make in recipe.modules)]
    SentenceTransformer(modules=modules, device="cpu", **recipe.settings).save(str(folder / "model"), **BARE)
    return SentenceTransformer(str(folder / "model"), device="cpu")


def static_embedding(folder: Path, *layers: Any, cased: bool = False, **settings: Any) -> Any:
    """Save a SentenceTransformer of a StaticEmbedding and `layers`; return the model as the library reads it back.

    Its tokenizer is BERT's, with special tokens around a text, which the library leaves out.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(1)
    words = bert_words(CASED_WORDS, cased)
    table = torch.randn(words.get_vocab_size(), STATIC_WIDTH)
    modules = [StaticEmbedding(words, embedding_weights=table), *(make() for make in layers)]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder), **BARE)
    return SentenceTransformer(str(folder), device="cpu")


def write_cross_encoder(folder: Path, recipe: Recipe, labels: int = 1) -> Any:
    """Save the recipe's CrossEncoder in `folder`; return the model as the library reads it back."""
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer

    torch.manual_seed(1)
    if recipe.modules:
        source = base(folder / "base", recipe)
        modules = [Transformer(str(source), **recipe.transformer), *(make() for make in recipe.modules)]
        CrossEncoder(modules=modules, device="cpu", **recipe.settings).save_pretrained(str(folder / "model"), **BARE)
    else:
        source = base(folder / "base", recipe, "ForSequenceClassification", num_labels=labels)
        CrossEncoder(str(source), device="cpu", **recipe.settings).save_pretrained(str(folder / "model"), **BARE)
    return CrossEncoder(str(folder / "model"), device="cpu")


def write_sparse_encoder(folder: Path, recipe: Recipe) -> Any:
    """Save the recipe's SparseEncoder in `folder`; return the model as the library reads it back."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer

    torch.manual_seed(1)
    source = base(folder / "base", recipe, "ForMaskedLM")
    modules = [
        Transformer(str(source), transformer_task="fill-mask", **recipe.transformer),
        *(make() for make in recipe.modules),
    ]
    SparseEncoder(modules=modules, device="cpu", **recipe.settings).save(str(folder / "model"), **BARE)
    return SparseEncoder(str(folder / "model"), device="cpu")


def write_router(folder: Path, recipe: Recipe, **settings: Any) -> Any:
    """Save a SparseEncoder that looks queries up; return the model as the library reads it back.

    Documents pass through the recipe's modules behind the transformer.
    """
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import AutoTokenizer

    torch.manual_seed(1)
    source = base(folder / "base", recipe, "ForMaskedLM")
    first = Transformer(str(source), transformer_task="fill-mask", **recipe.transformer)
    tokenizer = AutoTokenizer.from_pretrained(source)
    table = SparseStaticEmbedding(tokenizer, torch.rand(len(tokenizer)) * 3, frozen=True)
    router = Router.for_query_document([table], [first, *(make() for make in recipe.modules)], **settings)
    SparseEncoder(modules=[router], device="cpu", **recipe.settings).save(str(folder / "model"), **BARE)
    return SparseEncoder(str(folder / "model"), device="cpu")


def write_multi_vector_encoder(folder: Path, recipe: Recipe) -> Any:
    """Save the recipe's MultiVectorEncoder in `folder`; return the model as the library reads it back."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer

    torch.manual_seed(1)
    source = base(folder / "base", recipe)
    modules = [Transformer(str(source), **recipe.transformer), *(make() for make in recipe.modules)]
    MultiVectorEncoder(modules=modules, device="cpu", **recipe.settings).save_pretrained(str(folder / "model"), **BARE)
    return MultiVectorEncoder(str(folder / "model"), device="cpu")


def token_mask(**settings: Any) -> Any:
    """Return a maker of the module that says which tokens' vectors count."""
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    return lambda: MultiVectorMask(**settings)


def splade(**settings: Any) -> Any:
    """Return a maker of a SPLADE pooling."""
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    return lambda: SpladePooling(**settings)


def pooling(*modes: str, **settings: Any) -> Any:
    """Return a maker of a pooling module."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    return lambda: Pooling(HIDDEN, modes if len(modes) > 1 else modes[0], **settings)


def dense(inputs: int, outputs: int, activation: str = "Tanh", **settings: Any) -> Any:
    """Return a maker of a dense module."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    return lambda: Dense(inputs, outputs, activation_function=getattr(torch.nn, activation)(), **settings)


def normalize(**settings: Any) -> Any:
    """Return the library's Normalize module."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    return Normalize(**settings)


def layer_norm(width: int) -> Any:
    """Return a maker of a layer norm with random weights."""
    import torch
    from sentence_transformers.sentence_transformer.modules import LayerNorm

    def make() -> Any:
        module = LayerNorm(width)
        torch.nn.init.normal_(module.norm.weight)
        torch.nn.init.normal_(module.norm.bias)
        return module

    return make


def dropout() -> Any:
    """Return a module that does nothing outside training."""
    from sentence_transformers.sentence_transformer.modules import Dropout

    return Dropout(0.3)


def furthest(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the largest 1 - cosine of two lists of vectors."""
    import numpy as np

    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.max(1 - (a * b).sum(1) / norms))
