"""Text in, text out: tokens become text and texts tokens around the engine. Needs tokenizers and the engine only."""
