"""The tasks, as the command line, the front, batch jobs and deployments see them."""

from __future__ import annotations

from hfx.errors import RequestRefused, UsageError
from hfx.metadata import ModelMetadata
from hfx.names import Task
from hfx.tasks.kinds import is_late, kind_of
from hfx.tasks.task import TaskView
from hfx.tasks.views import TASKS

SUMMARIZERS = (Task.SUMMARIZATION, Task.TEXT2TEXT_GENERATION)


def task_of(model: ModelMetadata) -> Task:
    """Return the task of a served model: its configuration's parameter `task`, or else the task that its tensors fit.

    All generators have the same tensors, so a generator without the parameter counts as text-generation. Raises
    RequestRefused for a model that takes no text or gives no known result.
    """
    if model.task in tuple(Task):
        return Task(model.task)
    inputs, outputs = {tensor.name for tensor in model.inputs}, {tensor.name for tensor in model.outputs}
    for task, view in TASKS.items():
        if inputs.issuperset(view.row.needed) and view.row.output in outputs:
            return task
    raise RequestRefused(
        f"The model {model.name!r} is for none of hfx's tasks: it takes {', '.join(sorted(inputs)) or 'nothing'} "
        f"and gives {', '.join(sorted(outputs)) or 'nothing'}.",
        "Ask for the model itself, not for a member of it: `hfx list` shows the names.",
        model=model.name,
    )


def check_summarizer(model: ModelMetadata) -> None:
    """Raise UsageError if `model` is known not to summarize. A generator of unknown task is accepted."""
    task = task_of(model)
    if task not in SUMMARIZERS and (model.task or task is not Task.TEXT_GENERATION):
        raise UsageError(
            f"The model {model.name!r} does not summarize: it is for {task}.",
            "Use generate() to continue a text, or ask a summarization model.",
        )


__all__ = ["TASKS", "TaskView", "check_summarizer", "is_late", "kind_of", "task_of"]
