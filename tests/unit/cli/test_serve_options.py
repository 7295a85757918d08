"""Options of `hfx serve` that are checked before a server starts."""

from __future__ import annotations

import pytest

from hfx.cli.serve_options import ServeOptions, byte_size
from hfx.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2_000_000_000), ("512MiB", 512 << 20), ("1.5 G", 1_500_000_000), ("300000", 300_000), ("1kb", 1000)],
)
def test_a_size_has_a_unit_of_a_thousand_or_of_1024(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "GB", "2 apples", "1e9", "0MB", "2GBB", "\u0662GB"])
def test_an_invalid_memory_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="size of memory") as raised:
        byte_size(text)
    assert "2GB" in str(raised.value)


@pytest.mark.parametrize("options", [{"idle_unload": 60.0}, {"memory_budget": "2GB"}])
def test_a_container_keeps_its_models_loaded(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="container"):
        ServeOptions(method="docker", **options).check()  # type: ignore[arg-type]
