// A small plot in SVG: axes, lines, bands, bars, handles to drag, and notes that follow the pointer.
"use strict";

const lifted = (colour) => `color-mix(in srgb, ${colour}, white var(--lift))`; // for dark paper

class Plot {
  static margins = { left: 54, right: 12, top: 10, bottom: 36 };
  static count = 0;

  constructor(svg) {
    this.svg = svg;
    this.clip = `clip-${++Plot.count}`;
    const names = ["back", "data", "knobs", "notes"];
    this.layers = Object.fromEntries(names.map((name) => [name, this.add(svg, "g")]));
    this.layers.data.setAttribute("clip-path", `url(#${this.clip})`);
    this.layers.notes.setAttribute("pointer-events", "none");
    this.known = new Map(); // handles by key
    this.onPoint = null; // (x, y) -> lines of text, while the pointer is over the plot
    this.onClick = null; // (x, y), on empty space
    this.onRelease = null; // after a drag
    this.held = null; // axes do not move while something is dragged
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => this.layers.notes.replaceChildren());
    svg.addEventListener("click", (event) => {
      const [x, y] = this.place(event);
      if (this.onClick && !event.target.closest(".handle") && this.inside(x, y)) this.onClick(x, y);
    });
  }

  add(parent, name, attributes = {}, text = null) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== null) element.textContent = text;
    parent.append(element);
    return element;
  }

  frame({ x, y, xlabel, ylabel }) {
    const { width, height } = this.svg.getBoundingClientRect();
    if (this.held) ({ x, y } = this.held);
    const { left, right, top, bottom } = Plot.margins;
    Object.assign(this, { x, y, width, height });
    this.across = [left, Math.max(width - right, left + 10)];
    this.down = [Math.max(height - bottom, top + 10), top];
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.layers.back.replaceChildren();
    this.layers.data.replaceChildren();
    const [x0, x1] = this.across;
    const [y0, y1] = this.down;
    const clip = this.add(this.layers.back, "clipPath", { id: this.clip });
    this.add(clip, "rect", { x: x0, y: y1, width: x1 - x0, height: y0 - y1 });
    for (const value of ticks(x, width < 420 ? 5 : 8)) this.tick(value, true);
    for (const value of ticks(y, 5)) this.tick(value, false);
    this.add(this.layers.back, "path", { class: "axis", d: `M${x0},${y1}V${y0}H${x1}` });
    const middle = (x0 + x1) / 2;
    const below = { x: middle, y: height - 4, "text-anchor": "middle" };
    this.add(this.layers.back, "text", below, xlabel);
    const turn = `rotate(-90) translate(${-(y0 + y1) / 2},12)`;
    this.add(this.layers.back, "text", { transform: turn, "text-anchor": "middle" }, ylabel);
  }

  tick(value, along) {
    const [x0, x1] = this.across;
    const [y0, y1] = this.down;
    const at = along ? this.px(value) : this.py(value);
    const d = along ? `M${at},${y0}V${y1}` : `M${x0},${at}H${x1}`;
    this.add(this.layers.back, "path", { class: "grid", d });
    const where = along
      ? { x: at, y: y0 + 15, "text-anchor": "middle" }
      : { x: x0 - 5, y: at + 4, "text-anchor": "end" };
    this.add(this.layers.back, "text", where, `${+value.toPrecision(6)}`);
  }

  px(x) {
    return (
      this.across[0] +
      ((x - this.x[0]) / (this.x[1] - this.x[0])) * (this.across[1] - this.across[0])
    );
  }

  py(y) {
    return (
      this.down[0] + ((y - this.y[0]) / (this.y[1] - this.y[0])) * (this.down[1] - this.down[0])
    );
  }

  place(event) {
    // where the pointer is, in units of the axes
    const box = this.svg.getBoundingClientRect();
    const share = (at, [from, to]) => (at - from) / (to - from);
    const x = share(event.clientX - box.left, this.across ?? [0, 1]);
    const y = share(event.clientY - box.top, this.down ?? [0, 1]);
    const on = (s, [low, high]) => low + s * (high - low);
    return [on(x, this.x ?? [0, 1]), on(y, this.y ?? [0, 1])];
  }

  inside(x, y) {
    const within = (v, [low, high]) => v >= Math.min(low, high) && v <= Math.max(low, high);
    return this.x && within(x, this.x) && within(y, this.y);
  }

  path(xs, ys) {
    return xs
      .map((x, i) => `${i ? "L" : "M"}${this.px(x).toFixed(1)},${this.py(ys[i]).toFixed(1)}`)
      .join("");
  }

  line(xs, ys, kind, colour) {
    const style = colour ? `stroke: ${lifted(colour)}` : "";
    this.add(this.layers.data, "path", { class: kind, style, d: this.path(xs, ys) });
  }

  band(xs, low, high, kind, colour) {
    const there = this.path(xs, high);
    const back = this.path([...xs].reverse(), [...low].reverse()).replace("M", "L");
    const style = colour ? `fill: ${lifted(colour)}` : "";
    this.add(this.layers.data, "path", { class: kind, style, d: `${there}${back}Z` });
  }

  bars(edges, heights, colour) {
    heights.forEach((height, i) => {
      if (!height) return;
      const [x, right, y] = [this.px(edges[i]), this.px(edges[i + 1]), this.py(height)];
      const box = { x, y, width: right - x, height: this.down[0] - y };
      this.add(this.layers.data, "rect", {
        ...box,
        style: `fill: ${lifted(colour)}; opacity: 0.6`,
      });
    });
  }

  upright(x, kind) {
    this.add(this.layers.data, "path", {
      class: kind,
      d: `M${this.px(x)},${this.down[0]}V${this.down[1]}`,
    });
  }

  level(y, kind) {
    this.add(this.layers.data, "path", {
      class: kind,
      d: `M${this.across[0]},${this.py(y)}H${this.across[1]}`,
    });
  }

  picture(url) {
    const [x0, x1] = this.across;
    const [y0, y1] = this.down;
    const box = { x: x0, y: y1, width: x1 - x0, height: y0 - y1 };
    this.add(this.layers.data, "image", { ...box, href: url, preserveAspectRatio: "none" });
  }

  point(event) {
    const [x, y] = this.place(event);
    this.layers.notes.replaceChildren();
    const free = this.onPoint && !this.held && this.inside(x, y);
    const lines = free ? this.onPoint(x, y) : null;
    if (!lines) return;
    const at = this.px(x);
    this.add(this.layers.notes, "path", {
      class: "pointer",
      d: `M${at},${this.down[0]}V${this.down[1]}`,
    });
    const right = at > (this.across[0] + this.across[1]) / 2;
    const where = { x: at + (right ? -8 : 8), "text-anchor": right ? "end" : "start" };
    const paper = this.add(this.layers.notes, "rect", { class: "paper" });
    const note = this.add(this.layers.notes, "g");
    lines.forEach((text, i) => {
      this.add(note, "text", { ...where, class: "note", y: this.down[1] + 14 + 16 * i }, text);
    });
    const box = note.getBBox();
    paper.setAttribute("x", box.x - 4);
    paper.setAttribute("y", box.y - 2);
    paper.setAttribute("width", box.width + 8);
    paper.setAttribute("height", box.height + 4);
  }

  // items: {key, x, y, label, kind, shape, tab, now, ends, drag(x, y, shift), step(right, up, shift), remove(), pick()}
  handles(items) {
    const wanted = new Set(items.map((item) => item.key));
    for (const [key, { element }] of this.known) {
      if (!wanted.has(key)) {
        element.remove();
        this.known.delete(key);
      }
    }
    for (const item of items) {
      const entry = this.known.get(item.key) ?? this.knob(item);
      entry.item = item;
      const { element } = entry;
      element.setAttribute("transform", `translate(${this.px(item.x)},${this.py(item.y)})`);
      element.setAttribute("class", `handle ${item.kind ?? ""}`);
      element.setAttribute("aria-label", item.label);
      element.setAttribute("tabindex", item.tab ?? 0);
      if (item.now !== undefined) {
        element.setAttribute("aria-valuenow", item.now);
        element.setAttribute("aria-valuemin", item.ends[0].toFixed(3));
        element.setAttribute("aria-valuemax", item.ends[1].toFixed(3));
      }
    }
  }

  knob(item) {
    const role = item.now === undefined ? "button" : "slider";
    const element = this.add(this.layers.knobs, "g", { role, "data-key": item.key });
    this.add(element, "circle", { class: "reach", r: 13 });
    if (item.shape === "diamond")
      this.add(element, "path", { class: "mark", d: "M0,-7L7,0L0,7L-7,0Z" });
    else this.add(element, "circle", { class: "mark", r: 5 });
    const entry = { element, item };
    this.known.set(item.key, entry);
    element.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      element.setPointerCapture(event.pointerId);
      element.focus({ preventScroll: true });
      this.held = { x: this.x, y: this.y };
      const move = (moved) => {
        const [x, y] = this.place(moved);
        entry.item.drag(x, Math.min(Math.max(y, this.y[0]), this.y[1]), moved.shiftKey);
      };
      const stop = () => {
        element.removeEventListener("pointermove", move);
        this.held = null;
        this.onRelease?.();
      };
      element.addEventListener("pointermove", move);
      element.addEventListener("pointerup", stop, { once: true });
      element.addEventListener("pointercancel", stop, { once: true });
      event.preventDefault();
    });
    element.addEventListener("focus", () => entry.item.pick?.());
    element.addEventListener("dblclick", () => entry.item.remove?.());
    element.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      if (steps[event.key]) entry.item.step(...steps[event.key], event.shiftKey);
      else if (event.key === "Delete" || event.key === "Backspace") {
        entry.item.remove?.();
        if (!element.isConnected) this.known.values().next().value?.element.focus();
      } else return;
      event.preventDefault();
    });
    return entry;
  }
}

function ticks([low, high], most) {
  // round numbers between two ends
  const rough = Math.abs(high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  const [from, to] = [Math.min(low, high), Math.max(low, high)];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * step; i++)
    found.push(i * step);
  return found;
}
