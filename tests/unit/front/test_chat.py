"""Chat templates: prompts equal transformers' own, and no template or conversation blocks the front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hfx.front import chat
from hfx.front.chat import ChatRenderer, checked_messages, checked_options
from hfx.front.refusals import RETRY, Refusal
from hfx.triton.front import Front
from hfx.triton.liveness.process_table import Process, processes
from hfx.triton.process import is_running
from tests.rigs.checkpoints.chat_tokenizers import run
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import SECONDS, Seen, connect, fronted, post, upstream
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

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenization.train("gpt2", ["a talk of this and that"], 300, 512)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_that_of_transformers(name: str, tokenizer: Any) -> None:
    expected = tokenizer.apply_chat_template(
        TALK, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    special = tokenizer.special_tokens_map
    assert run(lambda renderer: renderer.prompt(TEMPLATES[name], special, TALK)) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOPS, "processor time"),
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
    async def render(renderer: ChatRenderer) -> None:
        with pytest.raises(Refusal, match=words) as caught:
            await renderer.prompt(template, {}, TALK)
        assert (caught.value.status, caught.value.param) == (400, "messages")
        assert await renderer.prompt("{{ messages|length }}", {}, TALK) == "4"

    run(render)


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
def test_an_invalid_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(Refusal, match=r"Send|Give"):
        checked_messages(messages)


@pytest.mark.parametrize(
    ("count", "content"), [(400_000, "a"), (4, "é" * (1 << 20)), (1, [{"type": "text", "text": "a"}] * 400_000)]
)
def test_a_conversation_has_a_largest_size(count: int, content: Any) -> None:
    with pytest.raises(Refusal, match="at most") as caught:
        checked_messages([{"role": "user", "content": content}] * count + [{"role": "user", "content": "b"}])
    assert (caught.value.status, caught.value.param) == (413, "messages")


def test_the_largest_conversation_is_rendered() -> None:
    messages = checked_messages([{"role": "user", "content": "\U0001f600" * 512}] * 2048)
    prompt = run(lambda renderer: renderer.prompt(TEMPLATES["marked up"], {}, messages))
    assert len(prompt) > 512 * 2048


def test_variables_of_a_request_reach_the_template_as_in_transformers(tokenizer: Any) -> None:
    template = "{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}"
    options = {"enable_thinking": False}
    expected = tokenizer.apply_chat_template(TALK, chat_template=template, tokenize=False, **options)
    assert run(lambda renderer: renderer.prompt(template, checked_options(options), TALK)) == expected
    assert expected.endswith("</think>") and checked_options(None) == {}


@pytest.mark.parametrize("options", [{"messages": []}, {"tools": [], "a": 1}, {"add_generation_prompt": False}, "a"])
def test_chat_template_kwargs_cannot_replace_the_requests_own_variables(options: Any) -> None:
    with pytest.raises(Refusal, match="chat_template_kwargs") as caught:
        checked_options(options)
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert checked_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]


# Chats beside each other

SLOW = "{% if messages|length > 1 %}" + LOOPS + "{% endif %}"
ONE = TALK[:1]


async def rendered(renderer: ChatRenderer, template: str, messages: list[dict[str, str]]) -> str:
    """Return the prompt, or the message of the refusal."""
    try:
        return await renderer.prompt(template, {}, messages)
    except Refusal as refusal:
        return f"{refusal.status} {refusal.message}"


def test_a_quick_chat_does_not_wait_for_slow_ones() -> None:
    async def render(renderer: ChatRenderer) -> None:
        slow = [asyncio.create_task(rendered(renderer, f"{number}{SLOW}", TALK)) for number in range(4)]
        await asyncio.sleep(0.1)  # they have begun
        assert [await renderer.prompt("quick", {}, ONE) for _ in range(5)] == ["quick"] * 5
        assert not all(task.done() for task in slow)
        await cancelled(slow)

    run(render)


def test_a_slow_template_has_one_process_however_many_chats_it_has() -> None:
    async def render(renderer: ChatRenderer) -> None:
        slow = [asyncio.create_task(rendered(renderer, SLOW, TALK)) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert await renderer.prompt("new", {}, ONE) == "new"
        assert not any(task.done() for task in slow[1:])
        await cancelled(slow)

    run(render)


def test_chats_that_wait_have_a_largest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CHATS", 3)

    async def render(renderer: ChatRenderer) -> None:
        slow = []
        for _ in range(3):
            slow.append(asyncio.create_task(rendered(renderer, SLOW, TALK)))
            await asyncio.sleep(0.05)
        with pytest.raises(Refusal, match="as many as may") as caught:
            await renderer.prompt(SLOW, {}, ONE)
        assert (caught.value.status, caught.value.headers) == (503, [RETRY])
        assert await renderer.prompt("another", {}, ONE) == "another"
        await cancelled(slow)

    run(render)


def test_cancelled_chats_do_not_delay_other_chats() -> None:
    async def render(renderer: ChatRenderer) -> None:
        slow = [asyncio.create_task(rendered(renderer, SLOW, TALK)) for _ in range(20)]
        await asyncio.sleep(0.1)
        good = asyncio.create_task(rendered(renderer, SLOW + "good", ONE))
        same = asyncio.create_task(rendered(renderer, SLOW, ONE))
        await cancelled(slow)
        assert [await good, await same] == ["good", ""]  # in less than WAIT_SECONDS, or they were refused

    run(render)


@contextmanager
def chatting(repository: Path) -> Iterator[tuple[Front, Seen]]:
    """A front with the model `talker`, whose template is SLOW for TALK, and a record of its server's requests."""
    folder = repository / "talker_stream" / "1"
    folder.mkdir(parents=True)
    (folder / "chat.json").write_text(json.dumps({"template": SLOW + "hold", "special_tokens": {}}))
    types = {"text_input": "TYPE_STRING", "add_special_tokens": "TYPE_BOOL"}
    inputs = [{"name": name, "data_type": data_type, "dims": [1]} for name, data_type in types.items()]
    parameters = {"task": {"string_value": "text-generation"}}
    with upstream() as (port, seen), fronted(port, repository=str(repository)) as front:
        config = {"name": "talker", "input": inputs, "output": [], "parameters": parameters}
        seen.answers["/v2/models/talker/config"] = config
        yield front, seen


