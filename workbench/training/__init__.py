"""Training that is bitwise reproducible and survives being killed."""

from workbench.training.loop import Progress, train

__all__ = ["Progress", "train"]
