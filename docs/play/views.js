// What the page shows: four plots and a table, drawn from `state` and the latest results.
"use strict";

function row(tensor, ...index) {
  // a part of a result as a plain array: the first axes are indexed
  const { data, dims } = tensor;
  const size = dims.slice(index.length).reduce((a, b) => a * b, 1);
  const at = index.reduce((sum, i, axis) => sum * dims[axis] + i, 0);
  return Array.from(data.subarray(at * size, (at + 1) * size), Number);
}

function extent(values, margin = 0.06) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const more = margin * (high - low || 1);
  return [low - more, high + more];
}

function drawField(plot, state, results, edit) {
  const { x, methods, sigmas, shown, method, prior, truth, colour } = state.view();
  const mean = row(results.field, method, shown);
  const std = row(results.variance, method, shown).map(Math.sqrt);
  const [low, high] = [-1, 1].map((sign) => mean.map((m, i) => m + sign * sigmas * std[i]));
  const here = state.observations.filter((o) => o.k === shown);
  plot.frame({
    x: [0, 1],
    y: extent([...truth, ...mean, -0.3, 1.1, ...here.map((o) => o.u)]),
    xlabel: "place x",
    ylabel: "u",
  });
  plot.band(x, low, high, "band", colour);
  const before = row(results.field, prior, shown);
  if (method !== prior) plot.line(x, before, "prior", methods[prior].colour);
  plot.line(x, truth, "truth");
  plot.line(x, mean, "line", colour);
  plot.onPoint = (at) => {
    const i = Math.round(at * (x.length - 1));
    return [
      `x = ${x[i].toFixed(2)}`,
      `u = ${mean[i].toFixed(3)} ± ${(sigmas * std[i]).toFixed(3)}`,
      `without law ${before[i].toFixed(3)}`,
      `truth ${truth[i].toFixed(3)}`,
    ].map((text) => text.replaceAll("-", "−"));
  };
  plot.onClick = (at, u) => edit.add(shown, edit.nearest(at), u);
  plot.handles(here.map((o) => knobOf(o, state, edit, { x: x[o.i], y: o.u, free: true })));
}

function knobOf(o, state, edit, { x, y, free }) {
  const time = state.facts().times[o.k].toPrecision(2);
  return {
    key: o.id,
    x,
    y,
    kind: `${o.own ? "own" : ""} ${state.picked === o.id ? "chosen" : ""}`,
    label: `Observation u = ${o.u.toFixed(3)} at x = ${state.x[o.i].toFixed(2)}, t = ${time}`,
    drag: (x, y) =>
      free
        ? edit.put(o, o.k, edit.nearest(x), y)
        : edit.move(o, edit.nearestTime(y), edit.nearest(x)),
    step: (right, up, shift) => {
      const far = shift ? 5 : 1;
      if (free) edit.put(o, o.k, o.i + far * right, o.u + 0.02 * far * up);
      else edit.move(o, o.k + up, o.i + far * right);
    },
    remove: () => edit.remove(o),
    pick: () => edit.pick(o),
  };
}

function drawMap(plot, state, results, edit) {
  const { x, shown, method, times } = state.view();
  const half = (times[1] - times[0]) / 2;
  plot.frame({
    x: [0, 1],
    y: [times[0] - half, times.at(-1) + half],
    xlabel: "place x",
    ylabel: "time t",
  });
  const highest = Math.max(...state.case().truth.flat());
  plot.picture(heat(results.field, method, highest));
  plot.level(times[shown], "halo");
  plot.level(times[shown], "now");
  plot.onPoint = (at, t) => {
    const [k, i] = [edit.nearestTime(t), edit.nearest(at)];
    const u = row(results.field, method, k)[i].toFixed(3).replace("-", "−");
    return [`x = ${x[i].toFixed(2)}, t = ${+times[k].toPrecision(3)}`, `u = ${u}`];
  };
  plot.onClick = (at, t) => {
    const [k, i] = [edit.nearestTime(t), edit.nearest(at)];
    edit.add(k, i);
  };
  plot.handles(
    state.observations.map((o) => ({
      ...knobOf(o, state, edit, { x: x[o.i], y: times[o.k] }),
      tab: o.k === shown ? -1 : 0, // that one is reached in the field
    })),
  );
}

// Seven shades from dark to light, blue to yellow, for all eyes; between them in straight lines.
const SHADES = [
  [0, 32, 81],
  [35, 62, 108],
  [87, 92, 109],
  [124, 123, 120],
  [165, 156, 116],
  [211, 193, 100],
  [253, 234, 69],
];

function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SHADES.length - 1);
  const i = Math.min(Math.floor(at), SHADES.length - 2);
  return SHADES[i].map((c, j) => c + (at - i) * (SHADES[i + 1][j] - c));
}

function heat(field, method, highest) {
  const [, height, width] = field.dims;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let k = 0; k < height; k++) {
    row(field, method, height - 1 - k).forEach((u, i) => {
      picture.data.set([...shade(u / highest), 255], 4 * (k * width + i));
    });
  }
  context.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

