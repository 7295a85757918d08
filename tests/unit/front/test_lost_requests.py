"""The description of a request that Triton has not answered, for the log."""

from __future__ import annotations

import json

from hfx.front.guard import HEAD_LENGTH
from hfx.front.infer_request import binary_request
from hfx.front.lost_requests import shape

SECRET = "a text of a caller"


def test_an_infer_request_is_named_by_its_tensors_without_their_contents() -> None:
    request = {
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [SECRET]}],
        "outputs": [{"name": "label"}],
        "parameters": {"prompt": SECRET, "priority": 1},
    }
    body, length = binary_request(json.dumps(request).encode(), None)
    line = shape(b"POST", b"/v2/models/m/infer", [(HEAD_LENGTH, b"%d" % length)], body)
    size = len(SECRET) + 4
    assert line == (
        f"POST /v2/models/m/infer ({len(body)} bytes): 'text_input' BYTES [1, 1] of {size} bytes, 'label'; "
        "parameters 'priority', 'prompt'"
    )


def test_names_and_sizes_are_bounded() -> None:
    inputs = [{"name": "é\n" * 100, "datatype": "BYTES", "shape": [1], "data": [""]}] * 20
    body, length = binary_request(json.dumps({"inputs": inputs}).encode(), None)
    line = shape(b"POST", b"/v2/models/m/infer", [(HEAD_LENGTH, b"%d" % length)], body)
    assert len(line) == 400
    assert line.isascii() and line.isprintable()


def test_other_requests_are_named_by_their_size() -> None:
    assert shape(b"POST", b"/v2/models/m/generate", [], b"{}") == "POST /v2/models/m/generate (2 bytes)"
