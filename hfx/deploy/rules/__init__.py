"""Rules for what runs Triton, grouped by platform; hfx.deploy.lint lists them. A rule knows files, no other rule."""
