"""config.pbtxt: readable text that parses back to exactly what was meant."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from hfx.errors import RepositoryError
from hfx.repository.config_pbtxt import ModelConfig, WarmupInput, parse_config, render, to_protobuf
from tests.rigs.files.repositories import ENSEMBLE, NET, NET_GPU, POSTPROCESS, TOKENIZE

SPEECH = replace(
    NET,
    parameters={"session.x": 'é "quoted"\n\\', "a" * 300: "b" * 300, "": ""},
    warmups=(replace(NET.warmups[0], inputs={"x": WarmupInput("TYPE_STRING", (1,), "warm.bin")}),),
    decoupled=True,
)
EMPTY = ModelConfig(name="e", backend="python", max_batch_size=0, inputs=(), outputs=(), batching=True)


@pytest.mark.parametrize("config", [ENSEMBLE, TOKENIZE, NET, NET_GPU, POSTPROCESS, SPEECH, EMPTY], ids=lambda c: c.name)
def test_the_text_parses_back_to_the_same_configuration(config: ModelConfig) -> None:
    text = render(config, "hfx export x")
    assert parse_config(text) == to_protobuf(config)
    assert text.startswith("# Made by: hfx export x\nname: ")


def test_a_model_that_does_not_batch_says_so() -> None:
    assert "\nmax_batch_size: 0\n" in render(replace(TOKENIZE, max_batch_size=0), "hfx")


def test_a_command_with_line_breaks_stays_a_comment() -> None:
    text = render(EMPTY, 'hfx\nname: "evil"\r\u2028\x00')
    assert parse_config(text).name == "e"
    assert text.splitlines()[0].startswith("# Made by: hfx name:")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name: 3", "1:7"),
        ("\nnope: 1", "2:1"),
        ("max_batch_size: 9e99", "1:17"),
        ("input {", "1"),
        ('name: "\udcff"', "1"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(RepositoryError, match="can't be parsed") as caught:
        parse_config(text)
    assert where in caught.value.message
    assert caught.value.fix


def test_the_messages_are_those_of_the_package_that_is_imported_later() -> None:
    code = (
        "import sys; from hfx.repository.model_config import pb\n"
        "assert 'grpc' not in sys.modules\n"
        "from tritonclient.grpc import model_config_pb2, service_pb2\n"
        "assert model_config_pb2 is pb\n"
        "assert service_pb2.ModelConfigResponse(config=pb.ModelConfig(name='m')).config.name == 'm'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
