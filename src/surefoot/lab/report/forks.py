"""What a report says of a fork: runs that continued from where a baseline had come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup

if TYPE_CHECKING:
    from surefoot.lab.store import Run


def forked_at(run: Run) -> int:
    """The epoch that a run continued from; 0 when it began at the beginning."""
    return run.config.fork.epoch if run.config.fork else 0


def continued(each: TaskGroup) -> str:
    """Where the runs of a field continued from, as it may stand behind the task's name; empty when they did not."""
    forks = [run.config.fork for run in each.runs if run.config.fork]
    if not forks:
        return ""
    epoch, label = forks[0].epoch, forks[0].label or each.baseline.label
    return f"continued from epoch {epoch} of {label}" if epoch else f"forked at the initial weights of {label}"


def fork_sentence(each: TaskGroup) -> str:
    """The same as a sentence, with what became of the baseline's state; empty when it is no fork."""
    words = continued(each)
    if not words:
        return ""
    keeping = [entry.label for entry in each.contestants if kept(entry)]
    if not keeping:
        state = "with a fresh state"
    elif len(keeping) == len(each.contestants):
        state = "with the state that it had there"
    else:
        state = f"{_and(keeping)} with the state that it had there, the others with a fresh one"
    return f"A fork: every optimizer {words}, from the same weights and over the same batches, {state}."


def keeps_state(each: TaskGroup) -> bool:
    """Whether any contestant went on with the baseline's state."""
    return any(kept(entry) for entry in each.contestants)


def kept(entry: ContestantRuns) -> bool:
    """Whether a contestant went on with the baseline's state."""
    return any(run.config.fork is not None and run.config.fork.state == "kept" for run in entry.runs)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
