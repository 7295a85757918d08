"""Messages of a conversation as one prompt, by the chat template of the model's checkpoint."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hfx.extras import install_command
from hfx.front.catalog import ServedModel
from hfx.front.fields import Fields, shown, text
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Refusal
from hfx.names import ADD_SPECIAL_TOKENS

SECONDS = 5.0  # a template takes milliseconds; the first one 0.2 s more, as its process starts
ANSWER_BYTES = 64 << 20  # of a prompt as JSON
WORKER = Path(__file__).with_name("chat_worker.py")
CONSTANT = {"add_generation_prompt": True, "tools": None, "documents": None}  # as transformers gives them
ROLES = ("system", "developer", "user", "assistant", "tool")


async def chat_prompt(
    files: ModelFiles, model: ServedModel, messages: Any, renderer: ChatRenderer | None = None
) -> str:
    """The prompt that the model continues with its next message. Raises Refusal (400)."""
    chat = files.chat(model)
    if chat is None:
        message = f"The model {model.name!r} has no chat template. Send its prompt to /v1/completions."
        raise Refusal(400, message, param="messages")
    conversation = checked_messages(messages)
    prompt = await (renderer or _RENDERER).prompt(chat["template"], chat["special_tokens"], conversation)
    if ADD_SPECIAL_TOKENS in model.metadata.input_types:
        return prompt
    begin = chat["special_tokens"].get("bos_token", "")
    if begin and prompt.startswith(begin) and (await files.tokenized(model, ["a"], _first_token))[0] == begin:
        return prompt[len(begin) :]  # the tokenizer adds it again
    return prompt


def chat_settings(model: ServedModel, fields: Fields) -> Fields:
    """`fields` of a request, with what transformers encodes a rendered chat with: its template writes special tokens.

    A model that was published before it had the setting begins the text by itself, which `chat_prompt` allows for.
    """
    if ADD_SPECIAL_TOKENS not in model.metadata.input_types or fields.get(ADD_SPECIAL_TOKENS) is not None:
        return fields
    return {**fields, ADD_SPECIAL_TOKENS: False}


def checked_messages(messages: Any) -> list[dict[str, str]]:
    """Messages with a role and a text; parts of a content are joined. Raises Refusal (400)."""
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, f"messages is {shown(messages)}. Send a list of messages.", param="messages")
    return [_message(message) for message in messages]


def _first_token(_: str, encoding: Any) -> str:
    return str(encoding.tokens[0])


class ChatRenderer:
    """Renders templates one after the other, in a process (chat_worker.py) that is killed when one takes too long.

    A template is a program that comes with the checkpoint: jinja2's sandbox bounds neither its time nor its memory.
    """

    def __init__(self) -> None:
        self._worker: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def prompt(
        self, template: str, special_tokens: Mapping[str, str], messages: Sequence[Mapping[str, str]]
    ) -> str:
        """What the template makes of `messages`, with the beginning of the answer. Raises Refusal (400, 501)."""
        if importlib.util.find_spec("jinja2") is None:
            raise Refusal(501, f"Chat templates need jinja2. Run: {install_command('front')}")
        variables = {**special_tokens, **CONSTANT, "messages": messages}
        async with self._lock:
            answer = await self._answer(json.dumps({"template": template, "variables": variables}).encode())
        if "text" not in answer:
            message = f"The model's chat template refuses the messages: {answer['error']}. Send others."
            raise Refusal(400, message, param="messages")
        return answer["text"]

    async def _answer(self, request: bytes) -> dict[str, str]:
        worker = self._worker = await self._running()
        assert worker.stdin is not None
        assert worker.stdout is not None
        complete = False
        try:
            async with asyncio.timeout(SECONDS):
                worker.stdin.write(request + b"\n")
                await worker.stdin.drain()
                answer: dict[str, str] = json.loads(await worker.stdout.readline())
            complete = True
        except TimeoutError:
            return {"error": f"it takes longer than {SECONDS:g} s"}
        except (OSError, ValueError):
            return {"error": "it needs more memory than a template may have"}
        finally:
            if not complete:  # also when its caller has left: the answer must not become that of the next request
                self._end(worker)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._worker is not None and self._worker.returncode is None:
            return self._worker
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(WORKER), stdin=pipe, stdout=pipe, limit=ANSWER_BYTES
        )

    def _end(self, worker: asyncio.subprocess.Process) -> None:
        self._worker = None
        if worker.returncode is None:
            worker.kill()


_RENDERER = ChatRenderer()  # of this process's one event loop


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise Refusal(400, f"A message is {shown(message)}. Send a role and a content.", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content)
    return {"role": message["role"], "content": text(content, "messages")}


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise Refusal(400, f"A part of a content is {shown(part)}. Send texts only.", param="messages")
    return text(part.get("text"), "messages")
