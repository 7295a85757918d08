"""Building blocks of ONNX graphs: each module adds one thing to a graph and knows no task and no checkpoint."""
