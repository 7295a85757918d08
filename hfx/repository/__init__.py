"""Reading, linting and atomically publishing a Triton model repository."""

from hfx.repository.catalog import Entry, model, models
from hfx.repository.config_pbtxt import parse_config
from hfx.repository.lint import lint
from hfx.repository.publish import check_target, publish, recover, remove
from hfx.repository.staging import Staging

__all__ = [
    "Entry", "Staging", "check_target", "lint", "model", "models", "parse_config", "publish", "recover", "remove",
]  # fmt: skip
