"""The settings of a published model, the values tried on a machine, and the edits that they become."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.errors import UsageError
from hfx.manifest import Manifest, Precision, hash_folder, write_manifest
from hfx.names import Task
from hfx.perf.load import Closed, Open
from hfx.perf.settings import current, edits, parse
from hfx.perf.tuning.space import space
from hfx.perf.tuning.tune import max_callers
from hfx.repository.catalog import model
from hfx.repository.config_pbtxt import ModelConfig, TensorSpec
from hfx.repository.edit import Edit, change, value
from tests.rigs.files import repositories
from tests.rigs.files.manifests import manifest

TEXT, ANSWER = TensorSpec("text_input", "TYPE_STRING", (1,)), TensorSpec("text_output", "TYPE_STRING", (1,))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    (tmp_path / "encoder").mkdir()
    return repositories.build(tmp_path / "encoder")


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    repository = tmp_path / "generator"
    parameters = {"slots": "8", "max_queue_size": "128", "intra_op_thread_count": "2"}
    for name, own in (("g", {}), ("g_stream", parameters)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.py").write_text("class TritonPythonModel:\n    pass\n")
        config = ModelConfig(name, 1, (TEXT,), (ANSWER,), "python", instance_kind="KIND_CPU")
        repositories.put(repository, replace(config, parameters=own))
    files = hash_folder(repository / "g", repository) | hash_folder(repository / "g_stream", repository)
    made = manifest("g", task=Task.TEXT_GENERATION, folders=("g", "g_stream"), files=files)
    write_manifest(made, repository / "g/hfx.json")
    return repository


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [("instances", "2", 2), ("max_queue_delay", "500us", 500), ("max_queue_delay", "2ms", 2000), ("threads", " 4 ", 4)],
)
def test_values_of_settings_are_numbers_or_times(name: str, text: str, number: int) -> None:
    assert parse(name, text) == number


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("instance", "2", "no setting 'instance'"),
        ("instances", "two", "'two' is not a value of instances"),
        ("instances", "2ms", "'2ms' is not a value of instances"),
        ("instances", "0", "instances can't be 0"),
        ("slots", "-1", "'-1' is not a value of slots"),
        ("threads", "9999999", "threads can't be 9999999"),
    ],
)
def test_unknown_settings_and_invalid_values_are_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(name, text)


def test_a_model_has_the_settings_of_its_members(encoder: Path, generator: Path) -> None:
    assert current(encoder, model(encoder, "m")) == {
        "instances": 1, "threads": 4, "max_queue_delay": 0, "tokenize_instances": 1, "tokenize_max_queue_delay": 0,
        "postprocess_instances": 1, "max_batch_size": 64,
    }  # fmt: skip
    assert current(generator, model(generator, "g")) == {"threads": 2, "slots": 8, "max_queue_size": 128}
    with pytest.raises(UsageError, match="'g' has no setting 'instances'"):
        edits(generator, model(generator, "g"), {"instances": 2})


def test_a_gpu_has_settings_of_its_own(encoder: Path) -> None:
    assert "threads" not in current(encoder, model(encoder, "m"), "gpu")
    made = edits(encoder, model(encoder, "m"), {"instances": 2}, "gpu")
    assert made == (Edit("m_net", "instances", 2, "gpu"),)


@pytest.mark.parametrize("size", [8, 64, 128])
def test_a_batch_size_goes_through_the_whole_ensemble_and_breaks_no_rule(encoder: Path, size: int) -> None:
    change(encoder, "m", edits(encoder, model(encoder, "m"), {"max_batch_size": size}), "hfx tune m")
    sizes = {name: value(encoder, name, "max_batch_size") for name in ("m", "m_tokenize", "m_net", "m_postprocess")}
    assert sizes == {"m": min(size, 64), "m_tokenize": size, "m_net": size, "m_postprocess": size}


def test_settings_of_a_generator_are_written_to_its_engine(generator: Path) -> None:
    wanted = {"threads": 1, "slots": 32, "max_queue_size": 256}
    change(generator, "g", edits(generator, model(generator, "g"), wanted), "hfx tune g")
    assert current(generator, model(generator, "g")) == wanted


# What is tried


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
def test_instances_times_threads_never_exceed_the_cores_but_as_published(encoder: Path, cores: int) -> None:
    found = space(encoder, model(encoder, "m"), "cpu", cores)
    computes = next(dimension for dimension in found.dimensions if dimension.name == "compute").options.values()
    published = {"instances": 1, "threads": 4}
    assert published in computes
    busy = [prod(int(number) for number in option.values()) for option in computes if option != published]
    assert all(cores / 4 <= each <= cores for each in busy)
    assert max(busy) == cores


def test_instances_on_a_gpu_have_nothing_to_do_with_the_cores(encoder: Path) -> None:
    found = space(encoder, model(encoder, "m"), "gpu", 64)
    assert list(found.dimensions[0].options.values()) == [{"instances": 1}, {"instances": 2}, {"instances": 4}]


def test_a_search_includes_the_published_settings_and_none_with_less_room(encoder: Path, generator: Path) -> None:
    for repository, name, room in ((encoder, "m", "max_batch_size"), (generator, "g", "slots")):
        found = space(repository, model(repository, name), "cpu", 8)
        assert found.settings(found.choice(found.old)) == found.old
        options = next(dimension.options for dimension in found.dimensions if dimension.name == room)
        now = current(repository, model(repository, name))[room]
        assert len(options) > 1 and min(int(option[room]) for option in options.values()) == now


def test_room_for_more_than_the_callers_is_not_tried(encoder: Path) -> None:
    names = {dimension.name for dimension in space(encoder, model(encoder, "m"), "cpu", 2, callers=64).dimensions}
    assert "max_batch_size" not in names
    assert max_callers([Closed(4), Closed(65)]) == 65
    assert max_callers([Closed(4), Open(rate=5.0)]) is None


def test_a_search_can_be_limited_to_some_settings(encoder: Path) -> None:
    found = space(encoder, model(encoder, "m"), "cpu", 8, only=["threads", "max_queue_delay"])
    assert [dimension.name for dimension in found.dimensions] == ["compute", "max_queue_delay"]
    assert set(found.old) == {"threads", "max_queue_delay"}
    with pytest.raises(UsageError, match="no setting 'slots' to tune"):
        space(encoder, model(encoder, "m"), "cpu", 8, only=["slots"])
    with pytest.raises(UsageError, match="nothing to choose"):
        space(encoder, model(encoder, "m"), "cpu", 1, only=["postprocess_instances"])


def test_models_of_the_same_checkpoint_that_answer_alike_are_tried_too(encoder: Path) -> None:
    made = model(encoder, "m")

    def twin(name: str, **changes: Any) -> Manifest:
        """Return another model of the same checkpoint, of which only the manifest is read."""
        files = {path.replace("m", name, 1): entry for path, entry in made.files.items()}
        folders = tuple(folder.replace("m", name, 1) for folder in made.folders)
        copy = replace(made, name=name, folders=folders, files=files, **changes)
        (encoder / name).mkdir()
        write_manifest(copy, encoder / name / "hfx.json")
        return copy

    twin("quick", precision=Precision("int8", None))
    twin("elsewhere", precision=Precision(None, "fp16"))
    twin("stranger", source=replace(made.source, sha256="b" * 64))
    cut = twin("cut")
    others = {path: replace(entry, sha256="c" * 64) for path, entry in cut.files.items() if path.endswith(".json")}
    write_manifest(replace(cut, files={**cut.files, **others}), encoder / "cut/hfx.json")
    found = space(encoder, made, "cpu", 2, only=["model"])
    assert [option["model"] for option in found.dimensions[0].options.values()] == ["m", "quick"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("other", 3, "has no model 'other'"),
        ("m --settings slots", 2, "has no setting 'slots' to tune"),
        ("m --slo quick<1s", 2, "'quick<1s'"),
        ("m --arrivals burst", 2, "Settings are compared under a steady load."),
        ("m --output /nowhere/result.json", 2, "can't be written"),
    ],
)
def test_invalid_options_of_hfx_tune_are_one_line(
    encoder: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, message: str
) -> None:
    assert main(["tune", *words.split(), "--repository", str(encoder)]) == code
    output = capsys.readouterr()
    assert output.out == "" and message in output.err
