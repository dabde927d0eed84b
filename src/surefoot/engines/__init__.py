"""Engines: the update that eats the weighted gradient."""

from surefoot.engines.adam import Adam
from surefoot.engines.adamax import AdaMax
from surefoot.engines.base import Engine, Members
from surefoot.engines.momentum import Momentum
from surefoot.engines.nadam import NAdam

__all__ = ["AdaMax", "Adam", "Engine", "Members", "Momentum", "NAdam"]
