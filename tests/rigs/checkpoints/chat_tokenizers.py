"""Tokenizers of the kinds that chat models have, chat templates, conversations, and a renderer for them.

The kinds differ in the special tokens around a text and in where they put "▁".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hfx.front.chat import ChatRenderer
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_fallback, byte_level, unigram, word_pieces
from tests.zoo import tokenization

MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
         "<end_of_turn>")  # fmt: skip


def _chatting(wrapped: Any, single: str, begin: str, end: str) -> Any:
    """Return the tokenizer with MARKS, `begin` and `end` as tokens; `single` is its template of one text."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend = wrapped.backend_tokenizer
    backend.add_special_tokens([begin, end, *MARKS])
    if single:
        tokens = [(token, backend.token_to_id(token)) for token in dict.fromkeys((begin, end))]
        backend.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=begin, eos_token=end, unk_token=wrapped.unk_token
    )


def _metaspace() -> Any:
    """Return a tokenizer with "▁" before the first word of a text only, as Llama 2's converted tokenizers."""
    from tokenizers import pre_tokenizers

    wrapped = tokenization.train("t5", LINES, 400, 64)
    wrapped.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return wrapped


KINDS: dict[str, Callable[[], Any]] = {
    "bytes, nothing added (GPT-2, Qwen)": lambda: _chatting(byte_level(), "", "<|endoftext|>", "<|im_end|>"),
    "bytes, a beginning (Llama 3)": lambda: _chatting(byte_level(), "<|bos|> $A", "<|bos|>", "<|eot_id|>"),
    "▁ before the first word, a beginning (Llama 2)": lambda: _chatting(_metaspace(), "<s> $A", "<s>", "</s>"),
    "▁ before every stretch, a beginning (TinyLlama)": lambda: _chatting(byte_fallback(), "<s> $A", "<s>", "</s>"),
    "unigram, a beginning and an end (add_eos_token)": lambda: _chatting(unigram(), "<s> $A </s>", "<s>", "</s>"),
    "word pieces, both (BERT)": lambda: _chatting(word_pieces(), "[CLS] $A [SEP]", "[CLS]", "[SEP]"),
}

TEMPLATES = {
    "ChatML": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "Llama 2": "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] | trim }}"
    "{{ ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}"
    "{% else %}{{ '<<SYS>>\n' + m['content'] + '\n<</SYS>>\n\n' }}{% endif %}{% endfor %}",
    "Llama 3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt }}",
    "Zephyr": "{% for m in messages %}\n{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}",
    "Gemma": "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' }}"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "no special tokens": "{% for m in messages %}{{ m['role'] | title }}: {{ m['content'] }}\n\n{% endfor %}Assistant:",
    "contents alone": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}

CONVERSATIONS = (
    [{"role": "user", "content": "Anna went from Paris to the market in Berlin."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Où est l'élève naïf? 日本語 👩‍👩‍👧‍👦"},
     {"role": "assistant", "content": " Ça va. "}, {"role": "user", "content": "  two  spaces\tand a tab\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "<s>[CLS]<|bos|><|im_end|></s><|eot_id|> is<end_of_turn>text [SEP]<|endoftext|>"}],
    [{"role": "system", "content": "हिन्दी में"}, {"role": "user", "content": " Привет, мир! e\u0301 "}],
)  # fmt: skip


def run(render: Callable[[ChatRenderer], Awaitable[Any]]) -> Any:
    """Return the result of `render` with a renderer, whose processes end afterwards."""

    async def main() -> Any:
        renderer = ChatRenderer()
        try:
            return await render(renderer)
        finally:
            for worker in renderer._idle:
                await worker.kill()

    return asyncio.run(main())
