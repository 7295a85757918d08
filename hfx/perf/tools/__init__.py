"""Other load generators with the interface of the built-in one: NVIDIA's perf_analyzer, and locust."""
