"""Engines: the update that eats the weighted gradient."""

from surefoot.optim.engines.adam import Adam
from surefoot.optim.engines.adamax import AdaMax
from surefoot.optim.engines.base import Engine, Members
from surefoot.optim.engines.momentum import Momentum
from surefoot.optim.engines.nadam import NAdam

__all__ = ["AdaMax", "Adam", "Engine", "Members", "Momentum", "NAdam"]
