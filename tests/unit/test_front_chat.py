"""Chat templates in the front: rendered as transformers renders them, and kept in their sandbox."""

from __future__ import annotations

import pytest

from hfx.front.chat import render
from hfx.front.refusals import Refusal
from tests.unit.generation_tokenizers import byte_level

MESSAGES = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": 'A "quote", Ü and <tag>?'},
    {"role": "assistant", "content": "Yes."},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' -}}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "special tokens": (
        "{{ bos_token }}{% for m in messages %}[{{ loop.index }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    ),
    "json and loop control": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    ),
    "tools that are not there": "{% if tools %}{{ tools }}{% else %}{{ messages[0]['content'] }}{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_makes_what_transformers_makes(name: str) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(SPECIAL)
    expected = tokenizer.apply_chat_template(
        MESSAGES, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert render(TEMPLATES[name], SPECIAL, MESSAGES) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages | nothing }}",
        "{% if %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_is_a_400(template: str) -> None:
    with pytest.raises(Refusal) as refusal:
        render(template, SPECIAL, MESSAGES)
    assert (refusal.value.status, refusal.value.param) == (400, "messages")
