"""What a report says of a fork: runs that continued from an epoch of a baseline."""

from __future__ import annotations

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup


def keeps_state(contestant: ContestantRuns) -> bool:
    """Whether a contestant continued with the baseline's state."""
    return any(run.config.fork is not None and run.config.fork.state == "kept" for run in contestant.runs)


def fork_start(group: TaskGroup) -> str:
    """Where the runs of a fork continued from, to follow the task's name; empty if they are no fork."""
    forks = [run.config.fork for run in group.runs if run.config.fork]
    if not forks:
        return ""
    epoch, label = forks[0].epoch, forks[0].label or group.baseline.label
    return f"continued from epoch {epoch} of {label}" if epoch else f"forked at the initial weights of {label}"


def fork_sentence(group: TaskGroup) -> str:
    """The same as a sentence, with what became of the baseline's state; empty if it is no fork."""
    start = fork_start(group)
    if not start:
        return ""
    keeping = [contestant.label for contestant in group.contestants if keeps_state(contestant)]
    if not keeping:
        state = "with a fresh state"
    elif len(keeping) == len(group.contestants):
        state = "with the state that it had there"
    else:
        names = keeping[0] if len(keeping) == 1 else f"{', '.join(keeping[:-1])} and {keeping[-1]}"
        state = f"{names} with the state that it had there, the others with a fresh one"
    return f"A fork: every optimizer {start}, from the same weights and over the same batches, {state}."
