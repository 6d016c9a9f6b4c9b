// The time axis: shares of PEs by state, the cycle at hand, zoom, and one PE's tasks below each other.
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { context } from "./dom.js";
import { TASK } from "./model.js";

const SAMPLES = 240;

export class Axis {
  constructor(canvas, run, colors, go) {
    Object.assign(this, { canvas, run, colors, scale: scaleLinear([run.first, run.end], [0, 1]), zoomed: zoomIdentity });
    this.zoom = zoom().scaleExtent([1, Math.max(2, run.end - run.first)]).on("zoom", (event) => {
      this.zoomed = event.transform;
      this.#sample();
    });
    select(canvas).call(this.zoom);
    canvas.addEventListener("click", (event) => go(Math.floor(this.x().invert(event.offsetX))));
    new ResizeObserver(() => {
      const all = [[0, 0], [canvas.clientWidth, canvas.clientHeight]];
      this.zoom.extent(all).translateExtent(all);
      this.#sample();
    }).observe(canvas);
  }
  x() {
    return this.zoomed.rescaleX(this.scale.copy().range([0, this.canvas.clientWidth]));
  }
  #sample() {
    const [from, to] = this.x().domain(), step = Math.max(1, (to - from) / SAMPLES);
    this.samples = [];
    for (let at = from; at < to; at += step) {
      const cycle = Math.min(this.run.end - 1, Math.max(this.run.first, Math.floor(at)));
      this.samples.push([at, at + step, this.run.shares(cycle)]);
    }
    this.paint(this.cycle, this.place);
  }
  paint(cycle, place) {
    Object.assign(this, { cycle, place });
    const [draw, width, height] = context(this.canvas), x = this.x(), lanes = height * 0.45;
    for (const [from, to, shares] of this.samples ?? []) {
      const total = shares.reduce((a, b) => a + b, 0) || 1;
      let y = 0;
      for (const state of [1, 2, 3, 4, 5, 0]) {
        const part = (shares[state] / total) * lanes;
        draw.fillStyle = this.colors[state];
        draw.fillRect(x(from), y, x(to) - x(from) + 0.5, part);
        y += part;
      }
    }
    this.#tasks(draw, x, lanes + 4, height - lanes - 20);
    draw.fillStyle = draw.strokeStyle = "#24313f";
    draw.font = "11px sans-serif";
    for (const tick of x.ticks(8).filter(Number.isInteger)) draw.fillText(tick.toLocaleString("en"), x(tick) + 2, height - 4);
    draw.strokeRect(x(cycle), 0, Math.max(1, x(cycle + 1) - x(cycle)), height - 16);
  }
  #tasks(draw, x, top, room) {
    if (this.place === undefined || this.place < 0) return;
    const rows = this.run.tasks(this.place), [from, to] = x.domain();
    const threads = [...new Set(rows.map((row) => row.thread))].sort((a, b) => b - a);
    const high = Math.min(16, room / Math.max(1, threads.length));
    draw.font = `${Math.min(11, high)}px sans-serif`;
    for (const row of rows) {
      if (row.end < from || row.begin > to) continue;
      const y = top + threads.indexOf(row.thread) * high, left = Math.max(0, x(row.begin));
      const right = Math.min(this.canvas.clientWidth, x(Math.max(row.end, row.begin + 1)));
      draw.fillStyle = row.thread === TASK ? "#9fb8d9" : "#e3c9a0";
      draw.fillRect(left, y, Math.max(1, right - left - 0.5), high - 1);
      const text = row.task ? row.name : `${row.thread < 8 ? `microthread ${row.thread}` : "operation"}, ${row.name}`;
      draw.fillStyle = "#24313f";
      if (right - left > 5.5 * text.length) draw.fillText(text, left + 2, y + high - 4);
    }
  }
}
