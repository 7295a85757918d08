"""The benchmarks of hfx: commands that print ratios against a bare session and against peers, measured in the same run.

`python -m bench.encoder` (also --quick, --output F.json), `python -m bench.mixed_lengths`, `python -m bench.generate`
(also --works A,B). They need the whole development environment; nothing of hfx imports them.
"""
