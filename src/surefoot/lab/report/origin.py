"""The commands that compute the runs of a report again, reconstructed from their configurations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup
from surefoot.lab.report.forks import fork_start, forked_at, keeps_state
from surefoot.lab.spec.builtin import NAMED, PAPER_WEIGHT_DECAY
from surefoot.lab.spec.contestant import written

#: In the name of a class or an option that no command can find.
_NOWHERE = ("__main__:", "<locals>", " at 0x")


def commands(groups: Sequence[TaskGroup]) -> tuple[list[str], str]:
    """The commands, and what to know about them."""
    unnamed = any(group.task.code and not group.task.spec for group in groups) or any(
        local in contestant.optimizer.spec for group in groups for contestant in group.contestants for local in _NOWHERE
    )
    note = " A task or optimizer of your own is named by its file or import path; write that in its place."
    return [line for group in groups for line in group_commands(group)], note if unnamed else ""


def group_commands(each: TaskGroup) -> list[str]:
    """One command, unless seeds leave gaps or contestants are told apart by more than a line of the command."""
    task = each.task
    name = task.spec or task.name.split(" ")[0]
    settings = task.settings
    words = ["--batch-size", str(task.batch_size)] if task.batch_size else []
    words += ["--dropout"] if settings.get("dropout") else []
    words += ["--subset", str(settings["subset"])] if settings.get("subset") else []
    words += ["--subset-seed", str(settings["subset_seed"])] if settings.get("subset_seed") is not None else []
    lines = {entry.label: entry.optimizer.spec or entry.label for entry in each.contestants}
    for option, usual in (("lr", 1e-3), ("weight_decay", PAPER_WEIGHT_DECAY if name in NAMED else None)):
        words += _shared(each, lines, option, usual)
    threads = max(run.config.threads for run in each.runs)
    words += ["--threads", str(threads)] if threads != 1 else []
    device = each.runs[0].config.device
    words += ["--device", device] if device != "cpu" else []
    words += _out(each)
    return [
        shlex.join([*_start(group, name), *_asked(group, lines, seeds), *words])
        for group in _groups(each, lines)
        for seeds in _ranges(sorted({run.seed for run in group.runs}))
    ]


def _start(group: TaskGroup, name: str) -> list[str]:
    if not fork_start(group):
        return ["surefoot", "compare", name]
    state = ["--state", "keep"] if any(map(keeps_state, group.contestants)) else []
    return ["surefoot", "fork", name, "--at", str(_forked_at(group)), *state]


def _asked(group: TaskGroup, lines: Mapping[str, str], seeds: range) -> list[str]:
    contestants = [word for entry in group.contestants for word in ("-o", lines[entry.label])]
    first = ["--first-seed", str(seeds[0])] if seeds[0] else []
    epochs = max(run.config.epochs for run in group.runs) - _forked_at(group)
    return [*contestants, "--seeds", str(len(seeds)), *first, "--epochs", str(epochs)]


def _forked_at(group: TaskGroup) -> int:
    return max(forked_at(run) for run in group.runs)


def _groups(each: TaskGroup, lines: Mapping[str, str]) -> list[TaskGroup]:
    """The contestants in groups that do not name one twice: other lengths of a schedule, other states after a fork."""
    groups: list[dict[str, ContestantRuns]] = []
    for entry in sorted(each.contestants, key=lambda contestant: not keeps_state(contestant)):
        line = lines[entry.label]
        place = next((group for group in groups if line not in group), None)
        if place is None:
            groups.append(place := {})
        place[line] = entry
    return [replace(each, contestants=tuple(group.values())) for group in groups]


def _ranges(seeds: Sequence[int]) -> list[range]:
    """Seeds as a command takes them.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    [range(0, 3), range(5, 6), range(7, 9)]
    """
    found: list[range] = []
    for seed in seeds:
        if found and found[-1].stop == seed:
            found[-1] = range(found[-1].start, seed + 1)
        else:
            found.append(range(seed, seed + 1))
    return found


def _out(each: TaskGroup) -> list[str]:
    """The folder that the runs are in, when they are in one and lie there as `compare` puts them."""
    folders = {
        str(run.folder.parent.parent)
        for run in each.runs
        if run.folder.name.endswith(f"-s{run.seed}-{run.config.key[:8]}")
    }
    return ["--out", folders.pop()] if len(folders) == 1 else []


def _shared(each: TaskGroup, lines: dict[str, str], option: str, usual: float | None) -> list[str]:
    """The flag for an option that the contestants' lines do not name; where its values differ, their lines get it."""
    values = {
        entry.label: value
        for entry in each.contestants
        if f"{option}=" not in lines[entry.label] and (value := entry.optimizer.options.get(option)) is not None
    }
    if len(set(values.values())) == 1:
        (value,) = set(values.values())
        return [] if value == usual else [f"--{option.replace('_', '-')}", repr(float(value))]
    for label, value in values.items():
        if value != usual:
            lines[label] = written(lines[label], {option: float(value)}, between="," if "=" in lines[label] else ":")
    return []
