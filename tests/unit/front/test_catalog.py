"""The front's knowledge of the served models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hfx.errors import ModelUnknown, RequestRefused
from hfx.front.catalog import INDEX, Catalog
from hfx.front.fields import generation_settings, json_object, text
from hfx.front.refusals import Refusal
from hfx.names import Task

CONFIG = {
    "name": "toy",
    "parameters": {"task": {"string_value": "text-classification"}},
    "input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "label", "data_type": "TYPE_STRING", "dims": [-1]}],
}


@pytest.mark.parametrize("name", ["", "a" * 1_000_000, "toy_net"])
def test_an_unknown_model_name_costs_no_request_for_its_metadata(name: str) -> None:
    paths = []

    async def fetch(method: str, path: str) -> tuple[int, bytes]:
        paths.append(path)
        return 200, b'[{"name": "toy", "state": "READY"}]'

    with pytest.raises(ModelUnknown, match="The served models are: toy") as raised:
        asyncio.run(Catalog(fetch).model(name))
    assert paths == [INDEX]
    assert len(str(raised.value)) < 1000


async def serve_toy(method: str, path: str) -> tuple[int, bytes]:
    return 200, json.dumps([{"name": "toy", "state": "READY"}] if path == INDEX else CONFIG).encode()


async def serve_nothing(method: str, path: str) -> tuple[int, bytes]:
    return 200, b"[]"


def test_a_task_that_no_model_is_for_is_named_beside_the_served_models() -> None:
    with pytest.raises(RequestRefused) as raised:
        asyncio.run(Catalog(serve_toy).only(Task.TEXT_RANKING))
    assert raised.value.message == "No text-ranking model is served."
    assert raised.value.fix == "There are: toy (text-classification)."
    with pytest.raises(RequestRefused, match="There are: none"):
        asyncio.run(Catalog(serve_nothing).only())


@pytest.mark.parametrize(
    ("value", "name", "form"),
    [
        (None, "null", "missing or null"),
        (True, "boolean", "true"),
        (3, "integer", "3"),
        (0.5, "number", "0.5"),
        ([], "array", r"\[\]"),
        ({}, "object", "{}"),
    ],
)
def test_refusals_show_types_and_values_as_json(value: Any, name: str, form: str) -> None:
    with pytest.raises(Refusal, match=f"query is {form}. Send a string."):
        text(value, "query")
    if name != "object":
        with pytest.raises(
            Refusal, match=f"The body is {'empty or' if value is None else 'of type'} {name}. Send a JSON"
        ):
            json_object(value)


def test_refusals_show_values_as_json() -> None:
    with pytest.raises(Refusal, match="temperature is true"):
        generation_settings({"temperature": True}, {})
    with pytest.raises(Refusal, match="stop is null"):
        generation_settings({"stop": [None, False]}, {})
    with pytest.raises(Refusal) as raised:
        text("\ud800", "query")
    assert "encode(" not in raised.value.message
