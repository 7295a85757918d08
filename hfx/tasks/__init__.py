"""The tasks, a file each: what the command line, the front, batch jobs and deployments know of them."""

from __future__ import annotations

from collections.abc import Mapping

from hfx.names import Task
from hfx.tasks import (
    feature_extraction,
    fill_mask,
    generation,
    question_answering,
    text_classification,
    text_ranking,
    token_classification,
    zero_shot_classification,
)
from hfx.tasks.task import TaskView

# Where tensors alone tell the task, the first one that they fit is it.
TASKS: Mapping[Task, TaskView] = {
    Task.ZERO_SHOT_CLASSIFICATION: zero_shot_classification.TASK,
    Task.TEXT_CLASSIFICATION: text_classification.TASK,
    Task.TOKEN_CLASSIFICATION: token_classification.TASK,
    Task.FEATURE_EXTRACTION: feature_extraction.TASK,
    Task.QUESTION_ANSWERING: question_answering.TASK,
    Task.TEXT_RANKING: text_ranking.TASK,
    Task.FILL_MASK: fill_mask.TASK,
    Task.TEXT_GENERATION: generation.TEXT_GENERATION,
    Task.SUMMARIZATION: generation.SUMMARIZATION,
    Task.TEXT2TEXT_GENERATION: generation.TEXT2TEXT_GENERATION,
    Task.TRANSLATION: generation.TRANSLATION,
}

__all__ = ["TASKS", "TaskView"]
