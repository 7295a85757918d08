"""Keep the remarks and progress bars of libraries off stderr, and packages that no export uses out of the process.

The problems that the libraries warn of are checked by the gate or by the code around the call.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LOGGERS = ("optimum", "transformers", "torch.onnx")
MODELS = ("transformers.modeling_utils", "transformers.masking_utils", "transformers.generation.utils")
COMPILER = "torch._dynamo"
# The lookups by which transformers decides to import scipy, accelerate (and boto3), torch.distributed.tensor, and
# torch's flexible attention.
UNUSED = (
    "is_scipy_available",
    "is_accelerate_available",
    "is_torch_distributed_available",
    "is_torch_flex_attn_available",
)


def import_models() -> None:
    """Import the base of transformers' models without the packages that only training, sharding and compiling use.

    These packages take 4 s of 6 s. Decorators in transformers import torch's compiler, with sympy; here, they do not
    change what they decorate. Nothing is done if the base has been imported before. It is for processes that do nothing
    but export: transformers keeps what its lookups found.
    """
    if MODELS[0] in sys.modules:
        return
    import torch

    lookups = [importlib.import_module(name) for name in ("transformers.utils.import_utils", "transformers.utils")]
    compiler: Any = types.ModuleType(COMPILER)
    compiler.allow_in_graph = compiler.assume_constant_result = compiler.disable = _unchanged
    compiler.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]  # transformers imports a module of it
    with contextlib.ExitStack() as stack:
        for module in lookups:
            values = {name: _never for name in UNUSED if hasattr(module, name)}
            stack.enter_context(replaced(vars(module), values))
        if COMPILER not in sys.modules:
            stack.enter_context(replaced(sys.modules, {COMPILER: compiler}))
            stack.enter_context(replaced(vars(torch), {"_dynamo": compiler}))
        for name in MODELS:
            with contextlib.suppress(Exception):  # in another version, it is imported as usual where it is needed
                importlib.import_module(name)
        # torch keeps the decorator of its first call, which would import the compiler: each model calls it on "meta".
        torch.empty(0, device="meta").normal_()


@contextlib.contextmanager
def replaced(names: dict[str, Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Give `names` other `values` in the block; a name that had none is removed behind it."""
    before = {name: names[name] for name in values if name in names}
    names.update(values)
    try:
        yield
    finally:
        for name in values:
            del names[name]
        names.update(before)


def _never(*_: Any) -> bool:
    return False


def _unchanged(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """A decorator, used with or without arguments, that returns the function."""
    return function if callable(function) else _unchanged


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Return a context in which torch, transformers and optimum write errors only, and no progress bars."""
    from transformers.utils import logging as transformers_logging

    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    bars = transformers_logging.is_progress_bar_enabled()
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
