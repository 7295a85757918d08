"""`hfx demo`: two small checkpoints are trained, exported, served by a real Triton and queried."""
