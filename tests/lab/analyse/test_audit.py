"""Every honesty check: it fires on what is wrong, and is silent on a fair comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab.analyse import audit as module
from surefoot.lab.analyse.audit import CODES, Finding
from surefoot.lab.analyse.groups import group_runs, on_edge, sweeps


def audit(runs, **options):
    """The findings; that nobody tuned the runs that are made up here has tests of its own."""
    return [finding for finding in module.audit(runs, **options) if finding.code != "untuned"]


def codes(runs, **options):
    return {finding.code: finding.severity for finding in audit(runs, **options)}


def test_a_fair_comparison_has_no_findings(tuned):
    assert module.audit(tuned()) == []


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


def test_tuned_over_another_length(tuned):
    runs = tuned()
    shorter = [run.cut_to(1) if run.config.purpose == "tune" else run for run in runs]
    length = runs[0].config.epochs
    assert length > 1
    assert findings_of("tuned-at-other-length", shorter) == [
        (
            "warning",
            f"digits-mlp: settings were tuned over 1 epoch, and the results have {length}; "
            "the best setting may depend on the length.",
        )
    ]


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


def test_a_run_that_is_not_finished_makes_no_pair(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=6)
    runs[0] = replace(runs[0], epochs=runs[0].epochs[:-1])
    assert "few-seeds" in codes(runs)


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
    task = {"name": "digits-mlp", "higher_is_better": {"accuracy": True, "auc": True, "f1": True}}
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, task=task)
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


def findings_of(code, runs, **options):
    return [(finding.severity, finding.sentence) for finding in module.audit(runs, **options) if finding.code == code]


def test_an_edited_record_is_an_error_and_one_without_hashes_a_note(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    edited = [replace(run, edited="config.json") if run.seed == 3 else run for run in runs]
    [(severity, sentence)] = findings_of("edited-runs", edited)
    assert severity == "error"
    assert "Adam with seed 3 (config.json), AdamS with seed 3 (config.json)" in sentence
    assert codes([replace(run, chained=False) for run in runs]) == {"unchained-runs": "note"}


def commanded(run, command):
    provenance = replace(run.config.provenance, command=command)
    return replace(run, config=replace(run.config, provenance=provenance))


def test_seeds_that_ran_and_are_not_shown(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    shown = [run for run in runs if run.seed < 7]
    assert codes(shown) == {}
    assert findings_of("picked-seeds", shown, recorded=runs) == [
        ("warning", "digits-mlp: seeds 7, 8, 9 ran with the same settings and are not shown.")
    ]


def test_seeds_that_were_deleted_from_every_optimizer(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    hole = [run for run in runs if run.seed != 4]
    assert findings_of("picked-seeds", hole) == [
        ("warning", "digits-mlp: seed 4 is left out of the seeds; say why, or run them.")
    ]
    command = "surefoot compare digits-mlp -o adam -o adams --seeds 10 --epochs 5"
    asked = [commanded(run, command) for run in runs]
    assert codes(asked) == {}
    for gone in (4, 9):
        assert findings_of("dropped-runs", [run for run in asked if run.seed != gone]) == [
            ("error", f"digits-mlp: the recorded command asks for seed {gone}, which no optimizer has a run of.")
        ]


def test_seeds_that_are_no_range_are_noted(run):
    runs = [run(label, seed) for label in ("Adam", "AdamS") for seed in (1, 5, 42, 123, 1337, 2024, 2**62)]
    [(severity, sentence)] = findings_of("picked-seeds", runs)
    assert severity == "note"
    assert "no unbroken range" in sentence


def test_settings_that_ran_and_are_not_shown(run, paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    others = [run("AdamS", seed, kwargs={"lr": 0.01}) for seed in range(10)]
    others += [run("SGD", seed) for seed in range(10)]
    assert findings_of("unshown-settings", runs, recorded=[*runs, *others]) == [
        ("warning", "digits-mlp: other settings of the same optimizers ran on this task and are not shown: AdamS."),
        ("note", "digits-mlp: other optimizers ran on this task and are not shown: SGD."),
    ]


def test_epochs_that_are_cut(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    [(severity, sentence)] = findings_of("cut-epochs", [run.cut_to(3) for run in runs], recorded=runs)
    assert severity == "warning"
    assert "the runs of Adam, AdamS are shown up to epoch 3 and go on to epoch 5." in sentence
    asked = [commanded(run, "surefoot compare digits-mlp --seeds 10 --epochs 9") for run in runs]
    assert "go on to epoch 9" in findings_of("cut-epochs", asked)[0][1]
    forked = [commanded(run, "surefoot fork digits-mlp --at 2 --seeds 10 --epochs 3") for run in runs]
    assert findings_of("cut-epochs", forked) == []


def test_learning_rates_that_nobody_tuned(run, paired_runs, tuned):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    expected = "digits-mlp: no learning rate was tuned; see `surefoot tune`."
    assert findings_of("untuned", runs) == [("note", expected)]
    faster = paired_runs({"Adam": 0.0}) + [run("AdamS", seed, kwargs={"lr": 0.01}) for seed in range(10)]
    [(severity, sentence)] = findings_of("untuned-rates", faster)
    assert severity == "warning"
    assert "the learning rates differ (Adam 0.001, AdamS 0.01) and none was tuned here" in sentence
    assert findings_of("untuned", faster) == []
    assert findings_of("untuned", tuned()) == []
    assert findings_of("untuned", paired_runs({"Adam": 0.0})) == []  # nothing is compared
    swept = [
        run(f"{label} lr={lr}", seed, kwargs={"lr": lr}, optimizer=f"surefoot.{label}")
        for label in ("Adam", "AdamS")
        for lr in (1e-4, 1e-3, 1e-2)
        for seed in range(6)
    ]
    assert {"untuned", "untuned-rates"}.isdisjoint({finding.code for finding in module.audit(swept)})


def test_a_setting_that_the_search_did_not_try(run, tuned):
    runs = [run("AdamS", seed, kwargs={"lr": 0.0042}) for seed in range(10)]
    others = [other for other in tuned() if other.label == "Adam" or other.config.purpose == "tune"]
    assert findings_of("tuned-elsewhere", others + runs) == [
        ("warning", "digits-mlp: AdamS uses lr=0.0042, which is none of the 3 settings tried here.")
    ]


def test_weight_decay_of_different_kinds(run):
    def decays(**optimizers):
        runs = [
            run(label, seed, optimizer=path, kwargs={"lr": 0.001, **options})
            for label, (path, options) in optimizers.items()
            for seed in range(6)
        ]
        return [sentence for _, sentence in findings_of("unequal-decay", runs)]

    adamw, adams, same = "torch.optim.AdamW", "surefoot.AdamS", {"weight_decay": 0.1}
    assert decays(AdamW=(adamw, same), AdamS=(adams, same)) == [
        "digits-mlp: the weight decay differs: AdamW 0.1 (decoupled), AdamS 0.1 (L2)."
    ]
    assert decays(AdamW=(adamw, same), AdamWS=("surefoot.AdamWS", same)) == []
    assert decays(AdamW=(adamw, {"weight_decay": 0}), AdamS=(adams, {})) == []
    assert decays(Adam=("torch.optim.Adam", {**same, "decoupled_weight_decay": True}), AdamW=(adamw, same)) == []
    assert decays(AdamW=(adamw, {}), Adam=("torch.optim.Adam", {})) == [
        "digits-mlp: the weight decay differs: AdamW 0.01 (decoupled), Adam none."
    ]
    assert decays(Adam=("torch.optim.Adam", same), Mine=("mine.py:Mine", {})) == []  # not known


def test_several_gradients_per_step(paired_runs):
    runs = paired_runs({"Adam": 0.0, "LBFGS": -0.01})
    for run in runs:
        for record in run.epochs:
            if run.label == "LBFGS":
                record["gradients_per_step"] = 20.0
    assert findings_of("unequal-gradients", runs) == [
        (
            "error",
            "digits-mlp: unequal work, gradient evaluations per step: Adam 1, LBFGS 20; compare seconds as well.",
        )
    ]


def test_a_direction_that_is_unusual_is_noted(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    for run in runs:
        for record in run.epochs:
            record["valid_top1"] = 0.5
    sentence = "less top1 counts as better; if more is, say so with higher_is_better={'top1': True} of the Task."
    assert findings_of("unusual-direction", runs) == [("note", f"digits-mlp: {sentence}")]


@pytest.mark.parametrize(
    ("surefoot", "how"),
    [("0.1", "say so with higher_is_better={'loss': False} of the Task"), ("", "leave out --higher-is-better loss")],
)
def test_a_loss_of_which_more_is_better_is_noted(paired_runs, surefoot, how):
    """As after an edit of task.json, which says for metrics whether more is better."""
    runs = []
    for run in paired_runs({"Adam": 0.0, "AdamS": -0.01}):
        task = replace(run.config.task, higher_is_better={"loss": True})
        provenance = replace(run.config.provenance, surefoot=surefoot)
        runs.append(replace(run, config=replace(run.config, task=task, provenance=provenance)))
    sentence = f"digits-mlp: more loss counts as better; if less is, {how}."
    assert findings_of("unusual-direction", runs) == [("note", sentence)]


def test_a_finding_is_one_line_whatever_labels_say():
    finding = Finding("diverged-runs", "note", "Adam\nno findings diverged on seed 1.")
    assert str(finding) == "note: Adam␊no findings diverged on seed 1. [diverged-runs]"


def test_edges_are_the_ends_of_what_was_tried_and_what_is_next_to_them():
    assert on_edge(0.9, [1e-4, 0.01, 0.9, 1.0])
    assert not on_edge(0.3, [1e-4, 0.3, 1.0])
    assert on_edge(0.3, [0.1, 0.2, 0.3])
    assert not on_edge(0.2, [0.1, 0.2, 0.3])
    assert on_edge(0.0, [0.0, 1e-4, 1e-2])
    assert not on_edge(1.0, [1.0])
