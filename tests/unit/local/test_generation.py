"""A generator in this process: required configuration, and the engine's errors as hfx's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfx import errors
from hfx.answering import plain_values
from hfx.batch.rows import prediction_columns
from hfx.local.generator import LocalGenerator, _fields, _translated
from hfx.names import Task
from hfx.python_backends import errors as engine
from hfx.repository.config_pbtxt import ModelConfig, render
from tests.rigs.engine import generation_models

SAMPLES = {"do_sample": True, "seed": 1, "num_return_sequences": 2}
PARAMETERS = {"device": "cpu", "slots": "4", "max_queue_size": "8", "intra_op_thread_count": "1"}


def write(folder: Path, parameters: dict[str, str] | None = None, device: str = "") -> Path:
    """Write NAME_stream around a toy with these parameters of its configuration; return the repository."""
    from hfx.exporter.generation.folders import INPUTS, OUTPUTS

    stream = folder / "m_stream"
    config = ModelConfig(
        name="m_stream",
        backend="python",
        max_batch_size=1,
        inputs=INPUTS,
        outputs=OUTPUTS,
        instance_kind="KIND_CPU",
        parameters=PARAMETERS if parameters is None else parameters,
        decoupled=True,
    )
    if not stream.is_dir():
        generation_models.write_model(stream / "1")
    path = stream / "configs" / f"{device}.pbtxt" if device else stream / "config.pbtxt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(render(config, made_by="test"))
    return folder


@pytest.fixture
def generator(tmp_path: Path) -> Iterator[LocalGenerator]:
    with LocalGenerator.open(write(tmp_path), "m") as opened:
        yield opened


def test_values_may_be_lists_of_one(generator: LocalGenerator) -> None:
    plain = {"text_input": "cab", "max_tokens": 5, "early_stopping": "false", "stop_words": ["zz"]}
    lists = {"text_input": ["cab"], "max_tokens": [5], "early_stopping": ["false"], "stop_words": ["zz"]}
    assert generator.infer(plain)["text_output"] == generation_models.continued("cab", 5)
    assert generator.infer(plain) == generator.infer(lists)
    assert generator.infer({**plain, "stream": True}) == generator.infer(plain)


def test_tokens_and_alternatives_are_rows_of_plain_values(generator: LocalGenerator) -> None:
    answer = generator.infer({"text_input": "cab", "max_tokens": 3, "logprobs": 2})
    assert [[len(row) for row in answer[name]] for name in answer if name.startswith("token_")] == [[3, 3, 3]] * 4
    assert [row[0] for row in answer["token_log_probs"]] == answer["output_log_probs"]
    assert "".join(row[0] for row in answer["token_texts"]) == answer["text_output"]
    assert plain_values(answer) == answer
    several = generator.infer({"text_input": "cab", "max_tokens": 3, "logprobs": 0, **SAMPLES})
    assert [len(text) for text in several["token_ids"]] == several["output_tokens"]


def test_the_tokens_of_a_row_of_a_batch_job_are_a_list_of_json(generator: LocalGenerator) -> None:
    settings = {"max_tokens": [3], "logprobs": [1]}
    column = prediction_columns(Task.TEXT_GENERATION, (), settings)[-1]
    tokens = json.loads(str(column.cell(generator.infer({"text_input": "cab", **settings}))))
    assert (column.name, column.kind, len(tokens)) == ("tokens", "json", 3)
    assert all(token["top"][0]["id"] == token["id"] and token["logprob"] < 0 for token in tokens)
    assert "".join(token["text"] for token in tokens) == generation_models.continued("cab", 3)


def test_a_request_may_have_a_deadline(generator: LocalGenerator) -> None:
    plain = {"text_input": "cab", "max_tokens": 5}
    assert generator.infer({**plain, "timeout_ms": [60_000]}) == generator.infer(plain)
    assert _fields({"text_input": "cab", "timeout_ms": [1500]}) == ("cab", {"timeout": 1.5})
    for impossible in (0, -1, 1.5, True, "1"):
        with pytest.raises(errors.UsageError, match="timeout_ms"):
            generator.infer({**plain, "timeout_ms": impossible})


@pytest.mark.parametrize("missing", ["slots", "max_queue_size", "intra_op_thread_count"])
def test_a_configuration_without_its_numbers_is_corrupt(tmp_path: Path, missing: str) -> None:
    repository = write(tmp_path, {key: value for key, value in PARAMETERS.items() if key != missing})
    with pytest.raises(errors.ModelCorrupt, match=missing):
        LocalGenerator.open(repository, "m")
    write(tmp_path, PARAMETERS | {missing: "many"})
    with pytest.raises(errors.ModelCorrupt, match=missing):
        LocalGenerator.open(repository, "m")


def test_a_configuration_may_bound_the_prefix_cache(tmp_path: Path) -> None:
    LocalGenerator.open(write(tmp_path, PARAMETERS | {"prefix_cache_mb": "0"}), "m").close()
    for value, kind in (("many", errors.ModelCorrupt), ("-1", errors.ServerError)):
        with pytest.raises(kind, match="prefix_cache_mb"):
            LocalGenerator.open(write(tmp_path, PARAMETERS | {"prefix_cache_mb": value}), "m")


def test_the_device_s_own_configuration_counts(tmp_path: Path) -> None:
    write(tmp_path, {})
    repository = write(tmp_path, device="cpu")
    LocalGenerator.open(repository, "m").close()


def test_a_missing_model_an_invalid_name_and_a_missing_device_are_errors(tmp_path: Path) -> None:
    with pytest.raises(errors.ModelMissing, match="m_stream"):
        LocalGenerator.open(tmp_path, "m")
    with pytest.raises(errors.UsageError):
        LocalGenerator.open(tmp_path, "../m")
    with pytest.raises(errors.ModelCorrupt, match="gpu"):
        LocalGenerator.open(write(tmp_path), "m", "gpu")


def test_a_gpu_s_files_can_be_tried_on_the_cpu(tmp_path: Path) -> None:
    repository = write(tmp_path, PARAMETERS | {"device": "gpu"}, device="gpu")
    (repository / "m_stream" / "1" / "cpu").rename(repository / "m_stream" / "1" / "gpu")
    with LocalGenerator.open(repository, "m", "gpu", "CPU") as generator:
        assert generator.infer({"text_input": "a", "max_tokens": 1})["output_tokens"] == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"text_input": "a", "num_beams": 0}, errors.UsageError),
        ({"text_input": "a", "max_token": 1}, errors.UsageError),
        ({"max_tokens": 1}, errors.RequestRefused),
        ({"text_input": ""}, errors.RequestRefused),
        ({"text_input": "a" * 10_000}, errors.RequestRefused),
        ({"text_input": "a", "num_beams": 5, "max_tokens": 1}, errors.RequestRefused),  # more than the slots
    ],
)
def test_a_refused_request_says_why(
    generator: LocalGenerator, request_: dict[str, Any], error: type[Exception]
) -> None:
    for ask in (generator.infer, lambda request: list(generator.stream(request)),
                lambda request: generator.infer_all([request])):  # fmt: skip
        with pytest.raises(error) as caught:
            ask(request_)
        assert str(caught.value).splitlines()[0].endswith((".", "?"))


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (engine.InvalidRequest("top_p", 3, "less"), errors.UsageError),
        (engine.InvalidRequest("text_input", "", "more"), errors.RequestRefused),
        (engine.DoesNotFit("rows", 5, 4), errors.RequestRefused),
        (engine.QueueFull("full"), errors.ServerBusy),
        (engine.EngineClosed("closed"), errors.ServerUnreachable),
        (engine.ModelDamaged("bad"), errors.ModelCorrupt),
        (engine.ProcessorUnsuited("old"), errors.UsageError),
        (engine.RuntimeTooOld("old"), errors.UsageError),
        (engine.StepFailed("broke"), errors.ServerError),
        (engine.DeadlineExceeded("late"), errors.RequestTimeout),
    ],
)
def test_every_error_of_the_engine_has_one_here(raised: engine.EngineError, error: type[Exception]) -> None:
    assert type(_translated(raised)) is error
