"""What the front knows of the served models."""

from __future__ import annotations

import asyncio

import pytest

from hfx.errors import ModelUnknown
from hfx.front.catalog import INDEX, Catalog


@pytest.mark.parametrize("name", ["", "a" * 1_000_000, "toy_net"])
def test_what_is_no_name_is_no_model_without_a_request_for_it(name: str) -> None:
    paths = []

    async def fetch(method: str, path: str) -> tuple[int, bytes]:
        paths.append(path)
        return 200, b'[{"name": "toy", "state": "READY"}]'

    with pytest.raises(ModelUnknown, match="The served models are: toy") as raised:
        asyncio.run(Catalog(fetch).model(name))
    assert paths == [INDEX]
    assert len(str(raised.value)) < 1000
