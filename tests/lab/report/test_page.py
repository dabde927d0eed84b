"""The report: its parts, its size, and the page itself in a real headless browser."""

from __future__ import annotations

import csv
import itertools
import math
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from browser import browser_path, open_browser
from printed import empty_shares
from surefoot.lab.analyse.audit import Finding, audit
from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.report import ReportContext, Section, Story, write_page, write_report, write_stories
from surefoot.lab.report.context import Table, TableRow, Text
from surefoot.lab.report.figures import MOST_SHOWN, Axis, Line, Markers, Panel
from surefoot.lab.report.tables import to_csv
from surefoot.lab.spec.config import Provenance

MEGABYTES_6 = 6_000_000
HOSTILE = """</script><script>document.title='owned'</script><img src=x onerror="document.title='owned'">'"&{{data}}"""


def test_a_missing_browser_is_reported_and_fails_in_ci():
    with pytest.raises(pytest.skip.Exception, match=r"not opened in a browser: no Chromium .*apt install chromium"):
        browser_path("The report", {}, lambda name: None, True)
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        browser_path("The report", {"CI": "true"}, lambda name: None, True)
    with pytest.raises(pytest.fail.Exception, match="no playwright"):
        browser_path("The report", {"CI": "true"}, lambda name: "/usr/bin/chromium", False)
    assert browser_path("The report", {"CI": "true"}, lambda name: "/usr/bin/chromium", True) == "/usr/bin/chromium"


@pytest.fixture(scope="module")
def browser():
    with open_browser("The report") as chromium:
        yield chromium


@pytest.fixture
def visit(browser):
    """Open a file and wait until all is drawn; at the end nothing may have gone wrong or to the network."""
    troubles, requests, contexts = [], [], []

    def open_page(path, width=1280, height=900, **options):
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture
def lively(paired_runs, run):
    """Four contestants and a fifth that diverges twice; eta of AdamS is swept."""
    runs = paired_runs({"Adam": 0.0, "AdamUCB": 0.001, "AdamCB": 0.02}, epochs=8, seeds=7)
    for eta, gain in ((0.001, -0.01), (0.01, -0.02), (0.1, 0.03)):
        options = {"optimizer": "surefoot.AdamS", "kwargs": {"lr": 1e-3, "eta": eta}, "epochs": 8}
        for seed in range(7):
            lost = eta == 0.1 and seed in (2, 5)
            final = 0.1 + 0.02 * math.sin(3.0 * seed) + gain
            runs.append(run(f"AdamS eta={eta}", seed, final=final, done=3 if lost else None, diverged=lost, **options))
    return runs


