"""LoRA adapters and heads that share a backbone: read and checked, or merged into a checkpoint of their own."""
