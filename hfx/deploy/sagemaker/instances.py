"""Instance types: which can run a bundle, and the cheapest that a price file has room for.

hfx has no prices of its own: they differ by region and change. A price file is JSON:

    {"source": "…", "date": "2026-11-01", "region": "eu-west-1", "currency": "USD",
     "instances": {"ml.c7i.xlarge": {"price": 0.2, "vcpus": 4, "memory_gib": 8, "gpus": 0}}}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy.deployment import Deployment, mib
from hfx.errors import UsageError

INSTANCE_PATTERN = re.compile(r"ml\.(?P<family>[a-z]+)(?P<generation>\d+)(?P<features>[a-z]*)\.(?P<size>[a-z0-9]+)")
GPU_FAMILIES = {"g", "p"}
# Elastic Inference took no new customers from April 2023 on; the others are chips that neither ONNX Runtime's nor
# OpenVINO's wheels run on.
OTHER_CHIPS = {"eia": "Elastic Inference has ended", "inf": "Inferentia runs Neuron models", "trn": "as Inferentia"}
GRAVITON = "g"  # in the features of a CPU family: an Arm processor; a bundle's wheels are for x86-64


def check_instance_type(name: str, device: str) -> str:
    """`name` when it can run a bundle for `device`; UsageError otherwise."""
    match = INSTANCE_PATTERN.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is no instance type.", "Give one like ml.c7i.xlarge.")
    family, features = match["family"], match["features"]
    if family in OTHER_CHIPS:
        raise UsageError(f"{name} can't run ONNX models: {OTHER_CHIPS[family]}.", "Choose a CPU or NVIDIA type.")
    if family not in GPU_FAMILIES and GRAVITON in features:
        raise UsageError(f"{name} has Arm processors; the wheels of a bundle are for x86-64.", "Choose another type.")
    if device == "gpu" and family not in GPU_FAMILIES:
        raise UsageError(f"{name} has no GPU.", "Choose one of ml.g or ml.p, or use --device cpu.")
    return name


@dataclass(frozen=True, slots=True)
class Price:
    """What an instance costs an hour, and what it has; `source` says whose figure it is and of which day."""

    instance_type: str
    hourly: float
    currency: str
    vcpus: int
    memory_bytes: int
    gpus: int
    source: str


def read_prices(path: Path, region: str) -> dict[str, Price]:
    """The prices of the file at `path`, by instance type. Raises UsageError for a file of another form or region."""
    try:
        table = json.loads(path.read_text("utf-8"))
        head = {key: _text(table[key]) for key in ("source", "date", "region", "currency")}
        source = f"{head['source']}, {head['date']}"
        prices = {name: _price(name, row, head["currency"], source) for name, row in table["instances"].items()}
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path} is no price file: {error!r}.", "docs/deploy-sagemaker.md has its form.") from error
    if head["region"] != region:
        raise UsageError(f"{path} has the prices of {head['region']}, not of {region}.", "Give those of the region.")
    return prices


def _price(name: str, row: dict[str, Any], currency: str, source: str) -> Price:
    hourly = float(row["price"])
    if not 0 < hourly < 1e6:
        raise ValueError(f"price {hourly}")
    memory = int(row["memory_gib"] * (1 << 30))
    return Price(name, hourly, currency, int(row["vcpus"]), memory, int(row["gpus"]), source)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


def cheapest(prices: dict[str, Price], deployments: tuple[Deployment, ...], budget: float) -> Price:
    """The cheapest instance that has what `deployments` need together and costs at most `budget` an hour.

    Raises UsageError when there is none.
    """
    device = deployments[0].device
    cpus = max(each.cpus.value for each in deployments)
    memory = sum(each.memory.value for each in deployments)
    fitting = [
        price
        for price in prices.values()
        if price.vcpus >= cpus and price.memory_bytes >= memory and _can_run(price, device)
    ]
    needed = f"{cpus} processors, {mib(memory)} of memory" + (" and a GPU" if device == "gpu" else "")
    if not fitting:
        raise UsageError(f"No instance of the price file has {needed}.", "Add one to it, or give --instance-type.")
    best = min(fitting, key=lambda price: (price.hourly, price.instance_type))
    if best.hourly > budget:
        raise UsageError(
            f"The cheapest instance with {needed} is {best.instance_type}: {best.hourly:g} {best.currency} an hour.",
            "Raise --budget, or export a smaller model.",
        )
    return best


def _can_run(price: Price, device: str) -> bool:
    try:
        check_instance_type(price.instance_type, device)
    except UsageError:
        return False
    return device == "cpu" or price.gpus > 0
