"""Small random decoders as re-rankers: by the logits of two tokens, or with a head of one label."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.checkpoints.sentence_models import BARE, TEXTS, learned_pieces
from tests.zoo import tokenization

POSITIONS, LENGTH = 400, 160
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
CONTENT = "<Instruct>: {}\n<Query>: {}\n<Document>: {}"
# Qwen3-Reranker's template; jinja2 drops the end of the last line.
QWEN_TEMPLATE = (
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("'
    + INSTRUCTION
    + '") -%}\n{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    + PREFIX
    + CONTENT.format("{{ instruction }}", "{{ query }}", "{{ document }}")
    + SUFFIX
    + "\n"
)
# The query as a system's message, and a prompt as one before it, as ChatML has them; messages of parts.
CHAT_TEMPLATE = (
    "{% set names = {'query': 'system', 'document': 'user'} %}{% for message in messages %}"
    "<|im_start|>{{ names.get(message['role'], 'prompt') }}\n{{ message.content[0].text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Messages of plain texts, and an answer without thinking, as Qwen3 has them.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
PLAIN_CHAT = "{% for message in messages if message.role in ('system', 'user') %}{{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class Ranker:
    """A decoder of a `model_type` with a `config`, and the `template` of its tokenizer."""

    model_type: str = "qwen3"
    config: dict[str, Any] = field(default_factory=dict)
    template: str = QWEN_TEMPLATE
    length: int = LENGTH


def pieces(ranker: Ranker) -> Any:
    """Return Qwen's byte-level pieces with the tokens of its chats, "yes" and "no"; none of them is padding."""
    from transformers import Qwen2Tokenizer

    texts = [*TEXTS, PREFIX + CONTENT.format(INSTRUCTION, "", "") + SUFFIX, *["yes", "no"] * 20] * 4
    vocabulary, merges = learned_pieces(tokenization.train("gpt2", texts, 700, 64))
    assert {"yes", "no"} <= vocabulary.keys()
    tokens = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>"]
    vocabulary |= {token: len(vocabulary) + at for at, token in enumerate(tokens)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary, merges=merges, padding_side="left", model_max_length=ranker.length, eos_token="<|im_end|>"
    )
    tokenizer.add_tokens(tokens)
    tokenizer.chat_template = ranker.template or None
    return tokenizer


def write_decoder(folder: Path, ranker: Ranker, auto_class: str = "AutoModelForCausalLM", **config: Any) -> Any:
    """Save a decoder and its tokenizer as transformers does; return the tokenizer."""
    tokenizer = pieces(ranker)
    sizes = {"vocab_size": len(tokenizer) + 3, "max_position_embeddings": POSITIONS}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_encoders.build(ranker.model_type, auto_class, **(sizes | ids | ranker.config | config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_logit_ranker(folder: Path, ranker: Ranker, both: bool = True, **settings: Any) -> Any:
    """Save a CrossEncoder that scores by the logit of "yes", and return it as the library reads it.

    With `both`, the logit of "no" is subtracted.
    """
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    tokenizer = write_decoder(folder / "base", ranker)
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    transformer = Transformer(
        str(folder / "base"), transformer_task="text-generation", **settings.pop("transformer", {})
    )
    modules = [transformer, LogitScore(yes, no if both else None)]
    CrossEncoder(modules=modules, device="cpu", **settings).save_pretrained(str(folder / "model"), **BARE)
    return CrossEncoder(str(folder / "model"), device="cpu")


def write_classifier(folder: Path, ranker: Ranker, labels: int = 1, **settings: Any) -> Any:
    """Save a CrossEncoder of a decoder with a head of `labels`, and return it as the library reads it."""
    from sentence_transformers import CrossEncoder

    write_decoder(folder / "base", ranker, "AutoModelForSequenceClassification", num_labels=labels)
    CrossEncoder(str(folder / "base"), device="cpu", **settings).save_pretrained(str(folder / "model"), **BARE)
    return CrossEncoder(str(folder / "model"), device="cpu")
