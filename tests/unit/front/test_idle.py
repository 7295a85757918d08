"""The rules by which idle models are unloaded and loaded again, with a process that only notes its commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from hfx.front import idle
from hfx.front.idle import IdleModels
from hfx.front.refusals import Refusal
from hfx.front.upstream import Upstream

CLIENT = cast(Any, object())  # stands for any client; the front's own requests have None instead
NAMES = "abc"


class Loader:
    """The process that loads models, each of one byte.

    It notes the commands. If `answers` has a command, its next answer is given, else the table of models.
    """

    def __init__(self, answers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        self.commands: list[str] = []
        self.loaded: set[str] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._answers = {command: [*answers] for command, answers in answers.items()}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = json.loads(await reader.readline())
        names, command = content["models"], " ".join([content["command"], *content["models"]])
        if names:
            self.commands.append(command)
            await self.may_answer.wait()
        answer: dict[str, Any] = {}
        if self._answers.get(command):
            answer = self._answers[command].pop(0)
        elif content["command"] == "load":
            self.loaded |= {*names}
        elif content["command"] == "release":
            self.loaded -= {*names}
        rows = {name: {"folders": [name], "is_loaded": name in self.loaded, "described": {}} for name in NAMES}
        table = {"version": 0, "bytes": dict.fromkeys(NAMES, 1), "models": rows}
        writer.write(json.dumps(answer or table).encode() + b"\n")
        writer.close()


@asynccontextmanager
async def models(
    folder: Path, answers: Mapping[str, Sequence[dict[str, Any]]] | None = None, **options: Any
) -> AsyncIterator[tuple[IdleModels, Loader]]:
    loader = Loader(answers or {})
    commands = await asyncio.start_unix_server(loader.serve, folder / "commands")
    triton = await asyncio.start_unix_server(lambda reader, writer: writer.close(), folder / "triton")
    async with commands, triton:
        upstream = Upstream(f"unix://{str(folder / 'triton').replace('/', '%2F')}")
        options = {"unload_after": 0.0, "budget": 0, "wait_seconds": 60.0, **options}
        tested = IdleModels(upstream, str(folder / "commands"), **options)
        await tested.start()
        yield tested, loader


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within_a_minute() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(within_a_minute())


def infer(name: str) -> bytes:
    return f"/v2/models/{name}/infer".encode()


async def use(tested: IdleModels, name: str) -> None:
    async with tested.used(infer(name), CLIENT):
        pass


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


FAILS, ENDS = {"error": "no memory"}, {"error": "killed", "has_ended": True}
# The rule, the budget in models (0: any), the steps, and the commands that they lead to.
RULES: list[tuple[str, int, str, str]] = [
    ("a request loads its model", 0, "use a", "load a"),
    ("a loaded model is not loaded again", 0, "use a, use a", "load a"),
    ("without a budget nothing is unloaded", 0, "use a, use b, use c", "load a, load b, load c"),
    ("the model that was used longest ago makes room", 2, "use a, use b, use c", "load a, load b, release a, load c"),
    ("a use makes a model the last one", 2, "use a, use b, use a, use c", "load a, load b, release b, load c"),
    ("a model with a request stays", 2, "hold a, use b, use c", "load a, load b, release b, load c"),
    ("after its request a model may go", 2, "hold a, end a, use b, use c", "load a, load b, release a, load c"),
    ("a request that ended was a use", 2, "hold a, use b, end a, use c", "load a, load b, release b, load c"),
    ("what was unloaded is loaded again", 1, "use a, use b, use a", "load a, release a, load b, release b, load a"),
]


@pytest.mark.parametrize(("rule", "budget", "steps", "expected"), RULES, ids=[rule for rule, *_ in RULES])
def test_models_are_loaded_and_unloaded_by_rules(
    rule: str, budget: int, steps: str, expected: str, tmp_path: Path
) -> None:
    async def test() -> None:
        async with models(tmp_path, budget=budget) as (tested, loader), AsyncExitStack() as all_held:
            held: dict[str, AsyncExitStack] = {}
            for step in steps.split(", "):
                action, name = step.split()
                if action == "hold":
                    held[name] = await all_held.enter_async_context(AsyncExitStack())
                    await held[name].enter_async_context(tested.used(infer(name), CLIENT))
                elif action == "end":
                    await held[name].aclose()
                else:
                    await use(tested, name)
            assert loader.commands == expected.split(", ")

    run(test)


def test_requests_at_the_same_time_share_one_load(tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path) as (tested, loader):
            await asyncio.gather(*(use(tested, "a") for _ in range(10)))
            assert loader.commands == ["load a"]
            assert tested.models["a"].in_flight == 0

    run(test)


def test_a_request_waits_until_another_one_leaves_room(tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path, budget=1) as (tested, loader):
            async with tested.used(infer("a"), CLIENT):
                waiting = asyncio.create_task(use(tested, "b"))
                await until(lambda: tested.models["b"].in_flight == 1)
                await asyncio.sleep(0.1)
                assert loader.commands == ["load a"]
            await waiting
            assert loader.commands == ["load a", "release a", "load b"]

    run(test)


def test_a_request_that_finds_no_room_in_time_is_refused_with_what_takes_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path, budget=1, wait_seconds=0.3) as (tested, _), tested.used(infer("a"), CLIENT):
            with pytest.raises(Refusal, match=r"model b .*: a") as refused:
                await use(tested, "b")
            assert refused.value.status == 503

    run(test)


def test_a_failed_load_is_tried_again_only_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with models(tmp_path, {"load a": [FAILS]}) as (tested, loader):
            for _ in range(3):
                with pytest.raises(Refusal, match="no memory"):
                    await use(tested, "a")
            assert loader.commands == ["load a"]
            monkeypatch.setattr(idle, "FAILED_SECONDS", 0.0)
            await use(tested, "a")
            assert loader.commands == ["load a", "load a"]

    run(test)


@pytest.mark.parametrize("ends", [1, 2])
def test_a_load_that_triton_does_not_survive_is_tried_once_more(ends: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path, {"load a": [ENDS] * ends}) as (tested, loader):
            if ends == 1:
                await use(tested, "a")
            else:
                with pytest.raises(Refusal, match="killed"):
                    await use(tested, "a")
            assert loader.commands == ["load a", "load a"]

    run(test)


def test_a_load_goes_on_when_its_only_client_leaves_and_one_that_waits_for_room_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path, budget=1) as (tested, loader):
            loader.may_answer.clear()
            leaving = asyncio.create_task(use(tested, "a"))
            await until(lambda: bool(loader.commands))
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            loader.may_answer.set()
            await until(lambda: tested.models["a"].is_loaded)
            assert tested.models["a"].loads == 1  # the front has waited for the answer
            async with tested.used(infer("a"), CLIENT):
                leaving = asyncio.create_task(use(tested, "b"))
                await until(lambda: tested.models["b"].loading is not None)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
            await until(lambda: tested.models["b"].loading is None)
            assert loader.commands == ["load a"]

    run(test)


def test_the_fronts_own_requests_load_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path) as (tested, loader):
            with pytest.raises(Refusal, match="model a is not loaded"):
                async with tested.used(infer("a"), None):
                    pass
            assert loader.commands == []

    run(test)


@pytest.mark.parametrize("path", ["/v2/models/a", "/v2/models/a/config", "/v2/models/unknown/infer", "/v2"])
def test_paths_that_need_no_model_load_none(path: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with models(tmp_path) as (tested, loader):
            async with tested.used(path.encode(), CLIENT):
                pass
            assert loader.commands == []

    run(test)


def test_a_model_is_unloaded_when_idle_for_long_enough_and_never_within_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "CHECK_SECONDS", 0.02)

    async def test() -> None:
        async with models(tmp_path, unload_after=0.2) as (tested, loader):
            async with tested.used(infer("a"), CLIENT):
                await use(tested, "b")
                await until(lambda: "release b" in loader.commands)
            assert loader.commands == ["load a", "load b", "release b"]
            await until(lambda: "release a" in loader.commands)
            assert tested.unloaded == [*NAMES]

    run(test)


def test_an_unloaded_model_is_described_and_a_loaded_one_stays_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "CHECK_SECONDS", 0.02)

    async def test() -> None:
        async with models(tmp_path, unload_after=0.1) as (tested, loader):
            async with tested.used(b"/v2/models/a/ready", CLIENT) as stored:
                assert stored == b""
            await use(tested, "a")
            async with tested.used(b"/v2/models/a/ready", CLIENT) as stored:  # Triton answers
                assert stored is None
                await asyncio.sleep(0.3)
                assert loader.commands == ["load a"]
            await until(lambda: loader.commands == ["load a", "release a"])

    run(test)
