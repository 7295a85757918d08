"""Reading, linting and atomically publishing a Triton model repository."""

from hfx.repository.catalog import Entry, model, models
from hfx.repository.config_pbtxt import (
    BatchInput,
    EnsembleStep,
    ModelConfig,
    TensorSpec,
    Warmup,
    WarmupInput,
    parse_config,
    render,
)
from hfx.repository.lint import RULES, lint
from hfx.repository.publish import check_target, publish, recover
from hfx.repository.staging import Staging
from hfx.repository.subject import Finding, Rule

__all__ = [
    "RULES",
    "BatchInput",
    "EnsembleStep",
    "Entry",
    "Finding",
    "ModelConfig",
    "Rule",
    "Staging",
    "TensorSpec",
    "Warmup",
    "WarmupInput",
    "check_target",
    "lint",
    "model",
    "models",
    "parse_config",
    "publish",
    "recover",
    "render",
]
