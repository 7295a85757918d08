"""The process that loads models on demand, as the front sees it: commands in, tables out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.unit.simulation.network import Network
from tests.unit.simulation.triton import Triton, configuration

if TYPE_CHECKING:
    from tests.unit.simulation.world import Request

COMMANDS = "commands"
NO_MEMORY = {"error": "There is no memory"}
AGAIN_SECONDS = 1.0  # for which the front repeats the failure of a load


class Loader:
    """Loads and releases `models` of `triton`, one at a time. Now and then a load fails, or ends Triton."""

    def __init__(self, network: Network, triton: Triton, models: Sequence[str]) -> None:
        self._network, self._triton, self._models = network, triton, models
        self._turn = asyncio.Lock()
        self._version = 0
        self.loads: list[tuple[str, float, float, str]] = []  # model, began, ended, outcome
        triton.loaded.discard(models[0])

    async def start(self) -> None:
        """Take commands."""
        await asyncio.start_unix_server(self._serve, COMMANDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = json.loads(await reader.readline())
        async with self._turn:
            answer: dict[str, Any] = {}
            if content["models"]:
                [name] = content["models"]
                answer = await self._load(name) if content["command"] == "load" else await self._release(name)
            if not answer and content["version"] != self._version:
                answer = self._table()
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    async def _load(self, name: str) -> dict[str, Any]:
        random, triton = self._network.random, self._triton
        began, ends = self._network.now, len(triton.downs)
        triton.stall()
        if random.random() < 0.2 and not self._network.is_calm:
            self._network.call_later(random.random(), triton.end, 0.5)
        await asyncio.sleep(random.random())
        triton.go_on()
        has_ended = len(triton.downs) > ends or not triton.is_up
        fails = random.random() < 0.1 and not self._network.is_calm
        outcome = "ended" if has_ended else "failed" if fails else "loaded"
        self.loads.append((name, began, self._network.now, outcome))
        if has_ended:
            return {"error": "Triton did not load it: the connection broke", "has_ended": True}
        if fails:
            return NO_MEMORY
        triton.loaded.add(name)
        self._version += 1
        return {}

    async def _release(self, name: str) -> dict[str, Any]:
        self._triton.loaded.discard(name)
        self._version += 1
        await asyncio.sleep(self._network.random.random() * 0.1)
        return {}

    def _table(self) -> dict[str, Any]:
        rows = {
            name: {
                "folders": [name, f"{name}_stream"],
                "is_loaded": name in self._triton.loaded,
                "described": {"": "{}", "/config": json.dumps(configuration(name))},
            }
            for name in self._models
        }
        return {"version": self._version, "bytes": dict.fromkeys(self._models, 1), "models": rows}

    def failed_for(self, request: Request) -> bool:
        """Return whether a load failed because of which a request may be refused: without memory, or twice by ends."""
        ends = 0
        for model, began, ended, outcome in self.loads:
            if model == request.model and began <= request.ended:
                ends = ends + 1 if outcome == "ended" else 0
                if (ends >= 2 or outcome == "failed") and ended >= request.sent - AGAIN_SECONDS:
                    return True
        return False

    def delay(self, request: Request) -> float:
        """Return the seconds that loads may have delayed a request."""
        spans = [load[2] - load[1] for load in self.loads if load[1] <= request.ended and load[2] >= request.sent]
        return sum(spans) + 2.0 * len(spans)
