"""Rendering of a conversation's messages into one prompt, with the chat template of the model's checkpoint."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfx.extras import install_command
from hfx.front.catalog import ServedModel
from hfx.front.fields import check_count, shown, text
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Refusal, invalid, overloaded
from hfx.names import ADD_SPECIAL_TOKENS
from hfx.process import LineChild

WORKERS = 4  # processes
SECONDS = 5.0  # for a render; most templates take milliseconds, and the start of a process takes 0.2 s
WAIT_SECONDS = 10.0
PROCESSOR_SECONDS = (0.25, 1.0)  # for the first try of a render, and for the second if the first takes longer
CHATS = 256  # for one template at a time
MESSAGES, BYTES = 2048, 4 << 20  # of a conversation; so many bytes are a million tokens
ANSWER_BYTES = 64 << 20  # for a prompt as JSON
WORKER = Path(__file__).with_name("chat_worker.py")
CONSTANT = {"add_generation_prompt": True, "tools": None, "documents": None}  # as transformers gives them
NO_OPTIONS: Mapping[str, Any] = {}
ROLES = ("system", "developer", "user", "assistant", "tool")


async def chat_prompt(
    files: ModelFiles,
    model: ServedModel,
    messages: Any,
    renderer: ChatRenderer | None = None,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> str:
    """Return the prompt that the model continues with its next message. `options` are variables for the template.

    Raises Refusal (400, 413, 501, 503).
    """
    chat = files.chat(model)
    if chat is None:
        message = f"The model {model.name!r} has no chat template. Send its prompt to /v1/completions."
        raise invalid(message, "messages")
    conversation = checked_messages(messages)
    variables = {**options, **chat["special_tokens"]}
    prompt = await (renderer or _RENDERER).prompt(chat["template"], variables, conversation)
    if ADD_SPECIAL_TOKENS in model.metadata.input_types:
        return prompt
    begin = chat["special_tokens"].get("bos_token", "")
    if not begin or not prompt.startswith(begin):
        return prompt
    [first] = await files.tokenized(model, ["a"], lambda _, encoding: encoding.tokens[0])
    return prompt[len(begin) :] if first == begin else prompt  # the tokenizer would add the token a second time


def chat_settings(model: ServedModel, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `fields` with `add_special_tokens` false unless they set it, because chat templates write special tokens.

    transformers encodes a rendered chat in the same way. A model that was published before the setting existed always
    adds a beginning token, which `chat_prompt` therefore removes from the prompt.
    """
    if ADD_SPECIAL_TOKENS not in model.metadata.input_types or fields.get(ADD_SPECIAL_TOKENS) is not None:
        return fields
    return {**fields, ADD_SPECIAL_TOKENS: False}


def checked_options(options: Any) -> dict[str, Any]:
    """Return a request's variables for the template, such as `enable_thinking`.

    Raises Refusal (400) for a variable that hfx sets itself.
    """
    name = "chat_template_kwargs"
    if options is not None and not isinstance(options, dict):
        raise invalid(f"{name} is {shown(options)}. Send an object.", name)
    if fixed := {*CONSTANT, "messages"} & (options or {}).keys():
        raise invalid(f"{name} has {min(fixed)}, which is not supported. Leave it out.", name)
    return options or {}


def checked_messages(messages: Any) -> list[dict[str, str]]:
    """Return the messages, each with a role and a text. Parts of a content are joined. Raises Refusal (400, 413)."""
    if not isinstance(messages, list) or not messages:
        raise invalid(f"messages is {shown(messages)}. Send a list of messages.", "messages")
    check_count(len(messages), "messages", MESSAGES)
    checked = [_message(message) for message in messages]
    size = sum(len(message["content"].encode()) for message in checked)
    if size > BYTES:
        raise Refusal(413, f"The messages have {size} bytes of text. Send {BYTES} at most.", param="messages")
    return checked


