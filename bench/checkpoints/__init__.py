"""Full-size checkpoints with random weights, made on the spot: published dimensions, so their speed means something.

Their answers mean nothing. Nothing is fetched. Importing this loads no torch.
"""

from bench.checkpoints.building import cached, checkpoint, write
from bench.checkpoints.shapes import BY_NAME, SHAPES, Shape, smaller

__all__ = ["BY_NAME", "SHAPES", "Shape", "cached", "checkpoint", "smaller", "write"]
