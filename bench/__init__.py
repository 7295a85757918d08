"""The benchmarks of hfx, in a checkout with its whole development environment: commands, and what they have in common.

encoder, generate, serve, scenarios, published, proof and guard measure; docs writes pages; peers fetches other
libraries.
"""
