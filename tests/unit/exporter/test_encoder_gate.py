"""The gate of encoders: each limit, what is measured of a net that differs, and the checkpoint's side of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.errors import CheckpointUnsupported, VerificationFailed
from hfx.exporter.encoder import gate
from hfx.exporter.encoder.gate import (
    ENOUGH,
    LIMITS,
    Figures,
    Limits,
    Reference,
    accuracy_of,
    check_tokens,
    judge,
    limits,
    make_reference,
    measure,
    one_line,
    prompted,
)
from hfx.exporter.encoder.kinds import EncoderKind
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.local import Tensors
from hfx.local.encoder import LocalModel
from hfx.manifest import read_manifest
from hfx.names import MANIFEST_FILE
from hfx.python_backends.settings import Settings
from tests import zoo
from tests.conftest import PUBLISHED, publish

NAN = float("nan")
FIGURES = Figures(
    requests=100, delta=1e-5, delta_share=1e-6, agreement=1.0, ties=0.0, mean_drift=1e-6, max_drift=1e-5,
    batch_delta=0.0, rank_correlation=1.0, made_agreement=1.0, made_drift=1e-6, made_ranks=1.0,
    by_label={"A": 1.0, "B": 1.0},
)  # fmt: skip


TEXTS = ["good", "a bad film", "good and bad", "it was the best film of all", "no", "fine film!"] * 5 + [
    "good " * 25
] * 40


@dataclass
class Side:
    """A published encoder and its checkpoint, and the checkpoint's answers to TEXTS."""

    model_folder: Path
    model: LocalModel
    kind: EncoderKind
    checkpoint: Any
    pooler: Any
    tokenizer: Any
    inputs: tuple[str, ...]
    reference: Reference

    @property
    def largest(self) -> float:
        return max(float(np.abs(value).max()) for each in self.reference.outputs for value in each.values())

    def changed(self, at: int, change: Callable[[Any], Any], encoded: Sequence[Tensors] = ()) -> gate.Run:
        """Return what runs the net, and changes the outputs of request `at`."""
        own = (encoded or self.reference.encoded)[at]

        def run(requests: Sequence[Tensors]) -> list[Tensors]:
            outputs = self.model.run(requests)
            return [
                {name: change(value) for name, value in output.items()} if request is own else output
                for request, output in zip(requests, outputs, strict=True)
            ]

        return run

    def torch_outputs(self, feed: dict[str, Any]) -> Any:
        result = self.checkpoint(**feed)
        if self.pooler is None:
            return result.logits.numpy()
        return self.pooler(getattr(result, self.pooler.reads), feed["attention_mask"]).numpy()


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in ("entities", "similar")])
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Side:
    repository, name = tmp_path_factory.mktemp("repository"), f"{request.param}-fp32"
    publish(name, repository)
    checkpoint = str(zoo.checkpoint(PUBLISHED[name][0]))
    plan: Any = make_plan(open_checkpoint(checkpoint), ExportOptions(name=name, repository=repository))
    tokenizer = plan.kind.load_tokenizer(plan.checkpoint)
    net, pooler = plan.kind.load_model(plan.checkpoint, tokenizer)
    model = LocalModel.open(repository, name)
    inputs = tuple(model.encoder.settings.inputs)
    reference = make_reference(model, list(plan.kind.samples(TEXTS)), net, inputs, pooler)
    return Side(repository / name, model, plan.kind, net, pooler, tokenizer, inputs, reference)


# Limits


