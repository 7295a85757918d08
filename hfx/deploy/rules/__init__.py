"""Rules for what runs Triton, grouped by platform; hfx.deploy.check lists them. A rule knows files, no other rule."""
