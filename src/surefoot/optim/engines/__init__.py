"""Engines: they turn a weighted gradient into an update."""

from surefoot.optim.engines.adam import Adam
from surefoot.optim.engines.adamax import AdaMax
from surefoot.optim.engines.base import Bucket, Engine
from surefoot.optim.engines.momentum import Momentum
from surefoot.optim.engines.nadam import NAdam

__all__ = ["AdaMax", "Adam", "Bucket", "Engine", "Momentum", "NAdam"]