@pytest.mark.parametrize(
    ("accuracy", "changes", "words"),
    [
        ("fp32", {"agreement": 0.99}, "agreement with ties 0.9900, at least 0.9950"),
        ("fp32", {"agreement": 0.99, "ties": 0.004}, "agreement with ties 0.9940"),
        ("fp32", {"mean_drift": 2e-4}, "mean score drift 2.00e-04, at most 1.00e-04"),
        ("fp32", {"delta_share": 2e-3}, "of the largest output, at most 1.00e-03"),
        ("fp32", {"batch_delta": 1e-9}, "depend on their batch by 1.00e-09"),
        ("fp32", {"rank_correlation": 0.998}, "rank correlation of pairs 0.9980, at least 0.9990"),
        ("fp32", {"made_agreement": 0.99}, "agreement with ties of texts made of the vocabulary 0.9900"),
        ("fp32", {"made_drift": 2e-4}, "mean score drift of texts made of the vocabulary"),
        ("fp32", {"made_ranks": 0.998}, "rank correlation of pairs of texts made of the vocabulary"),
        ("fp32", {"by_label": {"A": 1.0, "B": 0.99}}, "F1 with ties of 'B' 0.9900, at least 0.9950"),
        ("fp32", {"delta": NAN}, "outputs finite"),
        ("fp32", {"delta": float("inf")}, "outputs finite"),
        ("fp32", {"agreement": NAN}, "agreement"),
        ("fp32", {"mean_drift": NAN}, "drift"),
        ("fp32", {"batch_delta": NAN}, "batch"),
        ("fp32", {"delta_share": NAN}, "largest difference"),
        ("fp32", {"rank_correlation": NAN}, "rank"),
        ("fp32", {"made_ranks": NAN}, "rank"),
        ("bf16", {"agreement": 0.9499}, "agreement"),
        ("bf16", {"mean_drift": 1.1e-2}, "drift"),
        ("bf16", {"batch_delta": 1e-9}, "batch"),
        ("bf16", {"rank_correlation": 0.9499}, "rank"),
        ("fp16", {"agreement": 0.9849}, "agreement"),
        ("fp16", {"mean_drift": 5.1e-3}, "drift"),
        ("fp16", {"rank_correlation": 0.9899}, "rank"),
        ("int8", {"agreement": 0.9499}, "agreement"),
        ("int8", {"mean_drift": 2.1e-2}, "drift"),
        ("int8", {"batch_delta": 1e-9}, "batch"),
        ("int8", {"made_ranks": 0.9499}, "rank"),
        ("int8", {"delta": NAN}, "outputs finite"),
    ],
)
def test_a_figure_beyond_its_limit_is_refused_by_its_name(accuracy: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(VerificationFailed, match="It does not answer like the checkpoint on 100 requests") as refused:
        judge("It", replace(FIGURES, **changes), LIMITS[accuracy])
    assert words in refused.value.message and ";" not in refused.value.message


@pytest.mark.parametrize(
    ("accuracy", "changes"),
    [
        ("fp32", {}),
        (
            "fp32",
            {"agreement": 0.99, "ties": 0.005, "mean_drift": 1e-4, "delta_share": 1e-3, "rank_correlation": 0.999},
        ),
        ("fp32", {"made_agreement": 0.995, "made_drift": 1e-4, "made_ranks": 0.999, "by_label": {"A": 0.995}}),
        ("fp32", {"rank_correlation": None, "made_agreement": None, "made_drift": None, "made_ranks": None}),
        ("fp32", {"by_label": {}, "max_drift": 1.0}),
        ("bf16", {"agreement": 0.95, "mean_drift": 1e-2, "delta_share": 0.5, "rank_correlation": 0.95}),
        ("fp16", {"agreement": 0.985, "mean_drift": 5e-3, "delta_share": 0.5, "batch_delta": 0.1, "made_ranks": 0.99}),
        ("int8", {"agreement": 0.95, "mean_drift": 2e-2, "delta_share": 0.5, "rank_correlation": 0.95}),
    ],
)
def test_figures_at_their_limits_pass(accuracy: str, changes: dict[str, Any]) -> None:
    judge("It", replace(FIGURES, **changes), LIMITS[accuracy])


def test_the_user_may_accept_more_changes_of_answers_but_none_of_the_bits_in_a_batch() -> None:
    assert limits("int8", None) == LIMITS["int8"]
    assert limits("int8", 0.1) == Limits(agreement=0.9, drift=0.1, delta=None, batch_delta=0.0, ranks=0.9)
    assert limits("fp32", 0.0) == replace(LIMITS["fp32"], agreement=1.0)
    assert limits("fp32", 0.0, labelled=True) == replace(LIMITS["fp32"], agreement=1.0, ranks=None)
    assert limits("fp16", None, labelled=True) == replace(LIMITS["fp16"], ranks=None)


def test_figures_in_the_manifest_have_six_digits_and_no_empty_tables() -> None:
    assert FIGURES.as_json() == asdict(FIGURES)
    shortened = replace(FIGURES, agreement=1 / 3, made_ranks=None, by_label={}).as_json()
    assert {**shortened, "by_label": FIGURES.by_label} == {
        **asdict(FIGURES),
        "agreement": 0.333333,
        "made_ranks": None,
    }
    assert "by_label" not in shortened


def test_a_file_is_judged_by_its_precision_or_by_the_type_that_the_processor_computes_in(side: Side) -> None:
    manifest = read_manifest(side.model_folder / MANIFEST_FILE)
    precision = replace(manifest.precision, cpu="int8", gpu="fp16")
    manifest = replace(manifest, precision=precision, choices={})
    assert (accuracy_of(manifest, "cpu"), accuracy_of(manifest, "gpu")) == ("int8", "fp16")
    manifest = replace(manifest, choices={"cpu_math": "bf16"})
    assert (accuracy_of(manifest, "cpu"), accuracy_of(manifest, "gpu")) == ("bf16", "fp16")


def test_a_request_is_shown_on_one_line_of_limited_length() -> None:
    fits = {"text_input": "é" * 102}
    assert one_line(fits) == json.dumps(fits, ensure_ascii=False) and len(one_line(fits)) == 120
    assert one_line({"text_input": "é" * 103}) == one_line(fits)[:-2] + 'é"...'


def test_a_prompt_is_put_before_the_text_or_left_to_the_template() -> None:
    settings = Settings("feature-extraction", 8, (8,), prompts={"query": "q: ", "none": ""}, default_prompt="d: ")
    assert prompted({"text_input": "a"}, settings) == {"text_input": "d: a"}
    assert prompted({"text_input": "a", "prompt_name": "query"}, settings)["text_input"] == "q: a"
    assert prompted({"text_input": "a", "prompt_name": "none"}, settings)["text_input"] == "a"
    assert prompted({"query": "a", "text_input": "b"}, settings) == {"query": "d: a", "text_input": "b"}
    with_template = replace(settings, template=("", "text_input", ""))
    assert prompted({"text_input": "a"}, with_template) == {"text_input": "a", "prompt": "d: "}
    assert prompted({"text_input": "a"}, replace(settings, prompts=None, default_prompt="")) == {"text_input": "a"}


# Measurements of real nets


def test_a_published_net_answers_like_its_checkpoint_alone_and_in_a_batch(side: Side) -> None:
    singles: list[int] = []

    def run(encoded: Sequence[Tensors]) -> list[Tensors]:
        if len(encoded) == 1:
            singles.append(next(i for i, each in enumerate(side.reference.encoded) if each is encoded[0]))
        return side.model.run(encoded)

    figures = measure(side.model, side.kind, side.reference, run)
    judge("It", figures, LIMITS["fp32"])
    assert (figures.requests, figures.agreement, figures.ties, figures.batch_delta) == (len(TEXTS), 1.0, 0.0, 0.0)
    assert 0 < figures.delta < 1e-5 and figures.delta_share == figures.delta / max(1, side.largest)
    assert 0 < figures.mean_drift < figures.max_drift < 1e-5
    assert (figures.rank_correlation is not None) == side.kind.ranks == (figures.rank_correlation == 1.0)
    assert (figures.made_agreement, figures.made_drift, figures.made_ranks) == (None, None, None)
    assert len(singles) == 64 < len(TEXTS) and singles[0] == 0 and singles[-1] == len(TEXTS) - 1
    assert measure(side.model, side.kind, side.reference) == figures


def test_a_net_passes_the_gate_only_if_its_figures_are_within_the_limits(side: Side) -> None:
    every = gate.Gate(side.kind, side.reference, max_drop=None, labelled=False)
    assert every.passed("It", side.model, LIMITS["fp32"]) == measure(side.model, side.kind, side.reference)
    with pytest.raises(VerificationFailed, match=r"^It does not answer like the checkpoint"):
        every.passed("It", side.model, LIMITS["fp32"], side.changed(0, lambda value: value + 1))


def test_what_differs_in_one_answer_is_measured_with_the_texts_that_have_it(side: Side) -> None:
    made = replace(side.reference, made=ENOUGH)
    last, before = len(TEXTS) - ENOUGH, len(TEXTS) - ENOUGH - 1

    def figures(at: int, reference: Reference = made) -> Figures:
        return measure(side.model, side.kind, reference, side.changed(at, lambda value: -value))

    plain, found = measure(side.model, side.kind, made), figures(last)
    assert plain.made_agreement == 1.0 and plain.made_drift is not None and plain.made_drift < 1e-5
    worst = max(float(np.abs(value).max()) for value in side.reference.outputs[last].values())
    assert found.delta == pytest.approx(2 * worst, rel=1e-3) and found.batch_delta == 0.0
    assert found.delta_share == pytest.approx(found.delta / max(1, side.largest))
    assert found.max_drift > 0.1 and found.mean_drift == pytest.approx(found.max_drift / len(TEXTS), rel=1e-3)
    assert found.made_drift == pytest.approx(found.max_drift / ENOUGH, rel=1e-3)
    assert figures(before).made_drift == plain.made_drift and figures(before).max_drift > 0.1
    assert figures(last, replace(made, made=ENOUGH - 1)).made_drift is None
    if not side.kind.ranks:
        assert 1 - 1 / len(TEXTS) <= found.agreement < 1
        assert found.made_agreement == pytest.approx(1 - (1 - found.agreement) * len(TEXTS) / ENOUGH)


def test_an_output_that_is_not_a_number_is_refused(side: Side) -> None:
    figures = measure(side.model, side.kind, side.reference, side.changed(3, lambda value: value * np.float32(np.nan)))
    assert np.isnan(figures.delta)
    with pytest.raises(VerificationFailed, match="outputs finite"):
        judge("It", figures, LIMITS["int8"])


def test_an_output_that_depends_on_its_batch_is_refused(side: Side) -> None:
    def run(encoded: Sequence[Tensors]) -> list[Tensors]:
        return [
            {name: value + np.float32(1e-3 * (len(encoded) == 1)) for name, value in each.items()}
            for each in side.model.run(encoded)
        ]

    figures = measure(side.model, side.kind, side.reference, run)
    assert figures.batch_delta == pytest.approx(1e-3, rel=1e-2) and figures.agreement == 1.0
    with pytest.raises(VerificationFailed, match="depend on their batch"):
        judge("It", figures, LIMITS["int8"])


def test_outputs_at_padding_do_not_count(side: Side) -> None:
    at, name = TEXTS.index("a bad film"), next(iter(side.reference.outputs[0]))
    if name not in side.model.token_outputs:
        return
    length = int(side.reference.encoded[at]["attention_mask"].sum())
    assert length < side.reference.encoded[at]["attention_mask"].shape[-1]

    def delta(position: int) -> float:
        def change(value: Any) -> Any:
            value = value.copy()
            value[..., position, :] += 5
            return value

        return measure(side.model, side.kind, side.reference, side.changed(at, change)).delta

    assert delta(length) < 1e-5 and delta(length - 1) == pytest.approx(5, abs=1e-3)


# The checkpoint's side


def test_the_checkpoint_reads_each_text_without_padding(side: Side) -> None:
    """With several lengths."""
    for encoded, outputs in zip(side.reference.encoded, side.reference.outputs, strict=True):
        length = int(encoded["attention_mask"].sum())
        feed = {
            name: torch.from_numpy(encoded[name].reshape(1, -1)[:, :length].astype(np.int64)) for name in side.inputs
        }
        [(name, found)] = outputs.items()
        with torch.inference_mode():
            expected = side.torch_outputs(feed)
        if name in side.model.token_outputs:
            assert not found[:, :, length:].any()
            found = found[:, 0, :length]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-5)


