"""Code that both Triton models of a generator (relay and engine) use: requests, responses, cancellation, metrics."""
