"""Rules for deployments that run Triton, a module for each platform. hfx.deploy.check applies them all."""
