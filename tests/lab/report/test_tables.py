"""The tables in every format: the same numbers, correctly escaped."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.report import tables

ODD = r"A_b & 50% #1 {x} \ ^~ | <i> $\alpha$"


@pytest.fixture
def summary(paired_runs, run):
    runs = paired_runs({"Adam": 0.0, "AdamS eta=0.0001": -0.01, "AdamCB": 0.3})
    runs += [run("AdamEI", s, final=0.1, done=2 if s < 4 else None, diverged=s < 4) for s in range(10)]
    return summarise(runs)


def test_terminal_shows_numbers_and_verdicts(summary):
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(tables.Tables.of(summary))
    text = console.export_text()
    assert "digits-mlp: A tie between AdamS eta=0.0001 and AdamEI on validation loss: AdamS eta=0.0001 leads" in text
    assert "digits-mlp: validation loss, lower is better; target 0.1191" in text
    assert "▲ AdamS eta=0.0001 beats Adam by" in text
    assert "▼ Adam is better than AdamCB by" in text
    assert re.search(r"AdamEI .* 4 of 10 ", text)
    assert "∞ (0 of 10)" in " ".join(text.split())
    order = [line.split()[0] for line in text.splitlines() if re.match(r" Adam\w*.* 0\.\d+±", line)][:4]
    assert order == ["AdamS", "AdamEI", "Adam", "AdamCB"]  # the best first


@pytest.mark.parametrize("width", [60, 80, 200])
def test_numbers_stay_whole_in_a_narrow_terminal(summary, width):
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables.Tables.of(summarise(summary.groups[0].runs, metrics=["valid_loss"])))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("0.101±0.013" in line for line in lines) == 1
    text = " ".join(" ".join(lines).split())
    assert ("columns left out: " in text) == (width < 80)  # 80 columns are as good as 200
    assert "epochs / steps / seconds: Adam " in text
    assert "Valid for one look, p by Holm / exact: AdamS" in text


def test_labels_with_brackets_are_not_markup(run):
    from rich.console import Console

    runs = [run(label, seed) for label in ("Adam", "[red]Mine[/red] [/]") for seed in range(2)]
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(tables.Tables.of(summarise(runs)))
    assert "[red]Mine[/red] [/]" in console.export_text()


def test_csv_and_json_hold_every_row_and_number(summary):
    read = list(csv.DictReader(io.StringIO(tables.to_csv(summary))))
    parsed = json.loads(tables.to_json(summary))
    assert len(read) == len(parsed) == len(summary.comparisons) == 12
    for row, line, item in zip(summary.comparisons, read, parsed):
        assert float(line["mean"]) == row.values.mean == item["mean"]
        assert line["verdict"] == row.verdict.sentence == item["verdict"]
        if row.p_holm is not None:
            assert float(line["p_holm"]) == row.p_holm == item["p_holm"]
    missed = next(i for i, row in enumerate(summary.comparisons) if row.label == "AdamCB")
    assert math.isinf(float(read[missed]["epochs_to_target"]))
    assert parsed[missed]["epochs_to_target"] is None
    assert parsed[missed]["reached"] == 0


def test_markdown_has_a_cell_per_column(summary, run):
    text = tables.to_markdown(summary)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(tables.COLUMNS) + 1}
    assert "| AdamS eta=0.0001 | 10 |" in text
    assert tables.Tables.of(summary)._repr_markdown_() == text  # a notebook shows the same
    odd = tables.to_markdown(summarise([run(ODD, seed) for seed in range(2)]))
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in odd.splitlines() if line.startswith("|")}
    assert cells == {len(tables.COLUMNS) + 1}


def test_latex_uses_booktabs_and_escapes(summary, run):
    text = tables.to_latex(summary)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 3
    assert r"0.101$\pm$0.013" in text
    assert "±" not in text
    odd = tables.to_latex(summarise([run(ODD, seed) for seed in range(2)], metrics=["valid_loss"]))
    escaped = r"A\_b \& 50\% \#1 \{x\} \textbackslash{} \textasciicircum{}\textasciitilde{}"
    assert f"{escaped} | $<$i$>$ \\$\\textbackslash{{}}alpha\\$ & 2 &" in odd


def test_html_escapes(summary, run):
    text = tables.to_html(summary)
    assert text.count("<table") == 3
    assert "<td>AdamS eta=0.0001</td>" in text
    for row in summary.comparisons:
        assert f"<td>{row.verdict.sentence}</td>" in text  # however long
    assert "| &lt;i&gt; $" in tables.to_html(summarise([run(ODD, seed) for seed in range(2)]))


def test_html_breaks_no_interval_and_has_no_empty_column(summary, run):
    text = tables.to_html(summary)
    for row in summary.comparisons:
        if row.difference is not None:
            assert tables.difference(row).replace(" ", "\N{NO-BREAK SPACE}") in text
    for lost in (False, True):
        runs = [run("Adam", 0), run("Adam", 1, diverged=lost)]
        assert ("<th>diverged</th>" in tables.to_html(summarise(runs))) == lost


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_word_is_broken_and_no_column_is_left_out_without_a_word(paired_runs, width):
    labels = {"Adam": 0.0, "AdamWScheduleFree": -0.01, "AdamS eta=0.0001 weight_decay=0.001 weighting=paper": -0.02}
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables.Tables.of(summarise(paired_runs(labels), metrics="valid_loss")))
    text = console.export_text()
    words = {word for label in labels for word in label.split()}
    for word in words:
        assert word in text.split(), word
    table = text.partition("▲")[0].partition(" ▼")[0]
    for heading in tables.COLUMNS:
        first = heading.replace(":", "").split()[0]
        said = [line for line in text.splitlines() if line.startswith(" columns left out: ")]
        name = heading.partition(":")[0]
        assert (
            first in table or heading == "verdict" or any(name in line for line in said) or heading in ("n", "diverged")
        )
    assert all(len(line) <= width for line in text.splitlines())
