"""Where checkpoints look for `Ranges`: those that were written before it had moved name this module."""

from protocol.ranges import Ranges

__all__ = ["Ranges"]
