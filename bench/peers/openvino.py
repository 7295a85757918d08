"""optimum-intel: OpenVINO's runtime under transformers' generate and pipelines, weights by nncf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bench.peers import packages
from bench.peers.cases import Wanted
from bench.peers.classifying import Classifying
from bench.peers.decoding import Generating, Ids, model_class
from bench.peers.model import Model

PACKAGES = packages.Packages(
    "peers",
    (
        "optimum-intel==2.2.0",
        "optimum==2.3.0",
        "nncf==3.4.0",
        "scikit-learn==1.9.1",
        "joblib==1.6.0",
        "threadpoolctl==3.8.0",
        "cloudpickle==3.1.2",
        "narwhals==2.28.0",
        "pydot==4.0.1",
        "pyparsing==3.3.3",
        "tabulate==0.10.0",
        "ninja==1.13.2",
        "psutil==7.2.2",
    ),
)
# One scale for each group of a row's activations: 128 is the fastest for batches, 32 (the default) for a row of int4.
GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
GROUPS = {"int8": ("128", "128"), "int4": ("32", "128")}  # (of one row, of several)
BITS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {},
    "int8": {"bits": 8, "sym": False},
    "int4": {"bits": 4, "sym": True, "group_size": 128, "ratio": 1.0, "group_size_fallback": "ignore"},
}
CLASSIFIER = "OVModelForSequenceClassification"

Options = Callable[[int], dict[str, str]]  # the properties for so many rows


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The checkpoint as OpenVINO files; with int4 weights, the embedding and the head stay int8."""
    export(model_class(model, "OV"), model, folder, fetched, BITS[precision])


def convert_classifier(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The checkpoint as OpenVINO files."""
    export(CLASSIFIER, model, folder, fetched, BITS[precision])


def export(name: str, model: Model, folder: str, fetched: str, bits: Mapping[str, Any]) -> None:
    """The checkpoint by optimum-intel's class NAME, with `bits` for nncf (empty: float32)."""
    packages.use(fetched)
    import optimum.intel

    quantization = optimum.intel.OVWeightQuantizationConfig(**bits) if bits else None
    options = {"quantization_config": quantization} if bits else {"load_in_8bit": False}
    kind = getattr(optimum.intel, name)
    kind.from_pretrained(model.files, export=True, compile=False, **options).save_pretrained(folder)


def open_net(model: Model, folder: str, fetched: str, precision: str, threads: int, hint: str = "") -> Net:
    """The converted generator for a single stream of requests; `hint` as properties() says."""
    opener = partial(_opened, model_class(model, "OV"), folder, fetched)
    return Net(model, opener, partial(properties, precision, threads, hint=hint))


class Net:
    """The generator, compiled again where another number of rows wants other properties."""

    def __init__(self, model: Model, opener: Callable[[dict[str, str]], Any], options: Options) -> None:
        self._model = model
        self._opener = opener
        self._options = options
        self._nets: dict[str, Generating] = {}
        self._net(rows=1)  # opened before it is measured

    def generate(self, prompts: Sequence[Ids], wanted: Wanted) -> list[Ids]:
        """The new ids of each row."""
        return self._net(len(prompts) * wanted.beams).generate(prompts, wanted)

    def _net(self, rows: int) -> Generating:
        options = self._options(rows)
        group = options.get(GROUP, "")
        if group not in self._nets:
            self._nets[group] = Generating(self._opener(options), self._model)
        return self._nets[group]


def open_classifier(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Classifying:
    """The converted classifier for a single stream of requests; activations of int8 by OpenVINO's defaults."""
    wanted = properties("bf16" if precision == "int8" else precision, threads)
    return Classifying(_opened(CLASSIFIER, folder, fetched, wanted), model)


def properties(precision: str, threads: int, rows: int = 1, hint: str = "") -> dict[str, str]:
    """What a model is compiled for where it mostly computes `rows` at once.

    By default, what has no integers is computed in bfloat16 where the processor can; fp32 is float32 all through, and
    others are with the `hint` "f32": where there are tiles (AMX), bfloat16 takes the place of products of int8 too.
    """
    found = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    if hint or precision == "fp32":
        found["INFERENCE_PRECISION_HINT"] = hint or "f32"
    return {**found, GROUP: GROUPS[precision][rows > 1]} if precision in GROUPS else found


def _opened(name: str, folder: str, fetched: str, options: dict[str, str]) -> Any:
    packages.use(fetched)
    import optimum.intel

    return getattr(optimum.intel, name).from_pretrained(folder, ov_config=options)
