"""Every honesty check: it fires on what is wrong, and is silent on a fair comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.lab.analyse.audit import CODES, audit
from surefoot.lab.analyse.groups import group_runs, sweeps


def codes(runs, **options):
    return {finding.code: finding.severity for finding in audit(runs, **options)}


def test_a_fair_comparison_has_no_findings(paired_runs):
    assert audit(paired_runs({"Adam": 0.0, "AdamS": -0.01})) == []


def test_no_runs():
    assert codes([]) == {"no-runs": "error"}


def test_the_guide_explains_every_finding():
    guide = (Path(__file__).parents[3] / "docs/reading-a-report.md").read_text()
    assert [code for code in CODES if f"`{code}`" not in guide] == []


def test_unequal_budgets(run, paired_runs):
    runs = paired_runs({"Adam": 0.0}) + [run("AdamS", seed, epochs=9) for seed in range(10)]
    findings = audit(runs)
    assert [finding.code for finding in findings] == ["unequal-epochs"]
    assert "epochs: Adam 5, AdamS 9" in findings[0].sentence
    slow = [run("AdamS", seed) for seed in range(10)]
    for slow_run in slow:
        for record in slow_run.epochs:
            record["step"] *= 2
    assert codes(paired_runs({"Adam": 0.0}) + slow) == {"unequal-steps": "error"}


def test_a_diverged_run_is_a_result_not_a_smaller_budget(run, paired_runs):
    runs = paired_runs({"Adam": 0.0}) + [run("AdamS", s, done=2 if s < 4 else None, diverged=s < 4) for s in range(10)]
    findings = audit(runs)
    assert [(finding.code, finding.severity) for finding in findings] == [("diverged-runs", "note")]
    assert "AdamS diverged on seeds 0, 1, 2, 3." in findings[0].sentence


def test_a_run_that_diverges_in_its_first_epoch_is_no_smaller_budget(run, paired_runs):
    early = run("AdamS", 0, done=1, diverged=True)
    early.epochs[0]["step"] = 3
    others = [other for other in paired_runs({"Adam": 0.0, "AdamS": 0.0}) if (other.label, other.seed) != ("AdamS", 0)]
    assert codes([*others, early]) == {"diverged-runs": "note"}


@pytest.fixture
def tuned(run, paired_runs):
    """AdamS and Adam, each tuned over three learning rates on other seeds."""

    def make(rates=(1e-4, 1e-3, 1e-2), seed=100, others=(1e-4, 1e-3, 1e-2)):
        runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
        runs += [run("Adam", seed, kwargs={"lr": lr}, purpose="tune") for lr in rates]
        return runs + [run("AdamS", seed, kwargs={"lr": lr}, purpose="tune") for lr in others]

    return make


def test_fair_tuning_is_silent(tuned):
    assert codes(tuned()) == {}


def test_unequal_tuning(tuned):
    findings = [finding for finding in audit(tuned(others=(1e-4, 5e-4, 1e-3, 1e-2))) if finding.severity == "error"]
    assert [finding.code for finding in findings] == ["unequal-tuning"]
    assert "Adam 3, AdamS 4" in findings[0].sentence
    assert "unequal-tuning" in codes(tuned(others=()))


def test_tuned_on_the_reported_seeds(tuned):
    assert codes(tuned(seed=3)) == {"tuned-on-reported-seeds": "error"}
    assert "seed 3," in audit(tuned(seed=3))[0].sentence


def test_optimum_on_the_edge_of_the_grid(tuned):
    findings = audit(tuned(rates=(1e-3, 1e-2, 1e-1)))
    assert [(finding.code, finding.severity) for finding in findings] == [("edge-of-grid", "warning")]
    assert "Adam uses lr=0.001, the edge of the tuned grid (0.001 to 0.1)" in findings[0].sentence


def test_best_of_a_reported_sweep_on_its_edge(run, paired_runs):
    def runs(finals):
        swept = [
            run(
                f"AdamS eta={eta}",
                seed,
                final=final,
                kwargs={"lr": 1e-3, "eta": eta},
                optimizer="surefoot.AdamS",
            )
            for eta, final in finals.items()
            for seed in range(10)
        ]
        return paired_runs({"Adam": 0.0}) + swept

    inside, edge = {0.01: 0.2, 0.1: 0.1, 1.0: 0.3}, {0.01: 0.05, 0.1: 0.1, 1.0: 0.3}
    assert codes(runs(inside)) == {"unequal-chances": "note"}
    sentences = {finding.code: finding.sentence for finding in audit(runs(edge))}
    assert sentences.keys() == {"unequal-chances", "edge-of-sweep"}
    assert "the best eta shown for AdamS, 0.01, is the edge of what was tried (0.01 to 1)" in sentences["edge-of-sweep"]
    [sweep] = sweeps(group_runs(runs(inside))[0])
    assert (sweep.option, [value for value, _ in sweep.points]) == ("eta", [0.01, 0.1, 1.0])


def test_too_few_seeds_for_a_claim(paired_runs):
    findings = audit(paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=3))
    assert [(finding.code, finding.severity) for finding in findings] == [("few-seeds", "warning")]
    assert "3 paired seeds cannot support a claim, the smallest exact paired p is 0.25" in findings[0].sentence
    assert codes(paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=6)) == {}


def test_parallel_timings(paired_runs):
    assert codes(paired_runs({"Adam": 0.0, "AdamS": -0.01}, jobs=2)) == {"parallel-timings": "warning"}


def test_dropped_unfinished_and_failed_runs(run, paired_runs, tmp_path):
    full = paired_runs({"Adam": 0.0})
    assert codes([*full, *(run("AdamS", seed) for seed in range(9))]) == {"dropped-runs": "error"}
    half = [run("AdamS", seed, done=2 if seed == 4 else None) for seed in range(10)]
    assert codes(full + half) == {"unfinished-runs": "error"}
    (tmp_path / "error.txt").write_text("ValueError: no")
    failed = [run("AdamS", s, folder=tmp_path, done=1) if s == 4 else run("AdamS", s) for s in range(10)]
    assert codes(full + failed) == {"failed-runs": "error"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"numerics": 2}, {"mixed-numerics": "error"}),
        ({"threads": 4}, {"mixed-threads": "warning"}),
        ({"provenance": {"torch": "2.0"}}, {"mixed-torch": "warning"}),
        ({"provenance": {"cpu": "another"}}, {"mixed-cpu": "note"}),
    ],
)
def test_mixtures(run, paired_runs, change, expected):
    assert codes(paired_runs({"Adam": 0.0}) + [run("AdamS", seed, **change) for seed in range(10)]) == expected


def test_errors_come_first(run, paired_runs):
    runs = paired_runs({"Adam": 0.0}, jobs=2) + [run("AdamS", seed, epochs=9, numerics=2) for seed in range(3)]
    order = {"error": 0, "warning": 1, "note": 2}
    ranks = [order[finding.severity] for finding in audit(runs)]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) > 1


def test_a_metric_that_is_not_a_number_is_an_error(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    for run in runs:
        for record in run.epochs:
            record["valid_auc"] = None if run.label == "AdamS" and run.seed in (2, 5) else 0.5
            record["valid_f1"] = None  # no contestant has it
    [finding] = audit(runs)
    assert (finding.code, finding.severity) == ("missing-values", "error")
    assert "AdamS ended without a number for valid_auc on seeds 2, 5" in finding.sentence


def test_pairs_that_diverged_do_not_count_as_seeds(run, paired_runs):
    runs = paired_runs({"Adam": 0.0}, seeds=6) + [
        run("AdamS", seed, diverged=2 if seed < 3 else None) for seed in range(6)
    ]
    assert codes(runs)["few-seeds"] == "warning"
