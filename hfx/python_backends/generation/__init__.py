"""Text generation: converts texts to the engine's tokens and back. Needs only the package tokenizers and the engine."""