def wait_until(page, expression):
    """Wait for something to hold; the page's own policy does not let the browser's driver wait inside of it."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"this never held: {expression}")


SHOWN = "el => el.data.filter(t => t.mode === 'lines' && t.fill !== 'toself').length"


def test_the_page_draws_and_its_switches_work(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"))
    canvases = page.locator(".canvas")
    assert canvases.count() == 1 + 3 + 4 + 2 + 1  # differences, curves, inside, sensitivity on two metrics, race
    assert page.locator(".canvas svg.main-svg").count() >= canvases.count()
    assert page.locator(".canvas .scatterlayer path.js-line").count() > 6 * 3
    curves, first = page.locator("#learning-curves"), page.locator("#figure-1")
    assert first.evaluate(SHOWN) == 6
    assert first.evaluate("el => el.data.filter(t => t.marker && t.marker.symbol === 'x').length") == 2

    for check, scale in ((True, "log"), (False, "linear")):
        curves.get_by_label("Log scale").set_checked(check)
        assert first.evaluate("el => el.layout.yaxis.type") == scale
        assert page.locator("#figure-3").evaluate("el => el.layout.yaxis.type") == "linear"  # accuracy

    curves.get_by_label("Single seeds").check()
    assert first.evaluate(SHOWN) == 12
    curves.get_by_label("Single seeds").uncheck()
    bands = "el => el.data.filter(t => t.fill === 'toself').length"
    assert first.evaluate(bands) == 6
    curves.get_by_label("Band").uncheck()
    assert first.evaluate(bands) == 0

    last_x = "el => el.data[0].x[el.data[0].x.length - 1]"
    assert first.evaluate(last_x) == 8
    curves.get_by_text("Step", exact=True).click()
    assert first.evaluate(last_x) == 8 * 12
    curves.get_by_text("Seconds", exact=True).click()
    assert first.evaluate(last_x) == pytest.approx(8 * 0.5)
    # the switches of both sections tell the same
    assert page.locator("#what-the-optimizers-saw input[value=seconds]").is_checked()

    curves.get_by_label("Minus baseline").check()
    assert first.evaluate("el => Math.max(...el.data[0].y.map(Math.abs))") == 0  # the baseline minus itself
    drop = "el => el.data.find(t => t.name === 'AdamCB').y.at(-1)"
    assert page.locator("#figure-2").evaluate(drop) == pytest.approx(0.02, abs=0.002)
    curves.get_by_label("Minus baseline").uncheck()

    chip = curves.get_by_role("button", name="AdamCB")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert first.evaluate(SHOWN) == 5
    chip.dblclick()
    assert first.evaluate(SHOWN) == 1
    curves.get_by_role("button", name="all", exact=True).click()
    assert first.evaluate(SHOWN) == 6


PLACE = """(el, [name, i]) => {
  const trace = el.data.find(t => t.name === name && t.mode === 'lines');
  const { left, top } = el.getBoundingClientRect(), { xaxis, yaxis } = el._fullLayout;
  return [left + xaxis._offset + xaxis.d2p(trace.x[i]), top + yaxis._offset + yaxis.d2p(trace.y[i])];
}"""


def test_a_curve_under_the_mouse_shows_its_numbers(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"))
    canvas, label = page.locator("#figure-1"), page.locator("#figure-1 .hoverlayer .hovertext")
    canvas.scroll_into_view_if_needed()
    assert label.count() == 0
    for name, epoch, n in (("AdamS eta=0.1", 8, "5 of 7"), ("AdamS eta=0.01", 7, "7")):  # the highest and the lowest
        page.mouse.move(*canvas.evaluate(PLACE, [name, epoch - 1]))
        page.locator("#figure-1 .hoverlayer .hovertext", has_text=f"epoch {epoch}: ").wait_for()
        values = [made.epochs[epoch - 1]["train_loss"] for made in lively if made.label == name and not made.diverged]
        shown = re.fullmatch(rf"{re.escape(name)}epoch {epoch}: (\S+) ± (\S+) \(n={n}\)", label.text_content())
        assert [float(number) for number in shown.groups()] == pytest.approx(
            [statistics.fmean(values), statistics.stdev(values)],
            rel=0.01,  # the page keeps four digits of each seed
        )
    page.mouse.move(0, 0)
    label.wait_for(state="detached")


def saved(page, button):
    """The text of the file that a click saves, and its name."""
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_text(encoding="utf-8"), waiting.value.suggested_filename


def test_figures_and_data_can_be_saved(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"))
    figure = page.locator("#in-short figure").first
    text, name = saved(page, figure.get_by_role("button", name="SVG"))
    assert text.startswith("<svg ")
    assert name == "validation-loss-minus-adam-s-on-the-same-seed.svg"
    assert "AdamCB" in text
    assert page.locator("figure.plot").count() == page.get_by_role("button", name="SVG").count()
    text, name = saved(page, figure.get_by_role("button", name="CSV"))
    assert name.endswith(".csv")
    assert [row["x"] for row in csv.DictReader(text.splitlines()) if "AdamCB, pair" in row["text"]] != []
    text, name = saved(page, page.get_by_role("button", name="results.csv"))
    assert (name, text) == ("results.csv", to_csv(summarise(lively)))
    text, name = saved(page, page.get_by_role("button", name="epochs.csv"))
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == sum(len(made.epochs) for made in lively)
    assert float(rows[0]["valid_loss"]) == pytest.approx(lively[0].epochs[0]["valid_loss"], rel=1e-3)


def test_the_first_screen_says_who_won(visit, paired_runs, tmp_path):
    page = visit(write_report(paired_runs({"Adam": 0.0, "AdamS": -0.02, "AdamCB": 0.1}), tmp_path / "report.html"))
    assert page.locator(".winner .who").inner_text() == "AdamS wins on validation loss."
    picture = page.locator("#figure-0")
    assert picture.evaluate("el => el.getBoundingClientRect().bottom < window.innerHeight + 300")
    notes = picture.locator(".annotation-text").all_text_contents()
    assert {"← better", "worse →"} <= set(notes)
    assert any(note.endswith("▲ better") for note in notes)


def test_it_fits_a_phone(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"), 390, 844, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = "els => els.map(el => el.getBoundingClientRect().right).filter(right => right > 390).length"
    assert page.locator(".canvas, .canvas svg, .card, table, .controls, .legend").evaluate_all(wide) == 0
    # a row is a small card with its headings inside
    assert page.locator("table.results tbody tr").first.evaluate("el => getComputedStyle(el).display") == "grid"


def test_long_numbers_and_long_names_fit_a_phone(visit, paired_runs, tmp_path):
    runs = paired_runs({"Adam": 0.0, "Adam examples=tilted:auto": -0.0012345}, epochs=2, seeds=6)
    page = visit(write_report(runs, tmp_path / "report.html"), 390, 844, has_touch=True, is_mobile=True)
    scrolls = "els => els.filter(el => el.scrollWidth > el.clientWidth).length"
    assert page.locator(".scroll").evaluate_all(scrolls) == 0
    places = "els => els.map(el => [el.getBoundingClientRect().left, el.getBoundingClientRect().right])"
    row = page.locator("table.results tbody tr").filter(has_text="tilted").first
    _, mean, difference, *_ = row.locator("td").evaluate_all(places)
    assert difference[1] - difference[0] > 1.8 * (mean[1] - mean[0])  # a line of its own
    lines = """el => {
      const range = document.createRange(); range.selectNodeContents(el); return range.getClientRects().length }"""
    assert page.locator(".card h4").evaluate(lines) == 1  # no word of a name is broken


def test_a_long_heading_on_a_phone_leaves_room_for_the_number(visit, tmp_path):
    head = ["peer", "difference over all horizons, % (95%)"]
    content = [Table(head, [TableRow(["Adam", "-56.6 (-58.2 to -53.6)"])]), Text("See `surefoot tune` <b>.")]
    path = write_page(tmp_path / "page.html", ReportContext("Tables", sections=[Section("One", content=content)]))
    page = visit(path, 390, 844, has_touch=True, is_mobile=True)
    cell = page.locator("td")
    range_of_text = """el => {
      const range = document.createRange(); range.selectNodeContents(el); return range.getClientRects().length }"""
    assert cell.evaluate(range_of_text) == 1  # in one line
    assert cell.evaluate("el => getComputedStyle(el, '::before').textAlign") == "left"
    assert page.locator("main p").inner_html() == "See <code>surefoot tune</code> &lt;b&gt;."


def test_the_results_fit_a_tablet(visit, paired_runs, tmp_path):
    runs = paired_runs({"Adam": 0.0, "AdamUCB": 0.001, "AdamCB": 0.02}, epochs=2, seeds=6)
    page = visit(write_report(runs, tmp_path / "report.html"), width=768)
    scrolls = "els => els.filter(el => el.scrollWidth > el.clientWidth + 1).length"
    assert page.locator("#results .scroll").evaluate_all(scrolls) == 0


def test_it_prints_and_has_a_dark_mode(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"), color_scheme="dark")
    ink = "() => document.getElementById('figure-1').layout.font.color"
    assert page.evaluate(ink) == "#e6edf1"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ink) == "#17232c"
    assert page.locator("nav").is_hidden()
    assert page.locator("form.controls").first.is_hidden()
    assert page.evaluate("[...document.querySelectorAll('details')].every(part => part.open)")
    assert page.locator("#figure-1 svg.main-svg").first.evaluate("el => el.getBoundingClientRect().width") < 340
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="dark")
    page.locator("#figure-1").scroll_into_view_if_needed()  # what is far away is drawn again when it comes near
    wait_until(page, f"({ink})() === '#e6edf1'")
    pdf = page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12


def test_a_band_has_the_ink_of_the_page(visit, tmp_path):
    panel = Panel("Loss", [Line("", [1, 2], [0.0, 0.0], 0, [(-1.0, 1.0)] * 2)])
    path = write_page(tmp_path / "page.html", ReportContext("Band", sections=[Section("One", panels=[panel])]))
    fill = "el => el.data.find(trace => trace.fill === 'toself').fillcolor"
    for scheme, color in (("light", "rgba(23,35,44,0.14)"), ("dark", "rgba(238,243,246,0.14)")):
        assert visit(path, color_scheme=scheme).locator("#figure-0").evaluate(fill) == color


def test_the_best_value_stands_out_from_the_page(visit, tmp_path):
    points = Line("", [1, 2], [1, 2], markers=Markers(values=[0.1, 0.9], scale="loss"), connected=False)
    path = write_page(
        tmp_path / "page.html", ReportContext("Map", sections=[Section("One", panels=[Panel("Map", [points])])])
    )
    reversed_scale = "el => el.data[0].marker.reversescale"
    light, dark = (visit(path, color_scheme=scheme).locator("#figure-0") for scheme in ("light", "dark"))
    assert (light.evaluate(reversed_scale), dark.evaluate(reversed_scale)) == (False, True)


def test_a_printed_page_is_filled(visit, paired_runs, tmp_path):
    few = paired_runs({"Adam": 0.0, "AdamUCB": 0.001, "AdamCB": 0.02, "AdamS": -0.01}, epochs=4, seeds=6)
    page = visit(write_report(few, tmp_path / "few.html"), width=688)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    # a wider table would make every page smaller, with an empty margin
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    tops = "els => new Set(els.map(el => Math.round(el.getBoundingClientRect().top))).size"
    assert page.locator("#learning-curves .plot").evaluate_all(tops) == 1  # three figures, three cards: a row
    assert page.locator(".card").evaluate_all(tops) == 1
    many = paired_runs({f"Adam lr={rate}": rate for rate in range(12)}, epochs=2, seeds=6)
    page = visit(write_report(many, tmp_path / "many.html"), width=688)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#figure-0").evaluate("el => el.clientHeight") < 450  # below the verdict, on the first page


def test_no_printed_page_is_a_quarter_empty(visit, paired_runs, lively, tmp_path):
    gains = {"Adam": 0.0, "AdamUCB": 0.001, "AdamCB": 0.02, "AdamS": -0.01}
    stories = []
    for number, labels in enumerate((4, 2, 2, 2)):
        runs = paired_runs(dict(list(gains.items())[:labels]), epochs=20, seeds=6)
        text = "What is compared, what follows from it, and what to do with it in a training loop of your own. " * 2
        stories.append(Story(f"{number + 1}. What is compared here?", text, summarise(runs), audit(runs)))
    some = paired_runs(gains, epochs=6, seeds=6)
    many = paired_runs({f"Adam lr={rate}": rate for rate in range(12)}, epochs=4, seeds=6)
    paths = {
        "stories": write_stories(tmp_path / "stories.html", "Several questions", stories),
        **{
            name: write_report(runs, tmp_path / f"{name}.html")
            for name, runs in {"some": some, "lively": lively, "many": many}.items()
        },
    }
    for name, path in paths.items():
        shares = empty_shares(visit(path).pdf(prefer_css_page_size=True))
        assert len(shares) >= 3
        assert max(shares[:-1]) < 0.25, (name, shares)
        assert shares[-1] < 0.95, (name, shares)  # the last line does not stand alone


def test_a_heading_stays_with_what_follows_on_paper(visit, paired_runs, tmp_path):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, epochs=2, seeds=6)
    page = visit(write_stories(tmp_path / "page.html", "One", [Story("1. What?", "This.", summarise(runs), [])]))
    page.emulate_media(media="print")
    breaks = "els => els.map(el => getComputedStyle(el).breakAfter)"
    for place in ("h2", "h3", "h4", ".lead", ".legend"):
        assert set(page.locator(place).evaluate_all(breaks)) == {"avoid"}, place


def test_numbers_of_a_low_figure_do_not_lie_on_each_other(visit, run, tmp_path):
    runs = [run(label, seed, final=0.1 + 0.01 * seed) for label in ("Adam", "AdamS") for seed in range(2)]
    for made in runs:  # a factor of eight: on paper the steps of 0.05 would be four pixels apart at the top
        for row in made.epochs:
            row["valid_loss"] = 0.4 if row["epoch"] == 1 else 0.05
    page = visit(write_report(runs, tmp_path / "report.html"), width=688)
    page.locator("#learning-curves").get_by_label("Log scale").check()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    tops = "els => els.map(el => el.getBoundingClientRect().top).sort((a, b) => a - b)"
    places = page.locator("#figure-2 .ytick text").evaluate_all(tops)
    assert len(places) >= 2
    assert min(low - high for high, low in itertools.pairwise(places)) > 11


NUMBERS = "(el, side) => [...el.querySelectorAll(`.${side}tick text`)].map(text => text.textContent)"


def test_every_axis_has_numbers_and_epochs_are_whole(visit, paired_runs, tmp_path):
    loss = Line("loss", [1, 2, 3], [0.29, 0.275, 0.268])
    extra = Section("Paper", panels=[Panel("Loss", [loss], y=Axis(scale="log"))])
    # Losses between 5 and 5.5, so that there is no 1, 2 or 5 of a decade.
    runs = paired_runs({"Adam": 5.0, "AdamS": 5.1}, seeds=2, epochs=3)
    page = visit(write_report(runs, tmp_path / "report.html", sections=[extra]))
    page.locator("#learning-curves").get_by_label("Log scale").check()
    curves, paper, race = (
        page.locator("#figure-2"),
        page.locator("#paper .canvas"),
        page.locator("#time-to-target .canvas"),
    )
    for canvas in (curves, paper):
        canvas.scroll_into_view_if_needed()
        assert canvas.evaluate("el => el.layout.yaxis.type") == "log"
        shown = [float(text) for text in canvas.evaluate(NUMBERS, "y")]
        assert len(set(shown)) >= 3
        assert canvas.evaluate(NUMBERS, "x") == ["1", "2", "3"]
    assert race.evaluate(NUMBERS, "x") == ["0", "1", "2", "3"]
    # what is left after a zoom has numbers, too
    paper.evaluate("el => Plotly.relayout(el, {'yaxis.range': [Math.log10(0.27), Math.log10(0.274)]})")
    assert len(paper.evaluate(NUMBERS, "y")) >= 3
    assert page.locator("#figure-4").evaluate("el => el.layout.yaxis.exponentformat") == "e"


def test_bands_on_a_log_scale_end_at_the_smallest_seed(visit, run, tmp_path):
    runs = [run("Adam", seed, final=final) for seed, final in enumerate((0.01, 0.01, 0.9))]
    page = visit(write_report(runs, tmp_path / "report.html"))
    page.locator("#learning-curves").get_by_label("Log scale").check()
    lowest = "el => Math.min(...el.data.find(trace => trace.fill === 'toself').y)"
    assert page.locator("#figure-1").evaluate(lowest) == pytest.approx(0.01)


def test_time_to_target_keeps_its_width_on_a_phone(visit, paired_runs, tmp_path):
    long = "AdamUCB weighting=unit betas=(0.9, 0.99) amsgrad=True {} weight_decay=0.0001 eps=1e-08 decoupled=True"
    labels = {"Adam": 0.0, long.format("eta=0.1"): 0.3, long.format("eta=0.2"): -0.01}
    path = write_report(paired_runs(labels, seeds=2, epochs=4), tmp_path / "report.html")
    for width, options in ((390, {"has_touch": True, "is_mobile": True}), (1280, {})):
        page = visit(path, width, 844, **options)
        race = page.locator("#time-to-target .canvas")
        race.scroll_into_view_if_needed()
        assert race.evaluate("el => el._fullLayout._size.w") > 0.6 * min(width, 1000)
        texts = race.locator(".annotation text, .ytick text").all_text_contents()
        names = [text for text in texts if text.startswith("Adam")]
        assert len(set(names)) == len(names) == 3
        assert texts.count("2 of 2 missed") == 1
    reached = write_report(paired_runs({"Adam": 0.0}, seeds=2), tmp_path / "reached.html")
    assert visit(reached).locator("#time-to-target .canvas").evaluate("el => el.layout.margin.r") == 12


def test_small_screens_show_that_there_is_more(visit, lively, tmp_path):
    page = visit(write_report(lively, tmp_path / "report.html"), 390, 844, has_touch=True, is_mobile=True)
    links = page.locator("nav .inner")
    assert links.evaluate("el => [...el.classList]") == ["inner", "more-right"]
    links.evaluate("el => { el.scrollLeft = el.scrollWidth; }")
    wait_until(page, "document.querySelector('nav .inner').className === 'inner more-left'")
    one_line = "els => els.every(el => el.getBoundingClientRect().height < 40)"
    assert page.locator(".facts caption").evaluate_all(one_line)


def test_28_contestants_10_seeds_45_epochs(visit, paired_runs, tmp_path):
    labels = {"Adam": 0.0} | {f"Adam{rule} eta={i}": 0.001 * i for rule in ("S", "UCB", "CB") for i in range(9)}
    path = write_report(paired_runs(labels, seeds=10, epochs=45), tmp_path / "report.html")
    assert path.stat().st_size < MEGABYTES_6
    page = visit(path)
    assert page.locator("#figure-1").evaluate(SHOWN) == MOST_SHOWN
    assert page.locator("#learning-curves .chip[aria-pressed=true]").count() == MOST_SHOWN
    page.locator("#learning-curves").get_by_role("button", name="all", exact=True).click()
    assert page.locator("#figure-1").evaluate(SHOWN) == 28
    assert page.locator("table.results").first.locator("tbody tr").count() == 28


def test_nothing_a_user_wrote_becomes_html(visit, run, tmp_path):
    task = {"name": HOSTILE, "data": HOSTILE, "settings": {}, "code": HOSTILE}
    runs = [
        run(label, seed, task=task, kwargs={"eta": HOSTILE}, done=1 if seed else None, diverged=bool(seed))
        for label in ("Adam", HOSTILE)
        for seed in range(2)
    ]
    hostile = dict.fromkeys(("surefoot", "torch", "python", "platform", "cpu", "commit", "time"), HOSTILE)
    for index, made in enumerate(runs):
        task = replace(made.config.task, batch_size=HOSTILE)
        runs[index] = replace(made, config=replace(made.config, task=task, provenance=Provenance(**hostile)))
        for record in made.epochs:
            record[HOSTILE] = 0.5
    axis, point = Axis(HOSTILE), Line(HOSTILE, [1], [1], text=[HOSTILE])
    extra = Section(HOSTILE, HOSTILE, panels=[Panel(HOSTILE, [point], axis, axis, HOSTILE, rows=[(HOSTILE, HOSTILE)])])
    findings = [Finding(HOSTILE, "note", HOSTILE)]
    path = write_report(runs, tmp_path / "r.html", HOSTILE, [extra], findings=findings, command=HOSTILE)
    page = visit(path)
    assert page.title() == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 4
    page.locator("#learning-curves .chip").nth(1).click()
    assert page.locator("#figure-1").evaluate(SHOWN) == 1


SPAN = '<span style="background:url(http://198.51.100.7/x.png)">x</span>'


def with_metric(made, name):
    """A run whose accuracy has another name, or none."""
    rows = [{key: value for key, value in row.items() if key != "valid_accuracy"} for row in made.epochs]
    if name:
        rows = [{**row, name: old["valid_accuracy"]} for row, old in zip(rows, made.epochs)]
    return replace(made, epochs=rows)


def test_no_text_of_a_figure_reaches_the_network(visit, lively, tmp_path):
    runs = [with_metric(made, f"valid_{SPAN}") for made in lively]
    words = Line(SPAN, [SPAN, "b"], [1.0, 2.0], text=[SPAN, SPAN], connected=False, markers=Markers())
    panel = Panel(SPAN, [words], Axis(SPAN, "category"), Axis(SPAN), SPAN)
    page = visit(write_report(runs, tmp_path / "r.html", SPAN, [Section(SPAN, panels=[panel])]))
    for canvas in page.locator(".canvas").all():
        canvas.scroll_into_view_if_needed()
    ticks = page.locator(".xtick text").all_text_contents()
    assert any(tick.startswith("<span style=") for tick in ticks)  # as it is written


def test_the_page_runs_its_own_scripts_alone_and_loads_nothing(browser, lively, tmp_path):
    text = write_report(lively, tmp_path / "r.html").read_text()
    intruders = '<script>document.title = "owned"</script><img src="http://198.51.100.7/x.png">'
    (tmp_path / "r.html").write_text(text.replace("<main>", f"<main>{intruders}"))
    page = browser.new_page()
    requests = []
    page.on("requestfinished", lambda request: requests.append(request.url))
    page.goto((tmp_path / "r.html").as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60_000)
    assert page.title() != "owned"
    assert [url for url in requests if url.startswith("http")] == []
    page.close()


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__", "valid___proto__"])
def test_a_metric_may_have_the_name_of_something_that_every_object_has(visit, lively, tmp_path, name):
    runs = [with_metric(made, name if made.label == "AdamCB" else "") for made in lively]
    page = visit(write_report(runs, tmp_path / "r.html"))
    assert page.locator("#figure-3").evaluate(SHOWN) == 1
    page.locator("#learning-curves").get_by_label("Minus baseline").check()
    assert page.locator("#figure-1").evaluate(SHOWN) == 6


def test_the_page_needs_no_network(paired_runs, tmp_path):
    text = write_report(paired_runs({"Adam": 0.0, "AdamS": -0.01}), tmp_path / "report.html").read_text()
    start = text.index("<script>window.PlotlyConfig")
    end = text.index("</script>", text.index("Plotly", start + 200))
    ours = text[:start] + text[end:]
    assert not re.search(r"https?://|src\s*=|@import|url\(", ours)
    assert text.count("plotly.js v") == 1


def test_a_place_that_takes_no_file_is_one_sentence(tmp_path):
    (tmp_path / "afile").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    for path in (tmp_path / "afile" / "r.html", tmp_path / "folder.html"):
        with pytest.raises(OSError, match=rf"^the report {path} cannot be written \(.*\); write it to another place$"):
            write_page(path, ReportContext("Nowhere"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["afile", "folder.html"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_parses(tmp_path):
    from surefoot.lab.report import page

    script = tmp_path / "report.js"
    script.write_text(page.asset("ticks.js") + page.asset("report.js"))
    subprocess.run(["node", "--check", str(script)], check=True)
