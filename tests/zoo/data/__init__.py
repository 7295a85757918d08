"""What the world's texts say, one file a task: each has `generate(split, count)` and, with named labels, `LABELS`."""
