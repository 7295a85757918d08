"""The command that installs an extra follows pip's record (PEP 610) of where hfx came from."""

from __future__ import annotations

from typing import Any

import pytest

from hfx.extras import _requirement

WHEEL = "file:///tmp/hfx-0.2.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({}, "'hfx[perf]'"),
        ({"url": "file:///src/hfx", "dir_info": {"editable": True}}, "--editable '/src/hfx[perf]'"),
        ({"url": "file:///my%20src/hfx", "dir_info": {}}, "'/my src/hfx[perf]'"),
        ({"url": WHEEL, "archive_info": {}}, f"'hfx[perf] @ {WHEEL}'"),
        (
            {"url": "https://git.example/hfx", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'hfx[perf] @ git+https://git.example/hfx@abc'",
        ),
    ],
    ids=["index", "checkout", "folder", "wheel", "git"],
)
def test_an_extra_is_installed_from_where_hfx_came(origin: dict[str, Any], words: str) -> None:
    assert _requirement("perf", origin) == words
