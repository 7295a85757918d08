"""The tensors that clients of a generator send and get, of NAME and of NAME_stream.

Every input but the text is optional: what a request leaves out, the model's defaults decide. Settings are tensors and
not request parameters, so that a cache keyed on tensors is right.
"""

from __future__ import annotations

from hfx import names
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS, Setting
from hfx.repository import TensorSpec


def _optional(name: str, data_type: str, dims: tuple[int, ...] = (1,)) -> TensorSpec:
    return TensorSpec(name, f"TYPE_{data_type}", dims, optional=True)


def _tensors(setting: Setting) -> list[TensorSpec]:
    """A setting's tensor under its name and its aliases; none where it is not served."""
    aliases = [alias for alias, name in ALIASES.items() if name == setting.name]
    dims = (-1,) if setting.is_list else (1,)
    return [_optional(name, setting.dtype, dims) for name in (setting.name, *aliases) if setting.dtype]


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_INPUT, "TYPE_STRING", (1,)),
    *(tensor for setting in SETTINGS.values() for tensor in _tensors(setting)),
    _optional(names.STREAM, "BOOL"),
    _optional(names.TIMEOUT_MS, "INT32"),  # from when the request arrives
)
# What the engine takes beside them: the id of another request, which is then cancelled.
STREAM_INPUTS: tuple[TensorSpec, ...] = (*INPUTS, _optional(names.CANCEL_REQUEST, "STRING"))
OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_OUTPUT, "TYPE_STRING", (1,)),
    TensorSpec(names.FINISH_REASON, "TYPE_STRING", (1,)),  # stop, length or cancelled; empty before the last piece
    TensorSpec(names.INPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.OUTPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.TRUNCATED_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.OUTPUT_LOG_PROBS, "TYPE_FP32", (-1,)),  # one a token where return_log_probs asks for them
)
