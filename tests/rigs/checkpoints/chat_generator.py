"""A chat model whose tokenizer begins texts with a token that its chat template does not write.

Its weights are random; transformers' generate gives the expected answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.chat_tokenizers import KINDS, TEMPLATES

KIND, TEMPLATE = "▁ before the first word, a beginning (Llama 2)", "ChatML"
POSITIONS = 512


def save(folder: Path) -> Path:
    """Save the checkpoint in `folder`, as save_pretrained writes it."""
    tokenizer = KINDS[KIND]()
    tokenizer.chat_template = TEMPLATES[TEMPLATE]
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, **ends}
    tiny_generators.build("llama", **config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def answered(folder: Path, messages: Any, tokens: int) -> tuple[str, int]:
    """Return the `tokens` that transformers' generate gives after `messages`, and the prompt's number of tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ids = AutoModelForCausalLM.from_pretrained(folder).generate(prompt, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(ids[0, prompt.shape[1] :], skip_special_tokens=True), prompt.shape[1]
