"""What `surefoot paper` does: run a part of the paper, show the plan, write the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot.lab.spec.options import RunOptions, shows_options
from surefoot.paper import ablation
from surefoot.paper.archive import unpack_archive
from surefoot.paper.plan import describe, plan_status, planned, run_plan


@shows_options
def paper(
    part: str | None,
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    model: str | None = None,
    reference: bool = False,
    plan: bool = False,
    archive: Path | None = None,
    to: Path | None = None,
    page: Path | None = None,
    print_line: Callable[[str], None] = print,
    **options: Any,
) -> bool:
    """Run a part of the paper, or only say what that would take, and write the results; whether all runs ended.

    Args:
        part: one of `plan.PARTS`, or "steps"; None runs nothing.
        seeds: seeds per optimizer; by default 3 as in the paper, 5 in the ablation, 10 in `why`.
        epochs: epochs per run; by default 45; in the ablation 12 and 45 (20 on its CNN), in `why` 3, 7 and 20.
        model: only lr, mlp or cnn.
        reference: also run the published recipe of each optimizer.
        plan: print what would be run instead of running it.
        archive: file of runs that are done, such as `results/paper/runs.jsonl`; they are not computed again.
        to: folder to write tables, figures and the report to.
        page: Markdown page whose generated parts are refreshed along with it.
        print_line: called with every line to print.
        options: the fields of `RunOptions`.
    """
    if part is None and to is None:
        raise ValueError("nothing to do; name a part (surefoot paper lr), or --export a folder")
    if page is not None and to is None:
        raise ValueError(f"--page {page} is refreshed from what --export writes; name a folder with --export")
    if part == "steps" and plan:
        raise ValueError("steps is one training per variant and has no plan; leave --plan out")
    shared = RunOptions.read(options)
    if archive is not None and not archive.is_file():
        raise ValueError(f"there is no archive {archive}; name a file such as results/paper/runs.jsonl")
    if archive is not None:
        print_line(f"{unpack_archive(archive, shared.out)} runs of {archive} are now in {shared.out}")
    all_ended = True
    if part not in (None, "steps"):
        chosen = planned(str(part), seeds=seeds, epochs=epochs, model=model, reference=reference)
        if not chosen:
            raise ValueError(f"{part} has nothing for the model {model}; leave --model out")
        if part in ("ablation", "all") and not ablation.has_schedule_free():
            print_line(
                "schedule-free AdamW is left out of the ablation; to have it take part: pip install schedulefree"
            )
        if plan:
            print_line(describe(plan_status(chosen, out=shared.out, data_dir=shared.data_dir), shared.jobs))
        else:
            results = run_plan(chosen, **options)
            for folder, message in [failure for result in results for failure in result.failures.items()]:
                print_line(f"failed: {message}\n  in {folder}")
            all_ended = all(result.ok for result in results)
    if part in ("steps", "all") and not plan:
        from surefoot.paper import steps

        path = steps.record(
            model or "mlp", out=shared.out, epochs=epochs, data_dir=shared.data_dir, print_line=print_line
        )
        print_line(f"written: {path}")
    if to is not None:
        from surefoot.paper.export import export

        for path in export(to, runs=shared.out, page=page):
            print_line(f"written: {path}")
    return all_ended
