// Where the ticks of an axis stand, at first and after a zoom.
"use strict";
const Ticks = (() => {
  // Log axes: powers of ten when the axis is long, 1, 2 and 5 when it is short, and even
  // steps when it is shorter than one power of ten, which may hold none of these. Counts: whole numbers only.
  // On an axis of less than 120 pixels, as on paper, the numbers would lie on each other; it has fewer.
  function of(axis, low, high, length) {
    if (axis.type === "log") {
      const [steps, some, many] = length < 120 ? [3, 4, 60] : [5, 10, 300];
      const even = { tick0: 0, dtick: `L${niceStep((high - low) / steps)}` };
      return high > many * low ? { dtick: 1 } : high > some * low ? { dtick: "D2" } : high > low ? even : {};
    }
    return axis.tickformat === "d" ? { dtick: high - low <= 10 ? 1 : null } : {};
  }
  function niceStep(rough) {
    const power = 10 ** Math.floor(Math.log10(rough));
    return Number(((rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10) * power).toPrecision(1));
  }
  function reach(traces, letter, log) {
    const values = sample(traces.flatMap((trace) => [...(trace[letter] || [])])
      .filter((value) => value !== null && Number.isFinite(value) && !(log && value <= 0)));
    return values.length ? [Math.min(...values), Math.max(...values)] : [1, 1];
  }

  function sample(values) {
    const every = Math.ceil(values.length / 20000) || 1;
    return every === 1 ? values : values.filter((_, i) => i % every === 0);
  }

  // After a zoom the same rule holds for what is left on the axis.
  function fit(canvas, figure) {
    const change = {};
    for (const name of ["xaxis", "yaxis"]) {
      const shown = canvas._fullLayout[name], own = (figure.layout || {})[name] || {};
      if (own.tickvals || own.dtick || (name === "yaxis" && figure.rows)) continue;
      const { dtick, tick0 } = of(shown, ...shown.range.map((end) => shown.type === "log" ? 10 ** end : end), shown._length);
      if (dtick === undefined || dtick === (canvas.layout[name].dtick ?? null)) continue;
      Object.assign(change, { [`${name}.dtick`]: dtick, [`${name}.tickmode`]: dtick === null ? "auto" : "linear" });
      if (tick0 !== undefined) change[`${name}.tick0`] = tick0;
    }
    if (Object.keys(change).length) Plotly.relayout(canvas, change);
  }

  return { of, reach, sample, fit };
})();
