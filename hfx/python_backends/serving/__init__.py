"""What the two models of a generator share inside Triton: requests in, responses out, cancellation, metrics."""
