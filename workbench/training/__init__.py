"""Training that is bitwise reproducible and survives being killed."""

from workbench.training.loop import Progress, require_trainable, train

__all__ = ["Progress", "require_trainable", "train"]
