"""The optimizers: `LossAware`, the classes by name, and a wrapper for any other optimizer."""

from surefoot.optim.loss_aware import LossAware
from surefoot.optim.named import OPTIMIZERS

__all__ = ["OPTIMIZERS", "LossAware"]
