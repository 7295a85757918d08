"""Decoders with attention windows, head norms, parallel blocks or layers without positions, on a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client
from hfx.local.generator import LocalGenerator
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.checkpoints.published import export_random
from tests.rigs.engine.generation_models import TEXT
from tests.rigs.servers.generation_server import FASTEST
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton

DECODERS = ("gemma", "neox", "smollm")
WAYS: tuple[dict[str, Any], ...] = ({}, {"num_beams": 3}, {"do_sample": True, "seed": 3})
TEXTS = ("a", "the end of the story", "one cat and two dogs. " * 2)  # the last two are longer than the windows


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoders in int8; with random weights, next tokens are near ties."""
    checkpoints, folder = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("repository")
    for name in DECODERS:
        checkpoint = generator_checkpoints.save(checkpoints / name, name, vocab_size=len(TEXT))
        options = {"precision": "int8", "cpu_runtime": FASTEST, "max_drop": 0.1, "slots": 4}
        export_random(checkpoint, folder, name=name, **options)
    return folder


def test_texts_are_those_of_the_engine_in_this_process(repository: Path) -> None:
    asked = [{"max_tokens": 12, **way} for way in WAYS]
    with started(repository) as server, Client(server.grpc_url) as client:
        for name in DECODERS:
            found = [client.generate(name, text, **each).text for text in TEXTS for each in asked]
            with LocalGenerator.open(repository, name) as generator:
                answers = generator.infer_all([{"text_input": text, **each} for text in TEXTS for each in asked])
            assert found == [answer["text_output"] for answer in answers]
            assert len(set(found)) > len(TEXTS)
