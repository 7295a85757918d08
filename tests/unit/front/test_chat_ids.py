"""Chats reach the engine as the token ids of transformers: a rendered chat gets no further special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation.folders import CHAT_FILE, TOKENIZER, chat_json
from hfx.exporter.model_files import write_json, write_tokenizer_json
from hfx.front.catalog import served_model
from hfx.front.chat import ChatRenderer, chat_prompt, chat_settings
from hfx.front.model_files import ModelFiles
from hfx.names import ADD_SPECIAL_TOKENS
from hfx.python_backends.generation.configuration import resolve_config
from hfx.python_backends.generation.generator import _tokenizer
from hfx.python_backends.generation.prompts import PromptEncoder
from tests.rigs.checkpoints.chat_tokenizers import CONVERSATIONS, KINDS, TEMPLATES, run
from tests.rigs.engine.generation_models import configuration

NAME = "talker"


def published(repository: Path, tokenizer: Any) -> Path:
    """The engine's folder with the files that make a prompt of messages."""
    folder = repository / f"{NAME}_stream" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer_json(tokenizer, folder / TOKENIZER)
    write_json(folder / CHAT_FILE, chat_json(tokenizer, tokenizer.chat_template))
    return folder


def model(*inputs: str) -> Any:
    """Return the served model as Triton describes it, with `inputs` beside its text."""
    rows = [{"name": name, "data_type": "TYPE_BOOL", "dims": [1]} for name in inputs]
    text = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}
    task = {"task": {"string_value": "text-generation"}}
    return served_model({"name": NAME, "input": [text, *rows], "output": [], "parameters": task})


async def served_ids(renderer: ChatRenderer, folder: Path, conversation: Any, *inputs: str) -> tuple[int, ...]:
    """Return the prompt that the engine gets for a conversation that the front renders."""
    served = model(*inputs)
    text = await chat_prompt(ModelFiles(str(folder.parents[1])), served, conversation, renderer)
    config = configuration(max_length=4096)
    return (
        PromptEncoder(_tokenizer(folder / TOKENIZER), config)
        .encode(text, resolve_config(chat_settings(served, {}), config))
        .prompt
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_has_the_ids_of_transformers(kind: str, tmp_path: Path) -> None:
    tokenizer = KINDS[kind]()
    differing = []

    async def compare(renderer: ChatRenderer) -> None:
        for name, template in TEMPLATES.items():
            tokenizer.chat_template = template
            folder = published(tmp_path, tokenizer)
            for conversation in CONVERSATIONS:
                expected = tokenizer.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True)
                ids = await served_ids(renderer, folder, conversation, ADD_SPECIAL_TOKENS)
                if list(ids) != expected["input_ids"]:
                    differing.append((name, conversation, list(ids)[:6], expected["input_ids"][:6]))

    run(compare)
    assert not differing, f"{len(differing)} of {len(TEMPLATES) * len(CONVERSATIONS)}: {json.dumps(differing[0])}"


def test_a_model_without_the_setting_gets_its_beginning_once(tmp_path: Path) -> None:
    tokenizer = KINDS["bytes, a beginning (Llama 3)"]()
    tokenizer.chat_template = TEMPLATES["Llama 3"]
    folder = published(tmp_path, tokenizer)
    expected = tokenizer.apply_chat_template(CONVERSATIONS[0], tokenize=True, add_generation_prompt=True)
    assert chat_settings(model(), {"top_k": 3}) == {"top_k": 3}
    assert list(run(lambda renderer: served_ids(renderer, folder, CONVERSATIONS[0]))) == expected["input_ids"]


def test_a_caller_may_have_special_tokens_around_a_chat() -> None:
    for value, expected in ((None, False), (False, False), (True, True)):
        assert chat_settings(model(ADD_SPECIAL_TOKENS), {ADD_SPECIAL_TOKENS: value}) == {ADD_SPECIAL_TOKENS: expected}
