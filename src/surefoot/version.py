"""The release, and the version of the numbers it produces."""

__version__ = "0.1.0"

#: Raised whenever the same configuration would follow another trajectory: runs of different numerics are never mixed.
NUMERICS = 2
