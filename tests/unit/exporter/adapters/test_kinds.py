"""Adapters of several architectures and tasks answer like the models that peft merges, alone and in mixed batches."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from hfx.errors import CheckpointUnsupported, HfxError
from hfx.exporter.adapters.export import export_set, read_set
from hfx.exporter.options import ExportOptions
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import open_checkpoint
from hfx.manifest import Manifest
from tests.rigs.checkpoints.tiny_checkpoints import tokenizer
from tests.rigs.checkpoints.tiny_encoders import build
from tests.rigs.machine.tiers import full

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "FEATURE_EXTRACTION": "AutoModel",
}
HEADS = {"classifier", "score"}  # which peft saves for these tasks by itself


def write_set(root: Path, model_type: str, task: str, targets: set[str], counts: tuple[int, int] = (2, 5)) -> Path:
    """Write a backbone with random weights, and two adapters of it of other ranks, with `counts` of labels."""
    with quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backbone = root / "backbone"
        model = build(model_type, CLASSES["SEQ_CLS"])
        model.config.pad_token_id = tokenizer().pad_token_id
        model.save_pretrained(backbone)
        tokenizer().save_pretrained(backbone)
        for seed, labels in enumerate(counts):
            kind, sizes = (
                getattr(transformers, CLASSES[task]),
                {} if task == "FEATURE_EXTRACTION" else {"num_labels": labels},
            )
            plain = kind.from_pretrained(backbone, ignore_mismatched_sizes=True, **sizes)
            linears = {
                path.rpartition(".")[2] for path, each in plain.named_modules() if isinstance(each, torch.nn.Linear)
            }
            config: Any = peft.LoraConfig(
                task_type=task, r=3 + seed, use_rslora=bool(seed), target_modules=sorted(targets or linears - HEADS)
            )
            torch.manual_seed(seed)
            adapted = peft.get_peft_model(plain, config)
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name or ("modules_to_save" in name and parameter.ndim > 1):
                    torch.nn.init.normal_(parameter, std=0.2)
            adapted.save_pretrained(root / "adapters" / f"team-{seed}")
    return backbone


def export_all(root: Path, backbone: Path, **options: Any) -> list[Manifest | HfxError]:
    folders = {folder.name: folder for folder in sorted((root / "adapters").iterdir())}
    return list(export_folders(backbone, folders, **{"repository": root / "repository", **options}).values())


def export_folders(
    backbone: Path, folders: dict[str, Path], repository: Path, **options: Any
) -> dict[str, Manifest | HfxError]:
    chosen: Any = {"precision": "fp32", "repository": repository, **options}
    adapters = read_set(open_checkpoint(str(backbone)), folders, ExportOptions(**chosen))
    return dict(export_set(adapters, lambda title: nullcontext()))


@pytest.mark.parametrize(
    ("model_type", "task", "targets"),
    [
        full("bert", "SEQ_CLS", set()),  # as of rankers and classifiers, below
        ("albert", "SEQ_CLS", set()),  # whose layers share their weights
        full("big_bird", "SEQ_CLS", set()),  # whose pooler changes no answer
        ("qwen3", "SEQ_CLS", set()),  # gated products, and fewer heads of keys
        ("modernbert", "SEQ_CLS", set()),  # whose linears for gates and values stay whole
        full("deberta-v2", "SEQ_CLS", {"dense"}),  # as beside a refused adapter, below
        ("distilbert", "TOKEN_CLS", set()),
        ("bert", "FEATURE_EXTRACTION", {"query", "dense"}),
    ],
)
def test_adapters_of_an_architecture_share_its_net(
    model_type: str, task: str, targets: set[str], tmp_path: Path
) -> None:
    backbone = write_set(tmp_path, model_type, task, targets)
    first, second = export_all(tmp_path, backbone)
    assert isinstance(first, Manifest) and isinstance(second, Manifest), (first, second)
    for manifest, count in ((first, 1), (second, 2)):
        parity: Any = manifest.parity
        assert parity["cpu"]["delta_share"] < 1e-4 and parity["mixed"]["adapters"] == count
    nets = [f"{each.name}_net/1/model.onnx.data" for each in (first, second)]
    assert len({(tmp_path / "repository" / net).stat().st_ino for net in nets}) == 1


@pytest.mark.parametrize("names", [full(["one", "bad", "two"]), ["bad", "one", "two"]])
def test_an_adapter_that_the_graph_can_not_have_is_refused_and_the_others_share_a_net(
    names: list[str], tmp_path: Path
) -> None:
    backbone = write_set(tmp_path / "good", "deberta-v2", "SEQ_CLS", {"dense"})
    write_set(tmp_path / "bad", "deberta-v2", "SEQ_CLS", {"query_proj"})
    folders = {"one": "good/adapters/team-0", "two": "good/adapters/team-1", "bad": "bad/adapters/team-0"}
    repository = tmp_path / "repository"
    outcomes = export_folders(backbone, {name: tmp_path / folders[name] for name in names}, repository)
    late = export_folders(backbone, {"late": tmp_path / "bad/adapters/team-1"}, repository)["late"]
    for outcome, folder in ((outcomes["bad"], "team-0"), (late, "team-1")):
        assert isinstance(outcome, CheckpointUnsupported)
        assert f"bad/adapters/{folder}: " in outcome.message
        assert "query_proj" in outcome.message
    assert isinstance(outcomes["one"], Manifest) and isinstance(outcomes["two"], Manifest), outcomes
    nets = [repository / f"{name}_net/1/model.onnx.data" for name in ("one", "two")]
    assert nets[0].samefile(nets[1])


def test_rankers_and_classifiers_of_one_backbone_have_nets_of_their_own(tmp_path: Path) -> None:
    classifiers = write_set(tmp_path / "classifiers", "bert", "SEQ_CLS", {"query"})
    rankers = write_set(tmp_path / "rankers", "bert", "SEQ_CLS", {"value"}, (1, 1))
    for seed in range(2):
        (tmp_path / f"rankers/adapters/team-{seed}").rename(tmp_path / f"rankers/adapters/ranker-{seed}")
    repository = tmp_path / "repository"
    made = [
        *export_all(tmp_path / "classifiers", classifiers, repository=repository),
        *export_all(tmp_path / "rankers", rankers, repository=repository, task="text-ranking"),
    ]
    records: list[Any] = [each.choices["adapter"] for each in made if isinstance(each, Manifest)]
    assert len({record["backbone_sha256"] for record in records}) == 1
    assert [record["shared_net"] == records[0]["shared_net"] for record in records] == [True, True, False, False]
