"""Who won: the order, the winner, and which contestants the seeds cannot separate."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.ranking import Ranking, rank, ranked, rankings
from surefoot.lab.analyse.verdicts import Outcome
from surefoot.lab.store import Run

MakeRuns = Callable[..., list[Run]]


def ranking_of(runs: list[Run], **options: object) -> Ranking:
    [ranking] = rankings(summarise(runs, metrics=["valid_loss"], **options))  # type: ignore[arg-type]
    return ranking


def labels(ranking: Ranking) -> list[str]:
    return [row.label for row in ranking.rows]


def test_the_winner_is_named_with_amount_percent_and_certainty(paired_runs: MakeRuns) -> None:
    ranking = ranking_of(paired_runs({"Adam": 0.0, "Slow": 0.2, "Fast": -0.05}, seeds=8))
    assert labels(ranking) == ["Fast", "Adam", "Slow"]
    assert ranking.winner == "Fast"
    assert ranking.sentence.startswith("Fast wins on validation loss: 0.0499 (49%) lower than Adam, ")
    assert ranking.sentence.endswith("; 8 paired seeds).")
    [adam, _] = ranking.gaps
    assert adam.amount == pytest.approx(0.05, abs=0.003)
    assert adam.interval is not None
    assert 0 < adam.interval[0] < adam.amount < adam.interval[1]


def test_a_leading_baseline_wins_by_the_verdicts(paired_runs: MakeRuns) -> None:
    ranking = ranking_of(paired_runs({"Adam": 0.0, "Slow": 0.2}, seeds=7))
    assert (ranking.winner, [gap.outcome for gap in ranking.gaps]) == ("Adam", [Outcome.WORSE])
    assert ", the next best" not in ranking.sentence  # there is no other one


def test_what_the_seeds_cannot_separate_is_a_tie(paired_runs: MakeRuns) -> None:
    runs = paired_runs({"Adam": 0.3, "A": 0.0, "B": 0.0002}, seeds=8)
    ranking = ranking_of(runs)
    assert ranking.winner is None
    assert [gap.label for gap in ranking.tied] == ["A"]
    assert ranking.headline == "A tie between B and A on validation loss"
    assert "which may be luck" in ranking.reason


def test_a_tie_does_not_name_those_whose_interval_is_behind(paired_runs: MakeRuns) -> None:
    """Six seeds decide few of 45 comparisons, but a contestant that is behind in every seed is not in the tie."""
    offsets = {"Adam": 0.9, "A": 0.0, "B": 0.0002} | {f"C{i}": 0.5 + 0.01 * i for i in range(7)}
    ranking = ranking_of(paired_runs(offsets, seeds=6))
    assert ranking.winner is None
    assert [gap.label for gap in ranking.tied] == ["A", *(f"C{i}" for i in range(7))]  # none of them is decided
    assert ranking.headline == "A tie between B and A on validation loss"
    assert ranking.reason.endswith("; C0, C1, C2 and 4 more are behind, which is no claim yet")


def test_a_difference_below_the_margin_is_negligible(paired_runs: MakeRuns) -> None:
    ranking = ranking_of(paired_runs({"Adam": 0.0, "B": 0.004}, seeds=9), margin=0.05)
    assert ranking.winner is None
    assert "is negligible, surely less than the margin 0.05" in ranking.sentence


def test_too_few_seeds_name_a_leader_and_no_winner(paired_runs: MakeRuns) -> None:
    ranking = ranking_of(paired_runs({"Adam": 0.0, "B": 0.2}, seeds=3))
    assert ranking.winner is None
    assert "3 paired seeds cannot decide; 6 are needed" in ranking.sentence


def test_more_pairs_of_others_make_the_claim_on_the_leader_harder(paired_runs: MakeRuns) -> None:
    """Holm over all pairs without the baseline: contestants that do not differ lower the e-value of the leader's."""
    few = ranking_of(paired_runs({"Adam": 0.3, "A": 0.0, "B": 0.1}, seeds=7))
    many = ranking_of(paired_runs({"Adam": 0.3, "A": 0.0, "B": 0.1, "C": 0.1002, "D": 0.1001}, seeds=7))
    assert few.winner == "A"
    e_few, e_many = (next(gap.e for gap in ranking.gaps if gap.label == "B") for ranking in (few, many))
    assert e_many < e_few


def test_higher_is_better_for_accuracy(paired_runs: MakeRuns) -> None:
    summary = summarise(paired_runs({"Adam": 0.0, "B": 0.2}, seeds=7))
    ranking = rank(summary, summary.groups[0].name, "valid_accuracy")
    assert ranking is not None
    means = [row.values.mean for row in ranking.rows]
    assert means == sorted(means, reverse=True)


def test_divergences_are_named(run: Callable[..., Run]) -> None:
    runs = [run(name, seed, diverged=name == "B" and seed == 0) for name in ("Adam", "B") for seed in range(3)]
    assert ranking_of(runs).sentence.endswith("Diverged: B in 1 of 3 runs.")


def test_one_contestant_has_no_ranking(run: Callable[..., Run]) -> None:
    summary = summarise([run("Adam", 0)])
    assert rank(summary, summary.groups[0].name) is None
    assert [row.label for row in ranked(summary, summary.select(metric="valid_loss"))] == ["Adam"]


def test_tables_follow_the_ranking_of_the_leading_metric(paired_runs: MakeRuns) -> None:
    summary = summarise(paired_runs({"Adam": 0.0, "Slow": 0.2, "Fast": -0.05}, seeds=6))
    for metric in summary.metrics:
        rows = ranked(summary, summary.select(metric=metric))
        assert [row.label for row in rows] == ["Fast", "Adam", "Slow"]
    assert not any(math.isnan(gap.e) for gap in rankings(summary)[0].gaps)