@dataclass(eq=False)
class _Template:
    """The state of one template, of which one chat is rendered at a time.

    `chats` counts the chats that are rendered or wait for it. `is_slow` is whether the last render was slow.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    chats: int = 0
    is_slow: bool = False


class ChatRenderer:
    """Renders templates in processes (chat_worker.py), one chat of each template at a time, for one event loop.

    A template is a program that comes with the checkpoint, and jinja2's sandbox limits neither its time nor its memory.
    A process that takes too much is killed. Half of the processes are for quick renders. A render that takes more than
    the first of PROCESSOR_SECONDS is repeated in the other half, for slow ones, where the next chat of its template is
    rendered too.
    """

    def __init__(self) -> None:
        self._templates: defaultdict[str, _Template] = defaultdict(_Template)
        self._slots = [(seconds, asyncio.Semaphore(WORKERS // 2)) for seconds in PROCESSOR_SECONDS]
        self._idle: list[LineChild] = []

    async def prompt(self, template: str, variables: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for `messages`, with the beginning of the answer. Raises Refusal (400, 501, 503)."""
        if importlib.util.find_spec("jinja2") is None:
            raise Refusal(501, f"Chat templates need jinja2. Run: {install_command('front')}")
        state = self._templates[template]
        if state.chats >= CHATS:
            raise overloaded(f"{CHATS} chats of this model are rendered or wait for it, as many as may.")
        state.chats += 1
        try:
            async with _held(state.lock):
                request = {"template": template, "variables": {**variables, **CONSTANT, "messages": messages}}
                answer = await self._rendered(state, request)
        finally:
            state.chats -= 1
        if "text" not in answer:
            message = f"The model's chat template refuses the messages: {answer['error']}. Send others."
            raise invalid(message, "messages")
        return str(answer["text"])

    async def _rendered(self, template: _Template, request: Mapping[str, Any]) -> dict[str, Any]:
        for seconds, slots in self._slots[template.is_slow :]:
            async with _held(slots):
                answer = await self._answer(json.dumps({**request, "seconds": seconds}).encode())
            template.is_slow = answer is None or answer.get("seconds", seconds) >= PROCESSOR_SECONDS[0]
            if answer is not None:
                return answer
        return {"error": "it takes more processor time than a template may have"}

    async def _answer(self, request: bytes) -> dict[str, Any] | None:
        """Return a worker's answer, or None if the render takes more processor time than `request` allows."""
        worker = await self._worker()
        complete = False
        try:
            async with asyncio.timeout(SECONDS):
                line = await worker.answer(request + b"\n")
                if not line and await worker.end_code() == -signal.SIGPROF:
                    return None
                answer: dict[str, Any] = json.loads(line)
            complete = True
        except TimeoutError:
            return {"error": f"it takes longer than {SECONDS:g} s"}
        except (OSError, ValueError):
            return {"error": "it needs more memory than a template may have"}
        finally:
            if complete:
                self._idle.append(worker)
            else:  # also if the caller has disconnected, because the next caller must not get its answer
                await worker.kill()  # so that there are never more than WORKERS processes
        return answer

    async def _worker(self) -> LineChild:
        while True:
            while not self._idle:
                await asyncio.shield(self._start())  # if the caller disconnects, the next caller uses the process
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker

    async def _start(self) -> None:
        self._idle.append(await LineChild.start((sys.executable, "-I", str(WORKER)), ANSWER_BYTES))


@asynccontextmanager
async def _held(lock: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold `lock` as `async with` does. Raises Refusal (503) if it does not become free in WAIT_SECONDS."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise overloaded(f"Other chats have been rendered for {WAIT_SECONDS:g} s.") from None
    try:
        yield
    finally:
        lock.release()


_RENDERER = ChatRenderer()  # for the only event loop of this process


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise invalid(f"A message is {shown(message)}. Send a role and a content.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        check_count(len(content), "messages", MESSAGES)
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text":
                raise invalid(f"A part of a content is {shown(part)}. Send texts only.", "messages")
        content = "".join(text(part.get("text"), "messages") for part in content)
    return {"role": message["role"], "content": text(content, "messages")}
