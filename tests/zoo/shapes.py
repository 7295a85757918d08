"""Full-size checkpoints with random weights: those of hfx perf, and one for sentence-transformers.

Owns what only that library's files need; sizes, weights and tokenizers are bench.checkpoints'.
"""

from __future__ import annotations

from pathlib import Path

from bench import checkpoints
from bench.checkpoints import Shape
from tests.zoo import cache, sentence_transformers_files

# sentence-transformers/all-MiniLM-L6-v2
MINILM = Shape("minilm-l6", "BertModel", "BertConfig", {
    "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "max_position_embeddings": 512, "type_vocab_size": 2,
}, "bert", 256)  # fmt: skip

SHAPES = (*checkpoints.SHAPES, MINILM)
BY_NAME = {shape.name: shape for shape in SHAPES}
_SOURCES = ("sentence_transformers_files.py", "shapes.py")


def built(name: str) -> Path:
    """The folder of the shape NAME. Raises KeyError for an unknown name."""
    if name != MINILM.name:
        return checkpoints.checkpoint(name)
    return cache.built(name, cache.digest(MINILM, _SOURCES), lambda folder: write(MINILM, folder))


def write(shape: Shape, folder: Path) -> dict[str, object]:
    """Write the checkpoint of SHAPE into FOLDER."""
    checkpoints.write(shape, folder)
    if shape is MINILM:
        from transformers import AutoModel, AutoTokenizer

        model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        sentence_transformers_files.write(folder, model, tokenizer)
    return {}
