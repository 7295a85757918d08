"""The generation engine: token ids in, token ids out; numpy and onnxruntime only."""
