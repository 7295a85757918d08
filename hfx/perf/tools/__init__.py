"""Load generators of others, each giving what the built-in one gives: NVIDIA's perf_analyzer, and locust."""
