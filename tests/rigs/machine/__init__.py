"""The machine: processors, GPUs, killed processes, waiting, and which tests run where."""
