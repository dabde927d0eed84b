"""False claims and seeds needed of the lab's test, looked at after every seed, by simulation.

python benchmarks/anytime_valid.py [--quick] [--save]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import scipy.stats
from interleave import conditions, markdown, save

from surefoot.lab.analyse import anytime_valid, stats

LOOKS = 60
EFFECTS = (0.5, 1.0, 2.0)
POWER = 0.9


def divergences(luck: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal differences, three in a hundred a thousand times as large."""
    normal = luck.standard_normal(shape)
    return np.where(luck.random(shape) < 0.03, 1000 * normal, normal)


#: Differences of two optimizers that are interchangeable.
NO_DIFFERENCE: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda luck, shape: luck.standard_normal(shape),
    "Student's t, 3 degrees of freedom": lambda luck, shape: luck.standard_t(3, shape),
    "Laplace": lambda luck, shape: luck.laplace(size=shape),
    "Cauchy": lambda luck, shape: luck.standard_cauchy(shape),
    "normal, rounded to whole std (ties)": lambda luck, shape: np.round(luck.standard_normal(shape)),
    "all of one size": lambda luck, shape: np.sign(luck.standard_normal(shape)),
    "a divergence now and then": divergences,
}
#: The mean is zero, but the optimizers are not interchangeable: not what the test is for.
SKEWED: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "skewed (exponential minus its mean)": lambda luck, shape: luck.exponential(size=shape) - 1,
    "half as skewed (gamma with shape 4 minus its mean)": lambda luck, shape: luck.gamma(4, size=shape) - 4,
}


def claim_times(differences: np.ndarray, threshold: float = anytime_valid.DECISIVE) -> np.ndarray:
    """After how many seeds each row makes a claim, infinite if never."""
    return _first(anytime_valid.log_capital(differences).two_sided >= math.log(threshold))


def _first(decided: np.ndarray) -> np.ndarray:
    decided = decided.copy()
    decided[:, : anytime_valid.fewest_seeds() - 1] = False
    return np.where(decided.any(axis=1), decided.argmax(axis=1) + 1.0, math.inf)


def false_claims(differences: np.ndarray) -> float:
    """The share of rows that make a claim at any look."""
    return float(np.mean(np.isfinite(claim_times(differences))))


