"""Chat templates: the prompts are transformers' own, and no template or conversation holds up the front."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hfx.front.chat import ChatRenderer, checked_messages
from hfx.front.refusals import Refusal
from tests.zoo import tokenization

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Ünicode <b>&amp;</b> \n two lines"},
    {"role": "assistant", "content": " yes "},
    {"role": "user", "content": "日本?"},
]
TEMPLATES = {
    "marked up": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "a system text apart": "{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% endif %}{{ bos_token }}\n  {% for m in rest %}\n"
    "    {% if loop.first %}{{ s | trim }}{% endif %}[{{ m.content | tojson }}]{{ eos_token }}\n  {% endfor %}",
    "loops and marks for training": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "a namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{{ m.content.split()[0] }}{% endfor %}{{ tools is defined and tools }}",
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenization.train("gpt2", ["a talk of this and that"], 300, 512)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_that_of_transformers(name: str, tokenizer: Any) -> None:
    expected = tokenizer.apply_chat_template(
        TALK, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert asyncio.run(ChatRenderer().prompt(TEMPLATES[name], tokenizer.special_tokens_map, TALK)) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "longer than"),
        ("{{ 'a' * 9999999999 }}", "memory"),
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for %}", "Expected"),
    ],
)
def test_a_template_that_can_not_be_rendered_is_a_400_and_the_next_one_is_not(template: str, words: str) -> None:
    async def render() -> None:
        renderer = ChatRenderer()
        with pytest.raises(Refusal, match=words) as caught:
            await renderer.prompt(template, {}, TALK)
        assert (caught.value.status, caught.value.param) == (400, "messages")
        assert await renderer.prompt("{{ messages|length }}", {}, TALK) == "4"

    asyncio.run(render())


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        ["a"],
        [{"content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(Refusal, match=r"Send|Give"):
        checked_messages(messages)


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert checked_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]
