"""Rules for deployments that run Triton, with a module for each platform. hfx.deploy.check applies all of them."""
