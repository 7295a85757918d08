"""`hfx demo`: trains two small checkpoints, exports them, serves them with a real Triton, and queries them."""
