"""What the texts of a task say, one file each: an `Example`, `compose(rng)` and, with named labels, `LABELS`."""
