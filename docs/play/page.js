// The state of the page, what changes it, and when networks and Step 2 run again.
"use strict";

const $ = (id) => document.getElementById(id);
const SMALLEST = 1e-4; // sigma_G next to 0 on its slider, which is logarithmic
const PER_DECADE = 20; // steps of that slider
const FIRST = { equation: "stefan", method: "ProbConserv-ANP", prior: "ANP" };

const state = {
  equation: FIRST.equation,
  number: 0, // of the case
  observations: [], // {id, k: time, i: point, u, own: value set by hand}
  picked: null,
  b: [],
  sigma: 0,
  facts() {
    return this.all.equations[this.equation];
  },
  case() {
    return this.facts().cases[this.number];
  },
  totalEnds() {
    return extent(this.case().total, 0.25);
  },
  view() {
    const { x, methods, sigmas, shown, method, prior } = this;
    const truth = this.case().truth[shown];
    const { times } = this.facts();
    return {
      x,
      methods,
      sigmas,
      shown,
      method,
      prior,
      truth,
      times,
      colour: methods[method].colour,
    };
  },
};
const plots = {};
const stale = { network: false, law: false };
let busy = false;
let parts = null; // what the network gave last
let results = null; // what Step 2 gave last
let ids = 0;

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

const edit = {
  nearest: (x) => clamp(Math.round(x * (state.x.length - 1)), 0, state.x.length - 1),
  nearestTime(t) {
    const { times } = state.facts();
    const step = times[1] - times[0];
    return clamp(Math.round((t - times[0]) / step), 0, times.length - 1);
  },
  add(k, i, u) {
    const there = state.observations.find((o) => o.k === k && o.i === i);
    if (there) return edit.pick(there); // the second of two clicks
    const known = u === undefined ? state.case().truth[k][i] : u;
    const o = { id: `o${++ids}`, k, i, u: known, own: u !== undefined };
    state.observations.push(o);
    edit.pick(o);
    update("network");
  },
  put(o, k, i, u) {
    Object.assign(o, { k, i: clamp(i, 0, state.x.length - 1), u, own: true });
    update("network");
  },
  move(o, k, i) {
    o.k = clamp(k, 0, state.facts().times.length - 1);
    o.i = clamp(i, 0, state.x.length - 1);
    if (!o.own) o.u = state.case().truth[o.k][o.i];
    update("network");
  },
  remove(o) {
    if (state.observations.length <= 2) return say("The network needs two observations.");
    state.observations = state.observations.filter((other) => other !== o);
    state.picked = null;
    update("network");
  },
  pick(o) {
    state.picked = o.id;
    $("remove").disabled = false;
    draw();
  },
  total(k, value, all = false) {
    const factor = value / state.b[k];
    state.b = state.b.map((b, i) => (i === k ? value : all && state.b[k] ? factor * b : b));
    $("true-total").checked = false;
    if (k !== state.shown) edit.show(k);
    else sliders();
    update("law");
  },
  show(k) {
    state.shown = clamp(k, 0, state.facts().times.length - 1);
    sliders();
    draw();
  },
};

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
  if (wrong) $("status").setAttribute("role", "alert");
}

function sliders() {
  const { times } = state.facts();
  $("time").max = times.length - 1;
  $("time").value = state.shown;
  const time = `t = ${+times[state.shown].toPrecision(3)}`;
  $("time-value").textContent = time;
  document.querySelectorAll(".shown-time").forEach((e) => (e.textContent = time));
  const [low, high] = state.totalEnds();
  Object.assign($("total"), {
    min: low.toFixed(3),
    max: high.toFixed(3),
    value: state.b[state.shown],
  });
  $("total-value").textContent = state.b[state.shown].toFixed(4);
  $("sigma-value").textContent = state.sigma ? short(state.sigma) : "0: the law is exact";
  $("yellow").textContent = Math.max(...state.case().truth.flat()).toFixed(2);
  $("level").textContent = `u = ${+state.case().level.toPrecision(3)}`;
}

function restart() {
  const { truth, observations, total } = state.case();
  state.observations = observations.map(([k, i]) => ({
    id: `o${++ids}`,
    k,
    i,
    u: truth[k][i],
    own: false,
  }));
  state.picked = null;
  state.shown = state.facts().shown;
  state.b = [...total];
  state.sigma = 0;
  $("sigma").value = 0;
  $("true-total").checked = true;
  $("remove").disabled = true;
  sliders();
  update("network");
}

function draw() {
  if (!results) return;
  drawField(plots.field, state, results, edit);
  drawTotals(plots.totals, state, results, edit);
  drawFront(plots.front, state, results);
  drawMap(plots.map, state, results, edit);
  fillTable($("methods").tBodies[0], state, results);
  const numbers = Object.fromEntries(
    Object.entries(results).map(([name, { data }]) => [name, data]),
  );
  const given = Object.fromEntries(
    ["wrong", "z_own", "z_full", "causes", "move", "share"].map((name) => [name, [...numbers[name]]]),
  );
  const said = verdict(given, state.facts().times, state.all);
  if ($("verdict").textContent !== said.text) $("verdict").textContent = said.text;
  $("verdict").classList.toggle("wrong", said.wrong);
}

const array = (data, ...dims) => ({ data, dims });

function networkInputs() {
  const { times } = state.facts();
  const seen = state.observations.flatMap((o) => [times[o.k], state.x[o.i], o.u]);
  const places = times.flatMap((t) => state.x.flatMap((x) => [t, x]));
  return {
    observations: array(new Float32Array(seen), seen.length / 3, 3),
    places: array(new Float32Array(places), places.length / 2, 2),
  };
}

