"""The claims of the paper: what it says, as contrasts of its own tables."""

from __future__ import annotations

import math

from surefoot.paper.cells import Replication
from surefoot.paper.claims import claims, judge_all

BY_TITLE = {claim.title: claim for claim in claims()}
BEST_ON_LR = BY_TITLE["Adam is the best on logistic regression"]
RATIO = BY_TITLE["AdamS has half of Adam's training loss at epoch 20 and a third at epoch 45 on the MLP"]
BATCH = BY_TITLE["On CIFAR-10 the gains are larger at batch size 16"]


def test_every_claim_has_a_source_and_a_line_that_the_tables_bear_out() -> None:
    assert len(BY_TITLE) == len(claims())
    for claim in claims():
        assert claim.source
        assert any(line.in_the_tables for line in claim.contrasts), claim.title
        assert len({line.statement for line in claim.contrasts}) == len(claim.contrasts)


def test_without_runs_every_claim_is_not_run() -> None:
    verdicts = judge_all(Replication([]))
    assert {verdict.word for verdict in verdicts} == {"not run"}
    assert {result.ours for verdict in verdicts for result in verdict.results} == {"not run"}


def test_published_contrasts() -> None:
    assert [round(line.published(), 3) for line in BEST_ON_LR.contrasts[:3]] == [0.014, 0.049, 0.014]
    assert [round(math.exp(line.published()), 2) for line in RATIO.contrasts] == [0.47, 0.33]
    assert [line.claimed for line in RATIO.contrasts] == ["0.42 to 0.52", "0.26 to 0.41"]
    # The paper's own table does not bear its last claim out at every epoch.
    adams = [line for line in BATCH.contrasts if line.terms[0].optimizer == "AdamS"]
    assert [round(line.published(), 3) for line in adams] == [-0.2, 1.273, -1.054]
