"""Which task a served model answers, told by its tensors alone.

A client knows a model's inputs and outputs from the server, and needs no manifest. One row a task; this file must not
know texts or results.
"""

from __future__ import annotations

from hfx.client.transport import ModelMetadata
from hfx.errors import RequestRefused
from hfx.names import (
    ANSWER,
    CANDIDATE_LABELS,
    CONTEXT,
    EMBEDDING,
    ENTITIES,
    LABEL,
    QUESTION,
    TEXT_INPUT,
    TEXT_OUTPUT,
    Task,
)

# task, inputs it must take, outputs it must give; the first row that fits is the task
SIGNATURES = (
    (Task.ZERO_SHOT_CLASSIFICATION, {TEXT_INPUT, CANDIDATE_LABELS}, {LABEL}),
    (Task.TEXT_CLASSIFICATION, {TEXT_INPUT}, {LABEL}),
    (Task.TOKEN_CLASSIFICATION, {TEXT_INPUT}, {ENTITIES}),
    (Task.FEATURE_EXTRACTION, {TEXT_INPUT}, {EMBEDDING}),
    (Task.QUESTION_ANSWERING, {QUESTION, CONTEXT}, {ANSWER}),
)


def task_of(model: ModelMetadata) -> Task:
    """The task of MODEL; raises RequestRefused for a model that takes no text or gives no known result."""
    inputs, outputs = {tensor.name for tensor in model.inputs}, {tensor.name for tensor in model.outputs}
    for task, needed, given in SIGNATURES:
        if needed <= inputs and given <= outputs:
            return task
    if TEXT_OUTPUT in outputs:
        raise RequestRefused(
            f"{model.name!r} generates texts; this client asks encoders only.",
            'Use `hfx infer --local`, or POST {"text_input": ...} to /v2/models/NAME/generate.',
        )
    raise RequestRefused(
        f"The model {model.name!r} is for none of hfx's tasks: it takes {', '.join(sorted(inputs)) or 'nothing'} "
        f"and gives {', '.join(sorted(outputs)) or 'nothing'}.",
        "Ask for the model itself, not for a member of it: `hfx list` shows the names.",
    )
