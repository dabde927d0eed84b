// Draws the figures of the page. State (which axis, which contestants) lives here; the numbers stand in #data.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  // Names of metrics are anyone's: in a plain object "constructor" would be there without having been recorded.
  for (const block of page.blocks) for (const entry of block.entries) entry.values = new Map(Object.entries(entry.values));
  const root = document.documentElement;
  const canvases = page.figures.map((_, i) => document.getElementById(`figure-${i}`));
  const hidden = page.blocks.map((block) => new Set(block.hidden));
  const state = { x: "epoch", log: wantsLog(), minus: false, band: true, seeds: false };
  const drawn = new Set(), stale = new Set();
  const narrow = () => window.matchMedia("(max-width: 700px)").matches && !root.classList.contains("printing");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const labels = { epoch: "epoch", step: "step", seconds: "seconds of training" };

  // A loss that falls by more than a factor of 20 hides its end on a linear scale.
  function wantsLog() {
    return page.figures.some((figure) => {
      if (figure.kind !== "curves" || !figure.log) return false;
      const values = page.blocks[figure.block].entries
        .flatMap((entry) => entry.values.get(figure.metric) || []).flat().filter((value) => value > 0);
      return Math.max(...Ticks.sample(values)) > 20 * Math.min(...Ticks.sample(values));
    });
  }

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  function style(series) {
    const [number, dash, strength] = page.styles[series];
    return { color: mixed(css(`--s${number}`), css("--paper"), strength), dash };
  }
  // A colour of which a share is left, on this paper: the shades of a sweep.
  function mixed(color, paper, strength) {
    if (strength === 1) return color;
    const parts = [1, 3, 5].map((k) => [color, paper].map((code) => parseInt(code.slice(k, k + 2), 16)));
    return "#" + parts.map(([own, below]) => Math.round(strength * own + (1 - strength) * below).toString(16).padStart(2, "0")).join("");
  }
  const BAND = 0.14; // how much colour a band has
  function faint(color, alpha) {
    const n = parseInt(color.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
  }
  const safe = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (value) => value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5
    ? value.toExponential(2) : String(Number(value.toPrecision(4)));

  // Mean and sample std over the seeds that have a value at each epoch.
  function summary(curves) {
    const length = Math.max(...curves.map((curve) => curve.length));
    return Array.from({ length }, (_, i) => {
      const values = curves.map((curve) => curve[i]).filter((value) => value !== null && value !== undefined);
      const n = values.length;
      const mean = values.reduce((sum, value) => sum + value, 0) / n;
      const std = n > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1)) : 0;
      return n ? { n, mean, std, low: Math.min(...values) } : null;
    });
  }

  function xOf(entry, block, seed) {
    if (state.x === "epoch") return block.epochs;
    if (state.x === "step") return entry.step;
    if (seed !== undefined) return entry.seconds[seed];
    return summary(entry.seconds).map((point) => point && point.mean);
  }

  // Every seed's curve, or what it differs from the baseline's curve of the same seed.
  function curvesOf(entry, figure, block) {
    const curves = entry.values.get(figure.metric), base = block.entries[0];
    if (!curves || !isMinus(figure)) return curves;
    return curves.map((curve, k) => {
      const other = (base.values.get(figure.metric) || [])[base.seeds.indexOf(entry.seeds[k])] || [];
      return curve.map((value, i) => value == null || other[i] == null ? null : value - other[i]);
    });
  }
  const isMinus = (figure) => state.minus && !figure.inside;
  const isLog = (figure) => figure.log && state.log && !isMinus(figure);

  function curveTraces(figure) {
    const block = page.blocks[figure.block];
    const log = isLog(figure);
    const bands = [], seeds = [], lines = [], crosses = [];
    for (const entry of block.entries) {
      const curves = curvesOf(entry, figure, block);
      if (!curves || hidden[figure.block].has(entry.label)) continue;
      const { color, dash } = style(entry.series);
      const points = summary(curves), x = xOf(entry, block), name = safe(entry.label);
      const usable = points.map((point, i) => i).filter((i) => points[i] && x[i] != null);
      if (state.band && usable.some((i) => points[i].n > 1)) {
        // On a log scale mean - std may be far below every seed, or have no place at all: the smallest seed is the end.
        const below = (i) => points[i].mean - points[i].std;
        const low = (i) => log ? Math.max(below(i), points[i].low) : below(i);
        const back = [...usable].reverse();
        bands.push({
          x: [...usable, ...back].map((i) => x[i]),
          y: [...usable.map((i) => points[i].mean + points[i].std), ...back.map(low)],
          type: "scatter", mode: "lines", fill: "toself", fillcolor: faint(color, BAND), line: { width: 0 },
          hoverinfo: "skip", showlegend: false, legendgroup: entry.label,
        });
      }
      if (state.seeds) {
        const xs = [], ys = [], text = [];
        curves.forEach((curve, k) => {
          const at = xOf(entry, block, k);
          curve.forEach((value, i) => {
            xs.push(at[i]); ys.push(value); text.push(value === null ? "" : `seed ${entry.seeds[k]}: ${short(value)}`);
          });
          xs.push(null); ys.push(null); text.push("");
        });
        seeds.push({
          x: xs, y: ys, text, name, type: "scatter", mode: "lines", line: { color: faint(color, 0.45), width: 1, dash },
          hovertemplate: `${name}<br>%{text}<extra></extra>`, showlegend: false,
        });
      }
      const single = usable.length === 1;
      lines.push({
        x: usable.map((i) => x[i]), y: usable.map((i) => points[i].mean), name,
        customdata: usable.map((i) => `${short(points[i].mean)}${points[i].n > 1 ? ` ± ${short(points[i].std)}` : ""}`
          + ` (n=${points[i].n}${points[i].n < entry.seeds.length ? ` of ${entry.seeds.length}` : ""})`),
        type: "scatter", mode: single ? "markers" : "lines", line: { color, width: 2.2, dash }, marker: { color },
        hovertemplate: `<b>${name}</b><br>${state.x} %{x}: %{customdata}<extra></extra>`, showlegend: false,
      });
      for (const [k, epoch] of Object.entries(entry.diverged)) {
        const curve = curves[k] || [];
        let last = curve.length - 1;
        while (last >= 0 && curve[last] === null) last -= 1;
        if (last < 0) continue;
        crosses.push({
          x: [xOf(entry, block, k)[last]], y: [curve[last]], type: "scatter", mode: "markers", showlegend: false, name,
          marker: { symbol: "x", size: 9, color }, hovertemplate: `<b>${name}</b><br>seed ${entry.seeds[k]} diverged in epoch ${epoch}<extra></extra>`,
        });
      }
    }
    return [...bands, ...seeds, ...lines, ...crosses];
  }

  function plotTraces(figure) {
    return figure.data.map((trace) => {
      if (trace.series === undefined) return scaled(trace);
      const { color, dash } = style(trace.series), { series, ...rest } = trace;
      if (rest.fill) return { ...rest, fillcolor: faint(color, BAND) };
      const marker = { ...rest.marker, color };
      if (marker.line) marker.line = { ...marker.line, color };
      return { ...rest, marker, line: { width: 2.2, dash, ...rest.line, color }, ...(rest.error_y && { error_y: { ...rest.error_y, color } }) };
    });
  }

  // Sequential colours: the best value is the farthest from the paper, whatever colour that has.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function scaled(trace) {
    if (!trace.marker?.colorscale || !dark.matches || root.classList.contains("printing")) return trace;
    return { ...trace, marker: { ...trace.marker, reversescale: !trace.marker.reversescale } };
  }

  // A run about to diverge can dwarf everything else; double click shows it all.
  function clipped(traces, log) {
    const values = traces.filter((trace) => trace.mode === "lines" && trace.fill !== "toself")
      .flatMap((trace) => trace.y).filter((value) => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
    if (!values.length || log) return undefined;
    const at = (share) => values[Math.floor(share * (values.length - 1))];
    const low = values[0], reach = at(0.9) - low;
    if (!(reach > 0) || values[values.length - 1] - low < 12 * reach) return undefined;
    return [low - 0.1 * reach, low + 3 * reach];
  }

  function axis(letter, traces, extra, length) {
    const log = extra.type === "log";
    return {
      gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"), tickfont: { size: 11 },
      automargin: true, exponentformat: "e", ...(log && { tickformat: "~g" }),
      ...(extra.tickvals ? {} : Ticks.of(extra, ...(extra.range && !log ? extra.range : Ticks.reach(traces, letter, log)), length)),
      ...extra, title: { font: { size: 12 }, standoff: 8, ...extra.title },
    };
  }

  // Rows with names: beside them where there is room, else above them, so that the figure keeps its width.
  const ROW = 26, TALL_ROW = 46;
  function rowsLayout(figure) {
    const count = figure.rows.length, above = narrow(), noted = figure.rows.some(([, note]) => note);
    const longestNote = Math.max(...figure.rows.map(([, note]) => note.length));
    const size = figure.sides ? 13 : 11;
    const write = (text, place) => ({ text, showarrow: false, xref: "paper", font: { size }, ...place });
    const raised = { yanchor: "bottom", yshift: figure.sides ? 26 : 11 }; // above the dots of the seeds
    const annotations = figure.rows.flatMap(([name, note], y) => [
      ...(above ? [write(name, { x: 0, y, xanchor: "left", ...raised })] : []),
      ...(note ? [write(note, { x: 1, y, xanchor: above ? "right" : "left", ...(above ? raised : { xshift: 8 }) })] : []),
    ]);
    if (figure.sides) {
      annotations.push(write(`← ${figure.sides[0]}`, { x: 0, y: 1, yref: "paper", xanchor: "left", ...side(figure.sides[0]) }));
      annotations.push(write(`${figure.sides[1]} →`, { x: 1, y: 1, yref: "paper", xanchor: "right", ...side(figure.sides[1]) }));
    }
    return {
      annotations, ...(figure.sides && { shapes: sidesOf(figure) }), ...(above && { height: figure.height + (TALL_ROW - ROW) * count }),
      margin: { l: above ? 12 : 54, r: noted && !above ? 24 + 0.58 * size * longestNote : 12, t: figure.sides ? 26 : above ? 0 : 10, b: 44 },
      yaxis: {
        tickfont: { size }, tickvals: figure.rows.map((_, y) => y), ticktext: figure.rows.map(([name]) => name), zeroline: false,
        range: [count - 0.5, above ? -0.7 : -0.5], showticklabels: !above,
      },
    };
  }

  // Which side of zero is better: a word at each end, a line at zero, and the better side shaded.
  const side = (word) => ({ yanchor: "bottom", font: { size: 13, color: css(word === "better" ? "--good" : "--bad") } });
  function sidesOf(figure) {
    const [low, high] = figure.layout.xaxis.range, left = figure.sides[0] === "better";
    return [
      { type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, x0: left ? low : 0, x1: left ? 0 : high,
        fillcolor: faint(css("--good"), 0.08), line: { width: 0 } },
      { type: "line", layer: "below", yref: "paper", y0: 0, y1: 1, x0: 0, x1: 0, line: { color: css("--soft"), width: 1.5 } },
    ];
  }

  // Low figures fill the end of a page; a long legend needs its room.
  function paperHeight(figure, traces) {
    if (figure.kind === "curves") return 130;
    if (figure.rows) return Math.min(figure.height, 84 + (figure.sides ? 32 : 22) * figure.rows.length);
    return traces.filter((trace) => trace.showlegend !== false).length > 6 ? figure.height : Math.min(figure.height, 190);
  }

  // The width of a figure on paper, where three may stand in a row; a page is 688 wide.
  function paperWidth(canvas) {
    if (canvas.closest(".wide")) return 670;
    return getComputedStyle(canvas.closest(".figures")).getPropertyValue("--columns").trim() === "3" ? 216 : 330;
  }

  function layoutOf(figure, traces, canvas) {
    const curves = figure.kind === "curves", rows = figure.rows ? rowsLayout(figure) : {}, own = { ...figure.layout, ...rows };
    const log = curves && isLog(figure);
    const range = curves ? clipped(traces, log) : undefined;
    const byEpoch = curves && state.x === "epoch";
    const x = curves ? { title: { text: labels[state.x] }, rangemode: byEpoch ? "normal" : "tozero" } : {};
    if (byEpoch) x.tickformat = "d";
    const y = curves ? { type: log ? "log" : "linear", ...(range && { range }) } : {};
    if (curves && isMinus(figure)) {
      Object.assign(y, { title: { text: `minus ${safe(page.blocks[figure.block].entries[0].label)}` }, zeroline: true, zerolinecolor: css("--soft") });
    }
    const printing = root.classList.contains("printing");
    const height = printing ? paperHeight(figure, traces) : figure.height;
    const margin = { l: narrow() ? 44 : 54, r: 12, t: 10, b: 44 };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--ink") },
      margin, height, autosize: !printing, ...(printing && { width: paperWidth(canvas) }),
      hovermode: "closest", hoverdistance: 40,
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 }, namelength: 40 },
      dragmode: touch ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      legend: { orientation: "h", y: -0.22, x: 0 },
      ...own, xaxis: axis("x", traces, { ...x, ...own.xaxis }), yaxis: axis("y", traces, { ...y, ...own.yaxis }, height - margin.t - margin.b),
    };
  }

  function draw(i) {
    const figure = page.figures[i];
    const traces = figure.kind === "curves" ? curveTraces(figure) : plotTraces(figure);
    const config = {
      responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", scrollZoom: false,
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]],
    };
    const canvas = canvases[i], layout = layoutOf(figure, traces, canvas);
    canvas.style.height = `${layout.height}px`;
    Plotly.react(canvas, traces, layout, config);
    if (!drawn.has(i)) canvas.on("plotly_relayout", () => Ticks.fit(canvas, figure));
    drawn.add(i);
    stale.delete(i);
    root.dataset.drawn = String(drawn.size);
  }

  // What is on the screen or near it is drawn again at once, the rest when it comes near.
  const NEAR = 600;
  function isNear(canvas) {
    const { top, bottom } = canvas.getBoundingClientRect();
    return top < window.innerHeight + NEAR && bottom > -NEAR;
  }
  const redraw = (wanted = () => true) => page.figures.forEach((figure, i) => {
    if (!drawn.has(i) || !wanted(figure)) return;
    if (isNear(canvases[i])) draw(i); else stale.add(i);
  });
  const isCurves = (figure) => figure.kind === "curves";

  // The switches stand above every section of curves and act on all of them.
  const forms = [...document.querySelectorAll("form.controls")];
  function showState() {
    for (const form of forms) {
      for (const radio of form.querySelectorAll("[name=x]")) radio.checked = radio.value === state.x;
      for (const name of ["log", "minus", "band", "seeds"]) form.elements[name].checked = state[name];
    }
  }
  for (const form of forms) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", ({ target }) => {
      state[target.name] = target.type === "radio" ? target.value : target.checked;
      showState();
      redraw(isCurves);
    });
  }
  showState();

  // Legends: one per task and section, acting on the figures that follow it.
  for (const legend of document.querySelectorAll(".legend")) {
    const canvas = legend.parentElement.querySelector(".canvas");
    if (!canvas) continue;
    const block = page.figures[Number(canvas.id.slice(7))].block;
    legend.dataset.block = block;
    const all = page.blocks[block].entries.map((entry) => entry.label);
    const show = (labels) => {
      hidden[block] = new Set(all.filter((label) => !labels.includes(label)));
      for (const chip of document.querySelectorAll(`.legend[data-block="${block}"] .chip`)) {
        chip.setAttribute("aria-pressed", String(!hidden[block].has(chip.dataset.label)));
      }
      redraw((figure) => isCurves(figure) && figure.block === block);
    };
    legend.addEventListener("click", ({ target }) => {
      const chip = target.closest(".chip"), every = target.closest("[data-all]");
      if (every) show(every.dataset.all === "true" ? all : []);
      if (chip) {
        const label = chip.dataset.label;
        show(all.filter((one) => hidden[block].has(one) === (one === label)));
      }
    });
    legend.addEventListener("dblclick", ({ target }) => {
      const chip = target.closest(".chip");
      if (chip) show([chip.dataset.label]);
    });
  }

  // Downloads: a figure as SVG, what it shows as CSV, and the tables of the page.
  function save(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const plainText = (text) => new DOMParser().parseFromString(String(text ?? "").replace(/<br>/g, " "), "text/html").body.textContent;
  // A cell that a spreadsheet would compute is only text there.
  function cell(value) {
    const text = typeof value === "number" ? String(value) : plainText(value).replace(/^(?=[=+@-])/, "'");
    return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }
  const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  function figureRows(i) {
    const traces = canvases[i].data.filter((trace) => trace.fill !== "toself");
    return [["series", "x", "y", "text"], ...traces.flatMap((trace) => [...trace.x].map((x, k) =>
      [trace.name || "", x, trace.y[k], (trace.text && trace.text[k]) || (trace.customdata && trace.customdata[k]) || ""])
      .filter((row) => row[1] !== null))];
  }
  // Every epoch of every run, as the curves have it: four digits.
  function epochRows() {
    const names = [...new Set(page.blocks.flatMap((block) => block.entries.flatMap((entry) => [...entry.values.keys()])))];
    const rows = page.blocks.flatMap((block) => block.entries.flatMap((entry) => entry.seeds.flatMap((seed, k) =>
      block.epochs.map((epoch, i) => [block.task, entry.label, seed, epoch, entry.step[i], entry.seconds[k][i],
        ...names.map((name) => (entry.values.get(name) || [])[k]?.[i] ?? "")]).filter((row) => row.slice(6).some((value) => value !== "")))));
    return [["task", "optimizer", "seed", "epoch", "step", "seconds", ...names], ...rows];
  }
  const fileName = (title) => plainText(title).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "figure";
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-svg], [data-csv], [data-table]");
    if (!button) return;
    const { svg, csv: data, table } = button.dataset;
    if (table !== undefined) save(table, page.tables[table] ?? csv(epochRows()), "text/csv");
    const i = Number(svg ?? data ?? 0), name = page.figures.length ? fileName(page.figures[i].title) : "";
    if (data !== undefined) save(`${name}.csv`, csv(figureRows(i)), "text/csv");
    if (svg !== undefined) {
      const { width, height } = canvases[i].getBoundingClientRect(), { data: traces, layout } = canvases[i];
      const picture = { data: traces, layout: { ...layout, paper_bgcolor: css("--paper") } };
      Plotly.toImage(picture, { format: "svg", width: Math.max(width, 640), height, imageDataOnly: true })
        .then((text) => save(`${name}.svg`, text, "image/svg+xml"));
    }
  });

  // Small pages are drawn at once; in big ones the rest follows when it comes near, or when there is time.
  const drawIfNeeded = (i) => {
    if (!drawn.has(i) || stale.has(i)) draw(i);
    if (drawn.size === page.figures.length) root.dataset.ready = "true";
  };
  if (!page.figures.length) root.dataset.ready = "true";
  const begun = performance.now();
  let next = 0;
  while (next < page.figures.length && performance.now() - begun < 1500) drawIfNeeded(next++);
  const watcher = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) drawIfNeeded(Number(target.id.slice(7)));
  }, { rootMargin: `${NEAR}px` });
  canvases.forEach((canvas) => watcher.observe(canvas));
  const later = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  const more = () => {
    while (next < page.figures.length && drawn.has(next)) next += 1;
    if (next < page.figures.length) { drawIfNeeded(next); later(more); }
  };
  later(more);

  // Paper is white, as wide as it is, and cannot unfold anything.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    root.classList.add("printing");
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    page.figures.forEach((_, i) => draw(i));
    root.dataset.ready = "true";
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("printing");
    folded.forEach((part) => { part.open = false; });
    redraw();
  });
  for (const change of ["(prefers-color-scheme: dark)", "(max-width: 700px)"]) {
    window.matchMedia(change).addEventListener("change", () => redraw());
  }

  // The links fade at the side where there are more of them.
  const links = document.querySelector("nav .inner");
  const showMore = () => {
    links.classList.toggle("more-left", links.scrollLeft > 4);
    links.classList.toggle("more-right", links.scrollLeft + links.clientWidth < links.scrollWidth - 4);
  };
  links.addEventListener("scroll", showMore, { passive: true });
  window.addEventListener("resize", showMore);
  showMore();
})();