def false_claims_of_t_test(differences: np.ndarray) -> float:
    """The same for the paired t-test, which is meant for one look."""
    n = np.arange(1, differences.shape[1] + 1)
    mean = np.cumsum(differences, axis=1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        std = np.sqrt((np.cumsum(differences**2, axis=1) - n * mean**2) / (n - 1))
        p = 2 * scipy.stats.t.sf(np.abs(mean) / std * np.sqrt(n), n - 1)
    return float(np.mean(np.isfinite(_first(p < stats.LEVEL))))


def false_claims_of_one_look(differences: np.ndarray, n: int = 10) -> float:
    """The share of rows that the paired t-test claims, used as it is meant: one look at n seeds."""
    return float(np.mean(scipy.stats.ttest_1samp(differences[:, :n], 0.0, axis=1).pvalue < stats.LEVEL))


def false_claims_in_families(luck: np.random.Generator, repetitions: int, size: int = 3) -> float:
    """The share of families with any claim, of contestants that share a baseline."""
    values = luck.standard_normal((size + 1, repetitions, LOOKS))
    e_values = np.exp([anytime_valid.log_capital(values[k] - values[0]).two_sided for k in range(1, size + 1)])
    ranked = np.sort(e_values, axis=0)  # the largest e-value of a family is the first to be decisive
    adjusted = np.min([(ranked[-1] + ranked[:k].sum(axis=0)) / (k + 1) for k in range(size)], axis=0)
    return float(np.mean(np.isfinite(_first(adjusted >= anytime_valid.DECISIVE))))


def false_equality(luck: np.random.Generator, repetitions: int, margin: float = 1.0) -> float:
    """The share of "equal" where the true difference is just the margin."""
    differences = margin + luck.standard_normal((repetitions, LOOKS))
    below = anytime_valid.log_capital(margin - differences).positive
    above = anytime_valid.log_capital(margin + differences).positive
    return float(np.mean(np.isfinite(_first(np.minimum(below, above) >= math.log(anytime_valid.DECISIVE)))))


def false_claims_in_any_order(luck: np.random.Generator, repetitions: int) -> float:
    """The share of claims where each new seed takes a random place among those before."""
    values, places = luck.standard_normal((repetitions, LOOKS)), luck.random((repetitions, LOOKS))
    claims = np.zeros(repetitions, dtype=bool)
    for n in range(anytime_valid.fewest_seeds(), LOOKS + 1):
        order = np.argsort(places[:, :n], axis=1)
        ordered = np.take_along_axis(values[:, :n], order, axis=1)
        claims |= anytime_valid.log_capital(ordered).two_sided[:, -1] >= math.log(anytime_valid.DECISIVE)
    return float(np.mean(claims))


def seeds_with_power(effect: float, luck: np.random.Generator, repetitions: int, looks: int = 200) -> dict[str, float]:
    """With how many seeds at most a true effect is claimed with the power, how many that takes on average, and how
    many a fixed number would be: that of the t-test, and at least the six that a claim needs."""
    times = claim_times(effect + luck.standard_normal((repetitions, looks)))
    most = float(np.quantile(times, POWER, method="inverted_cdf"))
    mean = float(np.mean(np.minimum(times, most)))
    fixed = stats.seeds_needed(effect, 1.0, power=POWER) or math.nan
    return {"most": most, "mean": mean, "fixed": fixed, "ratio": mean / fixed}


def seeds_until(effect: float, most: int, luck: np.random.Generator, repetitions: int) -> dict[str, float]:
    """The power of `most` seeds at most, how many are made on average, and which fixed number has the same power."""
    times = claim_times(effect + luck.standard_normal((repetitions, most)))
    power = float(np.mean(times <= most))
    mean = float(np.mean(np.minimum(times, most)))
    fixed = stats.seeds_needed(effect, 1.0, power=min(power, 0.999)) or math.nan
    return {"power": power, "mean": mean, "fixed": fixed, "ratio": mean / fixed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 repetitions instead of 3000")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/anytime_valid.{json,md}")
    args = parser.parse_args()
    repetitions, luck = 300 if args.quick else 3000, np.random.default_rng(2026)
    claims = {}
    for name, draw in {**NO_DIFFERENCE, **SKEWED}.items():
        differences = draw(luck, (repetitions, LOOKS))
        claims[name] = {
            "ours": false_claims(differences),
            "t_test": false_claims_of_t_test(differences),
            "one_look": false_claims_of_one_look(differences),
        }
    claims["normal, three contestants (any claim)"] = {"ours": false_claims_in_families(luck, repetitions)}
    claims["normal, each new seed at a random place in the order"] = {
        "ours": false_claims_in_any_order(luck, repetitions)
    }
    claims['"equal" where the difference is the margin'] = {"ours": false_equality(luck, repetitions)}
    powers = {f"{effect:g}": seeds_with_power(effect, luck, repetitions) for effect in EFFECTS}
    limited = {
        f"{effect:g}, at most {most}": seeds_until(effect, most, luck, repetitions)
        for most in (40, 100)
        for effect in EFFECTS
    }
    text = "\n".join(
        [
            f"False claims, {repetitions} repetitions, a look after every seed from 6 to {LOOKS} (goal: at most 5%):\n",
            markdown(
                ["no true difference", "the lab's test", "paired t-test at every look", "at one look, 10 seeds"],
                [
                    [name, *(f"{row[test]:.1%}" if test in row else "" for test in ("ours", "t_test", "one_look"))]
                    for name, row in claims.items()
                ],
            ),
            f"\nSeeds until a claim with a power of {POWER:.0%}, normal differences (goal: a ratio of at most 1.3):\n",
            markdown(
                ["true difference / std", "at most", "on average", "fixed number with that power", "ratio"],
                [
                    [name, f"{row['most']:.0f}", f"{row['mean']:.1f}", f"{row['fixed']:.0f}", f"{row['ratio']:.2f}"]
                    for name, row in powers.items()
                ],
            ),
            "\nWith a limit (`--max-seeds`), undecided pairs make all of them:\n",
            markdown(
                ["true difference / std", "power", "on average", "fixed number with that power", "ratio"],
                [
                    [name, f"{row['power']:.1%}", f"{row['mean']:.1f}", f"{row['fixed']:.0f}", f"{row['ratio']:.2f}"]
                    for name, row in limited.items()
                ],
            ),
        ]
    )
    print(text)
    if args.save:
        save("anytime_valid", conditions(), {"false_claims": claims, "power": powers, "limited": limited}, text)


if __name__ == "__main__":
    main()
