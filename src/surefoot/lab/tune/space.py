"""What is tried: ranges such as `1e-6:1`, grids such as `1e-4,1e-3,1e-2`, and the settings they make."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from surefoot._extras import require
from surefoot.lab.spec.contestant import word_value

#: So many first settings of a range cover it evenly (Sobol points); the sampler learns from them.
STARTUP = 10
#: Settings are rounded to so many digits, so that what is reported is what was run.
DIGITS = 3
#: Options that no word can be a value of.
NUMBERS = ("eta", "lr", "weight_decay", "eps", "momentum")
#: What is tried when nothing is said.
DEFAULT_SPACE = {"eta": "1e-6:1", "lr": "1e-4:1e-2"}


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, on a logarithmic scale."""

    low: float
    high: float
    has_room: ClassVar[bool] = True

    def at(self, place: float) -> float:
        """The value at a place between 0 and 1."""
        value = math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class Grid:
    """These values and no others."""

    values: tuple[Any, ...]

    @property
    def numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def whole(self) -> bool:
        return self.numeric and all(isinstance(value, int) for value in self.values)

    @property
    def has_room(self) -> bool:
        """Whether there are values between its own."""
        if not self.numeric:
            return False
        low, high = self.ends
        return high - low + 1 > len(self.values) if self.whole else low < high

    @property
    def ends(self) -> tuple[float, float]:
        return min(self.values), max(self.values)

    def at(self, place: float) -> Any:
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]

    def rounded(self, value: Any) -> Any:
        between = self.numeric and not self.whole and value not in self.values
        return float(f"{value:.{DIGITS}g}") if between else value

    def __str__(self) -> str:
        return ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.values)


def parse_values(name: str, text: str) -> Range | Grid:
    """Read what an option may be.

    >>> parse_values("eta", "1e-6:1"), parse_values("lr", "1e-4,1e-3")
    (Range(low=1e-06, high=1.0), Grid(values=(0.0001, 0.001)))
    """
    try:
        if ":" in text:
            low, high = (float(part) for part in text.split(":"))
            if not 0 < low < high < math.inf:
                raise ValueError
            return Range(low, high)
        values = tuple(_value(name, part) for part in text.split(",") if part.strip())
    except ValueError:
        values = ()
    if not values or (name in NUMBERS and not Grid(values).numeric):
        raise ValueError(
            f"cannot read {name}={text!r}; give a range from low to high above zero, like {name}=1e-6:1, "
            f"or values, like {name}=1e-4,1e-3,1e-2"
        )
    if len(set(values)) < len(values):
        raise ValueError(f"{name}={text!r} names a value twice; give each once")
    return Grid(values)


def read_options(named: Mapping[str, str | None], others: Sequence[str]) -> dict[str, str]:
    """The options of a command: those with a flag of their own, and `name=values`.

    >>> read_options({"eta": None, "lr": "1e-4:1"}, ["weight_decay=0,1e-4"])
    {'lr': '1e-4:1', 'weight_decay': '0,1e-4'}
    """
    options = {name: text for name, text in named.items() if text is not None}
    for other in others:
        name, sign, text = other.partition("=")
        if not sign or name.strip() in options:
            raise ValueError(f"cannot read --space {other!r}; write it like weight_decay=1e-6:1e-2, each option once")
        options[name.strip()] = text
    return options


def _value(name: str, text: str) -> Any:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return word_value(text.strip())  # such as paper, or no
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and abs(value) >= 1 << 63:
        raise ValueError(f"{name} must be a finite number, not {value!s:.40}")
    return float(value) if whole and name in NUMBERS else value  # others may want a whole number, such as a seed


@dataclass(frozen=True)
class Space:
    """The options of one optimizer that are tried, and its settings by number.

    A setting has a number (its slot), and the slot alone decides it, or leaves it to the sampler: so any process
    can put missing slots into a study, and no setting is tried twice.

    >>> space = Space({"eta": Grid((0.1, 0.2)), "lr": Grid((0.01, 0.02))})
    >>> [space.setting(slot) for slot in (0, 3, 4)]
    [{'eta': 0.1, 'lr': 0.01}, {'eta': 0.2, 'lr': 0.02}, {}]
    """

    options: Mapping[str, Range | Grid]

    @property
    def points(self) -> list[dict[str, Any]]:
        """Every setting of a grid, in order; empty when there is a range."""
        if not self.is_grid:
            return []
        values = [option.values for option in self.options.values() if isinstance(option, Grid)]
        return [dict(zip(self.options, combination)) for combination in itertools.product(*values)]

    @property
    def is_grid(self) -> bool:
        return all(isinstance(option, Grid) for option in self.options.values())

    @property
    def bounded(self) -> bool:
        """Whether there is nothing to try beyond the grid's points, not even between them."""
        return not any(option.has_room for option in self.options.values())

    def setting(self, slot: int) -> dict[str, Any]:
        """The setting of a slot; empty when the sampler chooses it."""
        if self.is_grid:
            return dict(enumerate(self.points)).get(slot, {})
        if slot >= STARTUP:
            return {}
        qmc = require("scipy.stats.qmc", extra="lab")
        places = qmc.Sobol(len(self.options), scramble=True, rng=0).random_base2(math.ceil(math.log2(STARTUP)))
        return {name: option.at(float(place)) for (name, option), place in zip(self.options.items(), places[slot])}

    def distributions(self) -> dict[str, Any]:
        """The options as Optuna's distributions; between the points of a grid there is room for more settings."""
        optuna = require("optuna.distributions", extra="tune")
        distributions: dict[str, Any] = {}
        for name, option in self.options.items():
            if isinstance(option, Range):
                distributions[name] = optuna.FloatDistribution(option.low, option.high, log=True)
            elif self.is_grid and option.numeric:
                kind = optuna.IntDistribution if option.whole else optuna.FloatDistribution
                distributions[name] = kind(*option.ends, log=option.ends[0] > 0)
            else:
                distributions[name] = optuna.CategoricalDistribution(option.values)
        return distributions

    def rounded(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """A sampler's setting, as it is run and reported."""
        return {name: self.options[name].rounded(value) for name, value in setting.items()}

    def describe(self) -> dict[str, str]:
        return {name: str(option) for name, option in self.options.items()}


def budget_of(spaces: Mapping[str, Space], trials: int | None, default: int = 20) -> tuple[int, list[str]]:
    """How many settings every optimizer gets, and what to say about it.

    >>> grid = Space({"lr": Grid((0.1, 0.2, 0.3))})
    >>> budget_of({"Adam": grid}, None)
    (3, [])
    """
    notes: list[str] = []
    largest = max(len(space.points) for space in spaces.values())
    if trials is not None and trials < largest:
        raise ValueError(f"the grid has {largest} points, more than --trials {trials}; give --trials {largest} or more")
    if all(space.is_grid for space in spaces.values()):
        if trials is not None and trials > largest:
            notes.append(f"The grid has {largest} points; --trials {trials} is not needed.")
        budget = largest
    else:
        budget = trials if trials is not None else max(default, largest)
    for label, space in spaces.items():
        short = len(space.points)
        if space.bounded and short < budget:
            notes.append(f"{label} has only {short} settings to try, the others {budget}: its budget is smaller.")
        elif space.is_grid and short < budget:
            notes.append(
                f"{label} has a grid of {short} points and a budget of {budget} settings: "
                "the others are chosen between its points."
            )
    return budget, notes
