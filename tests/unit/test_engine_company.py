"""Trained models on OpenVINO, in every precision: a request has the tokens that it has alone, whoever is beside it.

Trained ones, as random nets' best tokens lie far apart and hide what neighbours change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.families import FORMATS, write_engine_folder
from hfx.exporter.source import open_checkpoint
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from tests import zoo
from tests.unit import tiny_generators
from tests.unit.shared_data import DATA
from tests.unit.test_families_quality import sources

TOKENS = 24
WORDS = DATA / "models" / "g2p-bart-us"


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Precision -> engine folder of a trained GPT-2."""

    @cache
    def write(precision: str) -> Path:
        folder = tmp_path_factory.mktemp("stories")
        checkpoint = open_checkpoint(str(zoo.checkpoint("stories-gpt2")))
        write_engine_folder(checkpoint, folder, FORMATS[precision], levels=127, openvino=True)
        return folder

    return write


def prompts() -> list[tuple[int, ...]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(zoo.checkpoint("stories-gpt2") / "tokenizer.json"))
    return [tuple(tokenizer.encode(example.prompt).ids) for example in zoo.heldout("stories", 24)]


def apart_and_together(folder: Path, requests: list[Request], threads: int) -> tuple[list[Any], list[Any]]:
    with Engine.open(folder, slots=24, threads=threads, runtime="openvino") as engine:
        assert engine.runtime == "openvino"
        together = [handle.result(120) for handle in [engine.submit(request) for request in requests]]
        alone = [engine.submit(request).result(120) for request in requests]
    return [[each.ids for each in one] for one in alone], [[each.ids for each in one] for one in together]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_stories_are_the_same_alone_and_in_a_full_batch(
    stories: Callable[[str], Path], precision: str, threads: int
) -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"do_sample": True, "seed": 5}, {"num_beams": 3})
    requests = [
        Request(prompt, Settings(max_tokens=TOKENS, **ways[at % len(ways)])) for at, prompt in enumerate(prompts())
    ]
    alone, together = apart_and_together(stories(precision), requests, threads)
    assert together == alone
    assert len({ids for one in alone for ids in one}) > len(requests) // 2


@pytest.mark.skipif(not WORDS.is_dir(), reason="no shared data")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_words_are_spoken_the_same_alone_and_in_a_full_batch(tmp_path: Path, precision: str, threads: int) -> None:
    checkpoint = tiny_generators.checkpoint(WORDS)
    write_engine_folder(checkpoint, tmp_path, FORMATS[precision], levels=127, openvino=True)
    start, end = checkpoint.config["decoder_start_token_id"], checkpoint.config["eos_token_id"]
    settings = {"max_tokens": TOKENS, "eos_ids": (end,), "decoder_prompt": (start,)}
    requests = [
        Request(tuple(source), Settings(num_beams=1 + 2 * (at % 2), **settings))
        for at, source in enumerate(sources(WORDS)[:48])
    ]
    alone, together = apart_and_together(tmp_path, requests, threads)
    assert together == alone
    assert len({ids for one in alone for ids in one}) > len(requests) // 2