function drawTotals(plot, state, results, edit) {
  const { methods, shown, method, prior, times, colour } = state.view();
  const before = Array.from(results.total.data);
  const reach = Array.from(results.std_full.data, (s) => state.all.limits.wrong * s);
  const after = row(results.CE, method).map((miss, k) => miss + state.b[k]);
  const [low, high] = [-1, 1].map((sign) => before.map((total, k) => total + sign * reach[k]));
  const step = times[1] - times[0];
  plot.frame({
    x: [times[0] - step / 2, times.at(-1) + step / 2],
    y: extent([...state.totalEnds(), ...state.b, ...after]),
    xlabel: "time t",
    ylabel: "total of u",
  });
  plot.band(times, low, high, "expected");
  plot.upright(times[shown], "now");
  if (method !== prior) plot.line(times, before, "prior", methods[prior].colour);
  plot.line(times, state.case().total, "truth");
  plot.line(times, after, "line", colour);
  plot.onPoint = (t) => {
    const k = edit.nearestTime(t);
    return [
      `t = ${+times[k].toPrecision(3)}`,
      `b = ${state.b[k].toFixed(4)}`,
      `field ${after[k].toFixed(4)}`,
      `without law ${before[k].toFixed(4)}`,
    ];
  };
  plot.onClick = (t) => edit.show(edit.nearestTime(t));
  plot.handles(
    times.map((t, k) => ({
      key: `b${k}`,
      x: t,
      y: state.b[k],
      shape: "diamond",
      now: +state.b[k].toFixed(4),
      ends: plot.y,
      tab: k === shown ? 0 : -1,
      kind: k === shown ? "chosen" : "faint",
      label: `Total b at t = ${+t.toPrecision(3)}`,
      drag: (_, y, shift) => edit.total(k, y, shift),
      step: (right, up, shift) =>
        right ? edit.show(k + right) : edit.total(k, state.b[k] + 0.002 * up, shift),
      pick: () => edit.show(k),
    })),
  );
}

function frontOf(results, method, shown) {
  // positions and weights of all draws at one time, those without a front apart
  const [, draws, samples, count] = results.fronts.dims;
  const size = draws * samples * count;
  const data = results.fronts.data.subarray(method * size, (method + 1) * size);
  const weights = row(results.weights, method);
  const found = [];
  let none = 0;
  for (let d = 0; d < draws; d++) {
    for (let s = 0; s < samples; s++) {
      const at = data[(d * samples + s) * count + shown];
      const weight = weights[s * count + shown] / draws;
      if (Number.isNaN(at)) none += weight;
      else found.push([at, weight]);
    }
  }
  const all = 1 - none;
  const mean = found.reduce((sum, [at, w]) => sum + at * w, 0) / all;
  const square = found.reduce((sum, [at, w]) => sum + (at - mean) ** 2 * w, 0) / all;
  return { found, none, mean, std: Math.sqrt(square) };
}

function drawFront(plot, state, results) {
  const { shown, method, colour } = state.view();
  const bins = 100;
  const edges = Array.from({ length: bins + 1 }, (_, i) => i / bins);
  const heights = new Array(bins).fill(0);
  const { found, none, mean, std } = frontOf(results, method, shown);
  for (const [at, weight] of found) heights[Math.min(Math.floor(at * bins), bins - 1)] += weight;
  plot.frame({
    x: [0, 1],
    y: [0, Math.max(...heights, 0.05) * 1.15],
    xlabel: "x of the front",
    ylabel: "probability",
  });
  plot.bars(edges, heights, colour);
  const true_ = state.case().front[shown];
  if (true_ !== null) plot.upright(true_, "truth");
  plot.onPoint = (at) => {
    const i = Math.min(Math.floor(at * bins), bins - 1);
    const lines = [
      `x from ${edges[i].toFixed(2)} to ${edges[i + 1].toFixed(2)}: ${(100 * heights[i]).toFixed(1)} %`,
    ];
    if (none < 1) lines.push(`mean ${mean.toFixed(3)} ± ${std.toFixed(3)}`);
    if (true_ !== null) lines.push(`true front ${true_.toFixed(3)}`);
    if (none > 5e-4) lines.push(`no front: ${(100 * none).toFixed(1)} %`);
    return lines;
  };
}

function fillTable(body, state, results) {
  state.methods.forEach((_, m) => {
    const cells = body.rows[m].cells;
    const front = frontOf(results, m, state.shown);
    cells[1].textContent = short(row(results.CE, m)[state.shown]);
    cells[2].textContent = score(row(results.LL, m)[state.shown]);
    cells[3].textContent =
      front.none < 1 ? `${front.mean.toFixed(3)} ± ${front.std.toFixed(3)}` : "none";
    body.rows[m].classList.toggle("chosen", m === state.method);
  });
}