def chat_of(messages: list[dict[str, str]]) -> bytes:
    """Return the bytes of a request."""
    return post(json.dumps({"model": "talker", "messages": messages}).encode(), "/v1/chat/completions")


def chat_workers(front: Front) -> list[Process]:
    """Return the processes that render chats for a front."""
    found = [process for process in processes() if process.group == front.pid]
    return [process for process in found if str(chat.WORKER) in process.arguments]


def test_a_client_that_leaves_ends_the_rendering_of_its_chat(tmp_path: Path) -> None:
    with chatting(tmp_path) as (front, seen):
        with ExitStack() as leaving:
            for _ in range(20):
                leaving.enter_context(connect(front)).sendall(chat_of(TALK))
            wait_until(lambda: chat_workers(front))
        with connect(front) as patient:
            patient.sendall(chat_of(ONE))
            assert seen.entered.acquire(timeout=SECONDS)  # in less than WAIT_SECONDS, or it was refused
            [(_, _, body)] = seen.requests
            assert json.loads(body)["text_input"] == "hold"


def test_workers_end_with_the_front_also_while_they_render(tmp_path: Path) -> None:
    with chatting(tmp_path) as (front, _), connect(front) as client:
        client.sendall(chat_of(TALK))
        [worker] = wait_until(lambda: chat_workers(front))
        assert is_running(worker.pid, front.pid)
    wait_until(lambda: not is_running(worker.pid, worker.group))
