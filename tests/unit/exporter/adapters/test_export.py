"""Adapters of a backbone are published with its net, each by itself: one that is refused doesn't stop the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel

from hfx.cli import main
from hfx.errors import (
    CheckpointCorrupt,
    CheckpointUnsupported,
    HfxError,
    RepositoryError,
    UsageError,
    VerificationFailed,
)
from hfx.exporter.adapters import steps as adapter_steps
from hfx.exporter.adapters.export import export_set, named_adapters, read_set
from hfx.exporter.adapters.folder import read_adapter
from hfx.exporter.adapters.graph import ADAPTER
from hfx.exporter.adapters.part import AdapterPart
from hfx.exporter.adapters.pool import Layout
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest, hash_folder
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE
from hfx.repository import recover
from hfx.repository.staging import stagings
from tests.rigs.checkpoints.adapters import write_adapter, write_head
from tests.rigs.machine.faults import Killer
from tests.rigs.machine.tiers import full
from tests.unit.exporter.adapters.adapters import WORDS, edit_fields, save_backbone

pytestmark = pytest.mark.slow

NAMES = ["joy", "anger", "fear", "love", "surprise"]
ALL_LINEARS = ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]
TEXTS = ["a", "a b c", "x y z q", "i a m f i n e", "k k k k k k k k k k k k", "", "w o r d s " * 5]
Outcomes = Mapping[str, Manifest | HfxError]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return save_backbone(tmp_path_factory.mktemp("backbone") / "tiny", "distilbert")


@pytest.fixture(scope="module")
def folders(backbone: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of adapters with one, two, three and five labels, and of a head."""
    root, origin = tmp_path_factory.mktemp("adapters"), backbone.folder
    return {
        "two": write_adapter(root / "two", origin, 1, size=0.5),
        "five": write_adapter(root / "five", origin, 2, labels=5, size=0.5, names=NAMES),
        "single": write_adapter(root / "single", origin, 3, labels=1, size=0.5),
        "wide": write_adapter(root / "wide", origin, 4, labels=3, r=16, target_modules=ALL_LINEARS),
        "head": write_head(root / "head", origin, 5, labels=3),
    }


