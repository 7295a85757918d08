"""Triton adapter of NAME: plain infer calls, handed on to the engine NAME_stream.

A decoupled model refuses plain calls, so this one takes them. It is not decoupled, yet returns at once and answers each
request when its text is there: callers never wait for one another.
"""

from __future__ import annotations

import json
from typing import Any

from .responses.relay_client import RelayClient


class TritonPythonModel:
    """The relay's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Note the engine's name."""
        config = json.loads(args["model_config"])
        self.client = RelayClient(config["parameters"]["engine"]["string_value"])

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            self.client.take(request)

    def finalize(self) -> None:
        """Disconnect from the engine."""
        self.client.close()