function step2Inputs() {
  const { truth, level } = state.case();
  const T = state.b.length;
  const { draws } = state.all.sizes;
  return {
    means: parts.means,
    variances: parts.variances,
    b: array(new Float64Array(state.b), T),
    sigma: array(new Float64Array(T).fill(state.sigma), T),
    truth: array(new Float64Array(truth.flat()), T, state.x.length),
    level: array(new Float64Array([level])),
    normals: array(state.normals, draws, state.normals.length / draws),
  };
}

// Runs what is stale, and once more if something changed meanwhile. What is newest counts.
async function update(what) {
  stale[what] = true;
  draw();
  if (busy) return;
  busy = true;
  try {
    while (stale.network || stale.law) {
      const started = performance.now();
      const { equation } = state;
      if (stale.network) {
        stale.network = false;
        say(results ? "Computing …" : `Loading the network for ${state.facts().title} …`);
        parts = (await probconserv.run(equation, networkInputs())).results;
      }
      if (equation !== state.equation) continue;
      stale.law = false;
      results = (await probconserv.run("step2", step2Inputs())).results;
      if (equation !== state.equation) continue;
      draw();
      page.ms = performance.now() - started;
      page.updates += 1;
      say(`Updated in ${Math.round(page.ms)} ms.`);
    }
  } catch (error) {
    say(`Something went wrong: ${error.message}. Reload the page to try again.`, true);
  } finally {
    busy = false;
  }
}

function normals(count) {
  // standard normal numbers from a fixed seed, so that nothing moves that need not
  const numbers = new Float32Array(count);
  let seed = 20;
  const uniform = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < count; i += 2) {
    const size = Math.sqrt(-2 * Math.log(1 - uniform()));
    const turn = 2 * Math.PI * uniform();
    numbers[i] = size * Math.cos(turn);
    if (i + 1 < count) numbers[i + 1] = size * Math.sin(turn);
  }
  return numbers;
}

function choices(parent, name, entries, chosen, change) {
  parent.replaceChildren(
    ...entries.map(({ value, text }) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "radio", name, value });
      input.checked = value === chosen;
      input.addEventListener("change", () => change(value));
      label.append(input, ` ${text}`);
      return label;
    }),
  );
}

function chooseEquation(equation, number = state.all.equations[equation].number) {
  const before = state.equation;
  Object.assign(state, { equation, number });
  if (equation !== before) results = null;
  const { cases, parameter } = state.facts();
  const greek = { beta: "β", u_star: "u*" }[parameter] ?? parameter;
  const entries = cases.map(({ value, trained }, i) => ({
    value: String(i),
    text: `${greek} = ${value}${trained ? "" : ", beyond its training"}`,
  }));
  choices($("cases"), "case", entries, String(number), (i) => chooseEquation(equation, Number(i)));
  restart();
}

function methodTable() {
  const body = $("methods").tBodies[0];
  state.methods.forEach(({ name, title, colour }, m) => {
    const line = body.insertRow();
    const label = document.createElement("label");
    const input = Object.assign(document.createElement("input"), {
      type: "radio",
      name: "method",
      value: name,
    });
    input.checked = m === state.method;
    input.addEventListener("change", () => {
      state.method = m;
      draw();
    });
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = lifted(colour);
    label.append(input, swatch, title);
    line.insertCell().append(label);
    for (const metric of ["CE", "LL", "front"]) line.insertCell().dataset.metric = metric;
  });
}

function listen() {
  $("time").addEventListener("input", () => edit.show(Number($("time").value)));
  $("total").addEventListener("input", () => edit.total(state.shown, Number($("total").value)));
  $("sigma").addEventListener("input", () => {
    const step = Number($("sigma").value);
    state.sigma = step ? SMALLEST * 10 ** ((step - 1) / PER_DECADE) : 0;
    sliders();
    update("law");
  });
  $("true-total").addEventListener("change", () => {
    if ($("true-total").checked) state.b = [...state.case().total];
    sliders();
    update("law");
  });
  $("restart").addEventListener("click", restart);
  $("remove").addEventListener("click", () => {
    const o = state.observations.find(({ id }) => id === state.picked);
    if (o) edit.remove(o);
  });
  new ResizeObserver(draw).observe($("plots"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

async function begin() {
  if (!window.WebAssembly || !window.DecompressionStream) {
    throw new Error("it needs a browser of 2023 or later");
  }
  ["worker", "ort", "runtime", "step2", FIRST.equation].forEach(probconserv.part); // all at once
  state.all = JSON.parse(await probconserv.text("facts"));
  const { sizes, methods, x, sigmas } = state.all;
  const named = (name) => methods.findIndex((method) => method.name === name);
  Object.assign(state, {
    x,
    methods,
    sigmas,
    method: named(FIRST.method),
    prior: named(FIRST.prior),
  });
  state.normals = normals(sizes.draws * sizes.samples * sizes.times * (sizes.points + 1));
  for (const name of ["field", "totals", "front", "map"]) {
    plots[name] = new Plot($(name));
    plots[name].onRelease = draw;
  }
  methodTable();
  const entries = Object.entries(state.all.equations).map(([value, { title }]) => ({
    value,
    text: title,
  }));
  choices($("equations"), "equation", entries, state.equation, (name) => chooseEquation(name));
  listen();
  await probconserv.start();
  probconserv.open("step2");
  chooseEquation(state.equation);
}

const page = { state, updates: 0, ms: null, results: () => results };
begin().catch((error) => say(`The page could not start: ${error.message}.`, true));
