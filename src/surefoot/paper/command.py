"""What `surefoot paper` does: run a part of the paper, show the plan, write the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from surefoot.lab.run.pool import MakePool
from surefoot.paper import ablation
from surefoot.paper.plan import describe, plan_status, planned, run_plan


def paper(
    part: str | None,
    *,
    out: Path,
    seeds: int | None = None,
    epochs: int | None = None,
    model: str | None = None,
    reference: bool = False,
    jobs: int = 1,
    data_dir: Path | None = None,
    plan: bool = False,
    to: Path | None = None,
    page: Path | None = None,
    progress: bool = True,
    executor: MakePool | None = None,
    say: Callable[[str], None] = print,
) -> bool:
    """Run a part of the paper, or only say what that would take, and write the results; whether all runs ended.

    Args:
        part: one of `plan.PARTS`, or "steps"; None runs nothing.
        out: folder of the run folders; what it holds is not done again.
        seeds: seeds per optimizer; by default 3 as in the paper, 5 in the ablation.
        epochs: epochs per run; by default 45 as in the paper, in the ablation 12 and 45 (20 on its CNN).
        model: only lr, mlp or cnn.
        reference: also run the published recipe of each variant.
        jobs: worker processes.
        data_dir: where the data sets are.
        plan: say what would be run instead of running it.
        to: folder to write tables, figures and the report to.
        page: Markdown page whose generated parts are refreshed along with it.
        progress: show progress.
        executor: where to compute.
        say: called with every line to print.
    """
    if part is None and to is None:
        raise ValueError("nothing to do; name a part (surefoot paper lr), or --export a folder")
    if page is not None and to is None:
        raise ValueError(f"--page {page} is refreshed from what --export writes; name a folder with --export")
    if part == "steps" and plan:
        raise ValueError("steps is one training per variant and has no plan; leave --plan out")
    all_ended = True
    if part not in (None, "steps"):
        chosen = planned(str(part), seeds=seeds, epochs=epochs, model=model, reference=reference)
        if not chosen:
            raise ValueError(f"{part} has nothing for the model {model}; leave --model out")
        if part in ("ablation", "all") and not ablation.has_schedule_free():
            say("schedule-free AdamW is left out of the ablation; to have it take part: pip install schedulefree")
        if plan:
            say(describe(plan_status(chosen, out=out, data_dir=data_dir), jobs))
        else:
            results = run_plan(chosen, out=out, jobs=jobs, data_dir=data_dir, progress=progress, executor=executor)
            for folder, message in [failure for result in results for failure in result.failures.items()]:
                say(f"failed: {message}\n  in {folder}")
            all_ended = all(result.ok for result in results)
    if part in ("steps", "all") and not plan:
        from surefoot.paper import steps

        say(f"written: {steps.record(model or 'mlp', out=out, epochs=epochs, data_dir=data_dir, say=say)}")
    if to is not None:
        from surefoot.paper.export import export

        for path in export(to, runs=out, page=page):
            say(f"written: {path}")
    return all_ended
