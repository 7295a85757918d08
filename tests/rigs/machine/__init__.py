"""The machine: processors, GPUs, killed processes, waiting, and the tiers in which tests run."""
