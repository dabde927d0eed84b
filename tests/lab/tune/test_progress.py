"""What a search shows while it goes on: lines, bars in a terminal, a bar in a notebook."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from notebooks import Shown
from surefoot.lab.tune import progress
from surefoot.lab.tune.progress import TrialBars, TrialNotebookBar, trial_display
from surefoot.lab.tune.search import TrialOutcome


def test_a_line_per_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with trial_display("valid_loss", 1, 4) as display:
        print_trial = display.on_trial
    print_trial(TrialOutcome("Adam [a]", "running", 0.9, epochs=1, last=4))  # which is no line
    print_trial(TrialOutcome("Adam [a]", "done", 0.5))
    print_trial(TrialOutcome("Adam [a]", "pruned", 0.75))
    print_trial(TrialOutcome("Adam [a]", "queued again", message="its process died"))
    print_trial(TrialOutcome("Adam [a]", "failed", message="too fast"))
    print_trial(TrialOutcome("Adam [a]", "diverged"))
    assert capsys.readouterr().err.splitlines() == [
        "1 of 4 trials were there already",
        "[2/4] Adam [a]: validation loss 0.5",
        "[3/4] Adam [a]: validation loss 0.75, stopped early",
        "[3/4] Adam [a]: its process died; it is tried again",  # these two count for nothing
        "[3/4] Adam [a]: failed: too fast",
        "[4/4] Adam [a]: diverged",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bars_in_a_terminal(width: int) -> None:
    out = io.StringIO()
    label = "AdamS eta=0.000123 lr=0.00456 weight_decay=0.000789"
    with TrialBars("valid_accuracy", 1, 4, Console(file=out, width=width, force_terminal=True), maximize=True) as bars:
        for value, epochs in ((None, 0), (0.5, 2)):
            bars.on_trial(TrialOutcome(label, "running", value, epochs=epochs, last=5))
        bars.on_trial(TrialOutcome("SGD", "running", last=5))
        bars.on_trial(TrialOutcome("SGD", "done", 0.75, epochs=5, last=5))
        bars.on_trial(TrialOutcome("RMSprop", "done", 0.25, epochs=5, last=5))
        bars.on_trial(TrialOutcome("NAdam", "failed", message="too fast"))
        shown = Console(width=width)
        with shown.capture() as text:
            shown.print(bars._bars)
    first, second, *rest = text.get().splitlines()
    assert not rest  # a line for each bar, however narrow the terminal is
    assert first.startswith("all trials ")
    assert "3/4" in first
    assert "best 0.75, 0 s left" in first
    assert second.startswith("AdamS eta=")
    assert "2/5" in second
    assert "NAdam: failed: too fast" in out.getvalue()


def test_a_notebook_has_the_bar_of_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.of_a_notebook(monkeypatch)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    with trial_display("valid_accuracy", 1, 5, maximize=True) as bar:
        assert isinstance(bar, TrialNotebookBar)
        bar.on_trial(TrialOutcome("Adam <b>", "running", last=5))
        bar.on_trial(TrialOutcome("Adam <b>", "running", 0.5, epochs=2, last=5))
        bar.on_trial(TrialOutcome("Adam <b>", "done", 0.75, epochs=5, last=5))
        bar.on_trial(TrialOutcome("SGD", "done", 0.25, epochs=5, last=5))
        bar.on_trial(TrialOutcome("NAdam", "queued again", message="its process died"))
    assert len(shown.displayed) == 1  # one bar that changes
    assert shown.texts[0].startswith('<div><progress value="1" max="5"')
    assert "1 of 5 trials" in shown.texts[0]
    assert "Adam &lt;b&gt;: 2 of 5 epochs, validation accuracy 0.5" in shown.texts[2]
    assert "3 of 5 trials, best 0.75, " in shown.texts[4]
    assert shown.texts[4].count("left") == 1
    assert "Adam &lt;b&gt;" not in shown.texts[-1]  # it has ended
    assert "NAdam: its process died; it is tried again" in shown.texts[-1]
