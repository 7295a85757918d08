"""The playground's files and fields: static and public, and allowed by their content security policy."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfx.front import playground
from hfx.front.catalog import ServedModel
from hfx.front.model_files import ModelFiles
from hfx.front.playground import described
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.names import Task
from hfx.python_backends.engine.generation_settings import SETTINGS, checked
from hfx.tasks import TASKS
from hfx.triton.front import Front
from tests.rigs.servers.front_rig import ask, fronted, upstream

GENERATION = {"defaults": {"num_beams": 4}, "languages": None, "max_source": None}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("a-key-of-the-tests")
    with upstream() as (port, _), fronted(port, key_file=str(keys)) as running:
        yield running


def get(front: Front, path: str, body: bytes = b"") -> tuple[int, http.client.HTTPMessage, str]:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    status, headers, answer = ask(front, head + body)
    return status, headers, answer.decode()


def test_the_page_and_its_files_need_no_key_and_its_data_do(front: Front) -> None:
    paths = [route.path for route in playground.DIALECT.routes]
    assert {path: get(front, path)[0] for path in paths} == dict.fromkeys(paths, 200) | {"/models": 401}


def test_a_file_without_a_key_has_no_body(front: Front) -> None:
    assert get(front, "/", b"{}")[0] == 413


def test_every_file_that_the_page_needs_is_served_as_what_it_is(front: Front) -> None:
    page = get(front, "/")[2] + get(front, "/docs")[2]
    needed = set(re.findall(r'(?:href|src)="(playground/[^"]+)"', page))
    for path in list(needed):
        _, headers, text = get(front, f"/{path}")
        assert headers["content-type"] in ("text/javascript; charset=utf-8", "text/css; charset=utf-8")
        assert headers["x-content-type-options"] == "nosniff"
        needed |= {f"playground/{name}" for name in re.findall(r"from '\./([^']+)'", text)}
    files = {f"playground/{file}" for file in (*playground.SCRIPTS, *playground.STYLES)}
    assert needed <= files == {f"playground/{file.name}" for file in playground.FOLDER.glob("*.[jc]s*")}


def test_the_policy_allows_this_server_only_and_the_page_has_nothing_inline(front: Front) -> None:
    _, headers, page = get(front, "/")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert not re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", page)
    for script in playground.SCRIPTS:
        text = (playground.FOLDER / script).read_text(encoding="utf-8")
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), script


def test_a_front_without_the_playground_has_neither_page_nor_files() -> None:
    with upstream() as (port, _), fronted(port, playground=False) as front:
        assert [get(front, path)[0] for path in ("/", "/playground/page.js", "/models")] == [405, 404, 404]


def served(task: Task) -> ServedModel:
    return ServedModel(ModelMetadata("toy", (), (), task), task, 1)


def files(folder: Path, generation: dict[str, Any]) -> ModelFiles:
    member = folder / "toy_stream" / "1"
    member.mkdir(parents=True)
    (member / "generation.json").write_text(json.dumps(generation))
    return ModelFiles(str(folder))


def fields_of(folder: Path, **generation: Any) -> dict[str, Any]:
    model = described(served(Task.TEXT_GENERATION), files(folder, GENERATION | generation))
    return {field["path"].removeprefix("parameters."): field for field in model["fields"]}


def test_every_task_has_fields_with_an_example_value() -> None:
    for task in Task:
        fields = described(served(task), ModelFiles(""))["fields"]
        assert any(field["is_required"] and field["value"] for field in fields), task
    assert TASKS.keys() == set(Task)


def test_an_example_with_a_mask_has_the_models_own(tmp_path: Path) -> None:
    member = tmp_path / "toy_postprocess" / "1"
    member.mkdir(parents=True)
    (member / "settings.json").write_text('{"mask_token": "<mask>"}')
    [text, *_] = described(served(Task.FILL_MASK), ModelFiles(str(tmp_path)))["fields"]
    assert "<mask>" in text["value"] and "[MASK]" not in text["value"]


def test_a_parameter_is_a_field_of_the_models_that_take_it() -> None:
    for taken in ((), ("candidate_labels", "threshold", "nested", "multi_label")):
        inputs = tuple(TensorMetadata(name, "BYTES", (-1, -1)) for name in ("text_input", *taken))
        model = ServedModel(ModelMetadata("toy", inputs, ()), Task.TOKEN_CLASSIFICATION, 1)
        fields = described(model, ModelFiles(""))["fields"]
        assert [field["path"] for field in fields] == ["inputs", *(f"parameters.{name}" for name in taken)]


def test_settings_have_the_defaults_of_the_model_and_the_ranges_of_the_table(tmp_path: Path) -> None:
    fields = fields_of(tmp_path)
    assert (fields["num_beams"]["default"], fields["max_tokens"]["default"]) == (4, SETTINGS["max_tokens"].default)
    assert (fields["top_p"]["kind"], fields["top_p"]["allowed"]) == ("number", "a number from 0 to 1")


def test_each_offered_choice_is_a_valid_setting(tmp_path: Path) -> None:
    fields = fields_of(tmp_path, max_source=64, languages={"ids": {"fr": 1}, "source_index": 0, "target": "x"})
    offered = [(name, choice) for name, field in fields.items() for choice in field["choices"]]
    assert {"long", "merge", "early_stopping", "do_sample", "source_lang"} <= {name for name, _ in offered}
    for name, choice in offered:
        checked({name: choice})


def test_settings_that_a_model_can_not_honour_are_no_fields(tmp_path: Path) -> None:
    fields = fields_of(tmp_path)
    assert not {"source_lang", "target_lang", "merge", "overlap", "num_return_sequences"} & fields.keys()
    assert "chunk" not in fields["long"]["choices"]