@pytest.fixture(scope="module")
def repository(backbone: Checkpoint, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All adapters, published in fp32. No test changes them."""
    target = tmp_path_factory.mktemp("repository")
    outcomes = export_all(backbone, folders, target)
    assert [each for each in outcomes.values() if isinstance(each, HfxError)] == []
    return target


def export_all(backbone: Checkpoint, folders: Mapping[str, Path], repository: Path, **options: Any) -> Outcomes:
    chosen: Any = {"precision": "fp32", **options}
    adapters = read_set(backbone, folders, ExportOptions(repository=repository, **chosen))
    return dict(export_set(adapters, lambda title: nullcontext()))


def published(repository: Path) -> dict[str, object]:
    """Return every file of the models in `repository`, hashed."""
    return {each.name: hash_folder(each, repository) for each in repository.iterdir() if not each.name.startswith(".")}


def in_torch(backbone: Checkpoint, folder: Path, labels: int, tokens: Path | None = None) -> Any:
    """Return the model of `folder` as transformers and peft read it, as a pipeline."""
    kind, tokenizer = transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer
    if (folder / "model.safetensors").exists():
        model = kind.from_pretrained(folder)
    else:
        plain = kind.from_pretrained(backbone.folder, num_labels=labels)
        model = PeftModel.from_pretrained(plain, folder).merge_and_unload()
        if (folder / "config.json").exists():
            model.config.id2label = dict(enumerate(NAMES))
    return transformers.pipeline(
        "text-classification", model.eval(), tokenizer=tokenizer.from_pretrained(tokens or backbone.folder), top_k=None
    )


@pytest.mark.parametrize(("name", "labels"), [("two", 2), ("five", 5), ("single", 1), ("wide", 3), ("head", 3)])
def test_an_adapter_answers_like_the_model_that_peft_merges(
    name: str, labels: int, repository: Path, backbone: Checkpoint, folders: dict[str, Path]
) -> None:
    expected = in_torch(backbone, folders[name], labels)(TEXTS)
    answers = LocalModel.open(repository, name).infer_all([{"text_input": text, "top_k": labels} for text in TEXTS])
    for answer, texts in zip(answers, expected, strict=True):
        assert answer["label"] == [each["label"] for each in texts]
        assert answer["score"] == pytest.approx([each["score"] for each in texts], abs=1e-4)


def test_adapters_share_the_files_of_the_net(repository: Path, folders: dict[str, Path]) -> None:
    for file in ("model.onnx", "model.onnx.data"):
        first, *others = (repository / f"{name}_net/1" / file for name in folders)
        assert all(each.samefile(first) for each in others)
    assert len({(repository / f"{name}_net/1" / ADAPTER_FILE).read_bytes() for name in folders}) == len(folders)


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        ({"r": 64}, "rank at .* is 64; the others' net has room for 16"),
        ({"labels": 40}, "40 outputs; .* room for 16"),
    ],
)
def test_an_adapter_for_which_a_published_net_has_no_room_is_refused(
    lora: dict[str, Any], reason: str, repository: Path, backbone: Checkpoint, tmp_path: Path
) -> None:
    before = published(repository)
    late = write_adapter(tmp_path / "late", backbone.folder, 6, **lora)
    with pytest.raises(CheckpointUnsupported, match=reason):
        raise_first(export_all(backbone, {"late": late}, repository))
    assert published(repository) == before


def test_an_adapter_with_a_layer_of_the_head_that_the_published_net_lacks_is_refused(
    backbone: Checkpoint, folders: dict[str, Path]
) -> None:
    layout = Layout()
    layout.add("classifier", 32, 16)
    part = AdapterPart(
        backbone=backbone,
        sha256="",
        adapter=read_adapter("two", folders["two"]),
        rooms=layout.rooms,
        labels_room=16,
        group="SEQ_CLS",
        published=(),
        donor=None,
    )
    with pytest.raises(CheckpointUnsupported, match="adapts pre_classifier, which the others"):
        part.slot(layout, torch.nn.Module())


def raise_first(outcomes: Outcomes) -> None:
    for outcome in outcomes.values():
        if isinstance(outcome, HfxError):
            raise outcome


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "m"}, "without --name"),
        ({"verify_data": (Path("dev.csv"),)}, "without --verify-data"),
        ({"calibrate": Path("dev.csv")}, "without --calibrate"),
        ({"device": "gpu"}, "are for CPUs"),
        ({"cpu_runtime": "onnxruntime"}, "need the native runtime"),
    ],
)
def test_options_that_adapters_do_not_have_are_refused(
    options: dict[str, Any], reason: str, backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=reason):
        export_all(backbone, folders, tmp_path / "repository", **options)
    assert not (tmp_path / "repository").exists()


def test_names_that_are_given_twice_or_published_are_refused(
    repository: Path, backbone: Checkpoint, folders: dict[str, Path]
) -> None:
    adapter = f"two={folders['two']}"
    for chosen in (
        {"adapter": (adapter, adapter)},
        {"adapters": folders["two"].parent, "adapter": (adapter,)},
    ):
        with pytest.raises(UsageError, match=r"Two adapters .* 'two'"):
            named_adapters(ExportOptions(**chosen))
    with pytest.raises(RepositoryError, match="'two' exists"):
        export_all(backbone, {"new": folders["five"], "two": folders["two"]}, repository)


def test_adapters_whose_weights_are_exchanged_are_refused(
    backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {"two": folders["two"], "other": write_adapter(tmp_path / "other", backbone.folder, 7, size=0.5)}
    options = ExportOptions(repository=tmp_path / "repository", precision="fp32")
    chosen = read_set(backbone, pair, options)
    one, two = (each.products for each in chosen.adapters)
    write = Layout.slot
    monkeypatch.setattr(
        Layout, "slot", lambda self, products, heads: write(self, two if products is one else one, heads)
    )
    outcomes = dict(export_set(chosen, lambda title: nullcontext()))
    assert [type(each) for each in outcomes.values()] == [VerificationFailed] * 2
    assert published(options.repository) == {}


def test_an_adapter_whose_answers_depend_on_others_in_the_batch_is_refused(
    backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = adapter_steps._session

    class Shifted:
        """A session that gives each row the weights of the row after it."""

        def __init__(self, *arguments: Any) -> None:
            self.session = opened(*arguments)

        def run(self, names: Any, feed: dict[str, Any]) -> Any:
            return self.session.run(names, feed | {ADAPTER: np.roll(feed[ADAPTER], -1)} if ADAPTER in feed else feed)

    monkeypatch.setattr(adapter_steps, "_session", Shifted)
    outcomes = export_all(backbone, {name: folders[name] for name in ("two", "five")}, tmp_path / "repository")
    assert isinstance(outcomes["two"], Manifest)  # which is alone
    with pytest.raises(HfxError, match=r"five .* batch"):
        raise_first(outcomes)


def test_the_command_publishes_the_others_of_a_set_and_fails_with_the_error_of_one(
    backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    bad = write_adapter(tmp_path / "bad", backbone.folder, 8, size=1e20)  # its answers are not finite
    adapters = {"five": folders["five"], "bad": bad, "two": folders["two"]}
    pairs = [word for name, folder in adapters.items() for word in ("--adapter", f"{name}={folder}")]
    words = ["export", str(backbone.folder), *pairs, "--precision", "fp32", "--repository", str(tmp_path / "r")]
    monkeypatch.setattr("sys.argv", ["hfx", *words])
    assert main(words) == VerificationFailed("").exit_code
    printed = capsys.readouterr()
    assert printed.out.count("Published ") == 2
    assert "Not published: bad." in printed.err
    assert main(["list", str(tmp_path / "r"), "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["models"]] == ["five", "two"]
    assert main(["export", "--again", "two", "--repository", str(tmp_path / "r")]) == 2
    again = "hfx export tiny --precision fp32 --repository r --adapter two=FOLDER --force"
    assert again in capsys.readouterr().err
    assert str(tmp_path) not in (tmp_path / "r/two/config.pbtxt").read_text()


def test_a_head_with_a_tokenizer_of_its_own_keeps_it_and_shares_the_net(
    backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", backbone.folder, 5, labels=2)
    tokenizer = json.loads((head / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"b": WORDS.index("a"), "a": WORDS.index("b")}
    (head / "tokenizer.json").write_text(json.dumps(tokenizer))
    outcomes = export_all(backbone, {"head": head, "two": folders["two"]}, tmp_path / "repository")
    raise_first(outcomes)
    nets = [tmp_path / f"repository/{name}_net/1/model.onnx.data" for name in outcomes]
    assert nets[0].samefile(nets[1])
    request = {"text_input": "a", "top_k": 2}
    for name, labels in (("head", 2), ("two", 2)):
        [answer] = LocalModel.open(tmp_path / "repository", name).infer_all([request])
        folder = head if name == "head" else folders[name]
        [expected] = in_torch(backbone, folder, labels, head if name == "head" else None)(["a"])
        assert answer["score"] == pytest.approx([each["score"] for each in expected], abs=1e-4)


def test_an_adapter_that_is_damaged_stops_the_set_before_its_export(
    backbone: Checkpoint, folders: dict[str, Path], tmp_path: Path
) -> None:
    bad = write_adapter(tmp_path / "bad", backbone.folder, 9)
    edit_fields(bad, r=5)
    with pytest.raises(CheckpointCorrupt, match="rank is 4, but 5"):
        export_all(backbone, {"two": folders["two"], "bad": bad}, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


KILLED = """
from contextlib import nullcontext
from pathlib import Path
from hfx.exporter.adapters.export import export_set, read_set
from hfx.exporter.adapters import steps
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
import onnxruntime, peft, transformers.models.distilbert.modeling_distilbert

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def work(arm, backbone, adapter, repository, function):
    setattr(steps, function, kill)
    options = ExportOptions(precision="fp32", repository=Path(repository))
    adapters = read_set(open_checkpoint(backbone), {"killed": Path(adapter)}, options)
    dict(export_set(adapters, lambda title: nullcontext()))
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[Killer]:
    """A process that exports an adapter in forks, each of which is killed where it calls a function."""
    with Killer(KILLED) as running:
        yield running


@pytest.mark.parametrize("function", [full("_session"), "link_to_donor"])
def test_a_killed_export_leaves_the_published_adapters_as_they_were(
    function: str, exporter: Killer, repository: Path, backbone: Checkpoint, folders: dict[str, Path]
) -> None:
    before = published(repository)
    assert exporter.kill(0, str(backbone.folder), str(folders["two"]), str(repository), function) is None
    recover(repository)
    assert not stagings(repository) and published(repository) == before
