"""Panels made from runs: mean curves, sensitivity, time to target, and the labels of their rows."""

from __future__ import annotations

from surefoot.lab.report.panels import shortened


def test_shortened_labels_stay_apart():
    long = [f"AdamUCB weighting=unit betas=(0.9, 0.99) eta={eta} weight_decay=0.0001" for eta in (0.1, 0.3, 0.5)]
    cut = shortened(["Adam", *long, long[0]])
    assert cut[0] == "Adam"
    assert len(set(cut)) == 4
    assert "eta=0.3" in cut[2]
    assert max(map(len, cut)) <= 36
    far = ["AdamS " + "a=1 " * 20 + f"b={b} " + "c=1 " * 20 + f"d={d} " + "e=1 " * 20 for b in (0, 1) for d in (0, 1)]
    assert len(set(shortened(far))) == 4
    assert max(map(len, shortened(far))) <= 39
    assert shortened([]) == []
