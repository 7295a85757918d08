"""The tensors that clients of a generator send and get, of NAME and of NAME_stream.

Every input but the text is optional: what a request leaves out, the model's defaults decide. Settings are tensors and
not request parameters, so that a cache keyed on tensors is right.
"""

from __future__ import annotations

from hfx import names
from hfx.repository import TensorSpec


def _setting(name: str, data_type: str, dims: tuple[int, ...] = (1,)) -> TensorSpec:
    return TensorSpec(name, data_type, dims, optional=True)


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_INPUT, "TYPE_STRING", (1,)),
    _setting(names.MAX_TOKENS, "TYPE_INT32"),
    _setting(names.MIN_TOKENS, "TYPE_INT32"),
    _setting(names.NUM_BEAMS, "TYPE_INT32"),
    _setting(names.BEAM_WIDTH, "TYPE_INT32"),
    _setting(names.DO_SAMPLE, "TYPE_BOOL"),
    _setting(names.TEMPERATURE, "TYPE_FP32"),
    _setting(names.TOP_K, "TYPE_INT32"),
    _setting(names.TOP_P, "TYPE_FP32"),
    _setting(names.MIN_P, "TYPE_FP32"),
    _setting(names.SEED, "TYPE_UINT64"),
    _setting(names.STOP_WORDS, "TYPE_STRING", (-1,)),
    _setting(names.REPETITION_PENALTY, "TYPE_FP32"),
    _setting(names.NO_REPEAT_NGRAM_SIZE, "TYPE_INT32"),
    _setting(names.LENGTH_PENALTY, "TYPE_FP32"),
    _setting(names.EARLY_STOPPING, "TYPE_STRING"),  # "true", "false" or "never"
    _setting(names.LONG, "TYPE_STRING"),  # "error", "truncate" or "chunk"
    _setting(names.MERGE, "TYPE_STRING"),  # "concat" or "recursive": how the chunks' texts become one
    _setting(names.OVERLAP, "TYPE_INT32"),  # sentences that two chunks share
    _setting(names.SOURCE_LANG, "TYPE_STRING"),  # codes of the model's own: fra_Latn, fr_XX, fr
    _setting(names.TARGET_LANG, "TYPE_STRING"),
    _setting(names.STREAM, "TYPE_BOOL"),
    _setting(names.RETURN_LOG_PROBS, "TYPE_BOOL"),
    _setting(names.TIMEOUT_MS, "TYPE_INT32"),  # from when the request arrives
)
# What the engine takes beside them: the id of another request, which is then cancelled.
STREAM_INPUTS: tuple[TensorSpec, ...] = (*INPUTS, _setting(names.CANCEL_REQUEST, "TYPE_STRING"))
OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec(names.TEXT_OUTPUT, "TYPE_STRING", (1,)),
    TensorSpec(names.FINISH_REASON, "TYPE_STRING", (1,)),  # stop, length or cancelled; empty before the last piece
    TensorSpec(names.INPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.OUTPUT_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.TRUNCATED_TOKENS, "TYPE_INT32", (1,)),
    TensorSpec(names.OUTPUT_LOG_PROBS, "TYPE_FP32", (-1,)),  # one a token where return_log_probs asks for them
)
