"""What `make demo` runs: models that classify, summarize and write, from checkpoints to one real Triton."""

from __future__ import annotations

from examples import classifier, stories, summaries
from examples.steps import demonstrate

PARTS = (classifier.PART, summaries.PART, stories.PART)

if __name__ == "__main__":
    demonstrate(PARTS)
