"""The code that runs inside Triton: it needs only numpy, tokenizers and a runtime, and nothing else of hfx."""
