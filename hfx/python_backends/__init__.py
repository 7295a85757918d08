"""What runs inside Triton: Python that needs only numpy, tokenizers and a runtime, and nothing else of hfx."""