def test_a_text_that_the_checkpoint_itself_fails_on_is_named_by_its_length(side: Side) -> None:
    def forward(*lengths: int) -> list[Tensors]:
        shape = side.reference.encoded[0]["input_ids"].shape[:-1]
        values = {"input_ids": 5, "attention_mask": 1, "token_type_ids": 0}
        requests = [
            {name: np.full((*shape, length), values[name], np.int32) for name in side.inputs} for length in lengths
        ]
        outputs, by_token = side.model.layout.outputs, side.model.token_outputs
        return gate.forward(side.checkpoint, requests, side.inputs, outputs, by_token, side.pooler)

    assert len(forward(5, 100)) == 2
    with pytest.raises(CheckpointUnsupported, match=r"fails on a text of 2000 tokens") as refused:
        forward(100, 2000, 5)
    assert "--max-length 100" in refused.value.fix
    with pytest.raises(CheckpointUnsupported) as refused:
        forward(2000)
    assert "max-length" not in refused.value.fix


def test_a_checkpoint_that_refuses_batches_answers_one_by_one(side: Side) -> None:
    class OneByOne(torch.nn.Module):
        def forward(self, **inputs: Any) -> Any:
            if len(inputs["input_ids"]) > 1:
                raise ValueError("one at a time")
            return side.checkpoint(**inputs)

    requests, encoded = side.reference.requests[:20], side.reference.encoded[:20]
    model = OneByOne()
    found = gate.forward(model, encoded, side.inputs, side.model.layout.outputs, side.model.token_outputs, side.pooler)
    for ours, whole in zip(found, side.reference.outputs[: len(requests)], strict=True):
        for name, value in whole.items():
            np.testing.assert_allclose(ours[name], value, atol=1e-5)


def test_tokens_that_differ_from_the_checkpoints_are_refused(side: Side) -> None:
    assert check_tokens(side.model, side.kind, side.tokenizer, side.reference) == len(TEXTS)
    changed = [dict(each) for each in side.reference.encoded]
    changed[1]["input_ids"] = changed[1]["input_ids"].copy()
    changed[1]["input_ids"][..., 2] += 1
    with pytest.raises(VerificationFailed, match=r"differ on .*a bad film"):
        check_tokens(side.model, side.kind, side.tokenizer, replace(side.reference, encoded=changed))
