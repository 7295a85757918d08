"""The served models with a task of hfx: their tasks, tensors and settings, as Triton describes them.

A description is read over Triton's own HTTP when a model is first requested, and read again in the background once it
is old. After a model is published again, its new description applies a moment later, and no request waits for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hfx.errors import ModelUnknown, RequestRefused
from hfx.front.refusals import invalid
from hfx.metadata import TEMPORARY, ModelMetadata, tensors_of
from hfx.names import MEMBER_SUFFIXES, Kind, Task
from hfx.tasks import kind_of, task_of
from hfx.tasks.kinds import KIND

if TYPE_CHECKING:
    from hfx.front.idle import IdleModels

REFRESH_SECONDS = 2.0
OK = 200
NAME_LENGTH = 255  # of a model's folder
INDEX = "/v2/repository/index"
Fetch = Callable[[str, str], Awaitable[tuple[int, bytes]]]  # method, path -> status, body


@dataclass(frozen=True)
class ServedModel:
    """A model that callers may name. One request to Triton has at most `batch` rows.

    `parameters` are those of the model's configuration.
    """

    metadata: ModelMetadata
    task: Task
    batch: int
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the model in callers' requests."""
        return self.metadata.name

    @property
    def kind(self) -> Kind | None:
        """The kind of an encoder, according to its configuration; None for a generator."""
        return kind_of(self.metadata, self.task)

    @property
    def is_colbert(self) -> bool:
        """Whether the model ranks texts by the vectors of their tokens."""
        return self.kind is Kind.LATE

    @property
    def is_pair_classifier(self) -> bool:
        """Whether the model scores several labels for a pair of texts."""
        return self.kind is Kind.PAIR_CLASSIFIER

    def check_task(self, *tasks: Task) -> None:
        """Raise Refusal (400) unless the model is for one of `tasks`."""
        if self.task not in tasks:
            message = f"The model {self.name!r} is for {self.task}, not for {' or '.join(sorted(tasks))}."
            raise invalid(f"{message} Name a model of that task.", "model")


class Catalog:
    """The models of a server. `fetch` sends a request to Triton's HTTP; `idle` has the models that are not loaded."""

    def __init__(self, fetch: Fetch, idle: IdleModels | None = None) -> None:
        self._fetch = fetch
        self._idle = idle
        self._models: dict[str, tuple[float, ServedModel]] = {}
        self._refreshes: dict[str, asyncio.Task[ServedModel]] = {}

    async def names(self) -> list[str]:
        """Return the sorted names of ready models and of models that are loaded on demand, without their members."""
        _, body = await self._fetch("POST", INDEX)
        ready = {str(row["name"]) for row in json.loads(body) if row.get("state") == "READY"}
        ready |= set(self._idle.unloaded if self._idle else ())
        return sorted(name for name in ready if not name.endswith((*MEMBER_SUFFIXES, TEMPORARY)))

    async def models(self) -> list[ServedModel]:
        """Return the models whose names `names` returns, if they are for one of hfx's tasks."""
        found = await asyncio.gather(*(self.model(name) for name in await self.names()), return_exceptions=True)
        return [model for model in found if isinstance(model, ServedModel)]

    async def model(self, name: str) -> ServedModel:
        """Return the model `name`. Raises ModelUnknown, or RequestRefused if the model has no known task."""
        if name not in self._models:
            return await asyncio.shield(self._refreshed(name))  # other requests wait for the same task
        read_at, model = self._models[name]
        if time.monotonic() - read_at > REFRESH_SECONDS:
            self._refreshed(name)
        return model

    async def only(self, *tasks: Task) -> ServedModel:
        """Return the only model, or the only model for one of `tasks` if any are given.

        Raises RequestRefused if there is no such model, or if there are several.
        """
        served = await self.models()
        models = [model for model in served if not tasks or model.task in tasks]
        if not models:
            names = ", ".join(f"{model.name} ({model.task})" for model in served) or "none"
            wanted = " or ".join(sorted(tasks))
            raise RequestRefused(f"No {wanted} model is served.".replace("  ", " "), f"There are: {names}.")
        if len(models) > 1:
            names = ", ".join(model.name for model in models)
            raise RequestRefused(f"The request's path names no model; there are: {names}.", "Send it to /models/NAME.")
        return models[0]

    def _refreshed(self, name: str) -> asyncio.Task[ServedModel]:
        if name not in self._refreshes:
            task = self._refreshes[name] = asyncio.create_task(self._read(name))
            task.add_done_callback(lambda _: self._refreshes.pop(name, None))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the waiting client may leave
        return self._refreshes[name]

    async def _read(self, name: str) -> ServedModel:
        status, body = 404, b""
        if 0 < len(name) <= NAME_LENGTH and not name.endswith((*MEMBER_SUFFIXES, TEMPORARY)):
            path = f"/v2/models/{quote(name, safe='')}/config"
            status, body = await self._fetch("GET", path)
        if status != OK:
            self._models.pop(name, None)
            raise ModelUnknown(
                f"There is no model {name[:NAME_LENGTH]!r}.", f"The served models are: {', '.join(await self.names())}."
            )
        model = served_model(json.loads(body))
        self._models[name] = (time.monotonic(), model)
        return model


def served_model(config: Mapping[str, Any]) -> ServedModel:
    """Return the model that `config`, a config.pbtxt as Triton's JSON, describes.

    Raises RequestRefused if the model has no known task.
    """
    parameters = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    task, kind = (parameters.get(key, "") for key in ("task", KIND))
    metadata = ModelMetadata(config["name"], tensors_of(config["input"]), tensors_of(config["output"]), task, kind)
    return ServedModel(metadata, task_of(metadata), max(1, int(config.get("max_batch_size", 0))), parameters)
