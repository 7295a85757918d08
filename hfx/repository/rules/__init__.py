"""The lint rules, grouped by subject; hfx.repository.lint lists them. A rule knows the repository, no other rule."""
