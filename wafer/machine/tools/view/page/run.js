// The page of a run: the plane of PEs, the time axis, the panel, and what is chosen.
import { Axis } from "./axis.js";
import { byId, element } from "./dom.js";
import { MOVES, Run, STATES } from "./model.js";
import { Panels } from "./panels.js";
import { Plane } from "./plane.js";

const COLORS = ["#e6e9ed", "#8fcaa4", "#f3c47e", "#e08fae", "#b9b3e4", "#d22c2c"];
const hue = (color) => `hsl(${(color * 137) % 360} 85% 38%)`;

export function showRun(header) {
  const run = new Run(header), view = { run, cycle: run.end - 1, place: -1, slot: -1, line: -1 };
  const panels = new Panels(run, (changes) => choose(changes));
  const plane = new Plane(byId("plane"), run.width, run.height, draw, (x, y) => choose({ place: y * run.width + x }));
  const axis = new Axis(byId("axis"), run, COLORS, (cycle) => choose({ cycle }));
  let playing = false;

  function choose(changes) {
    Object.assign(view, changes);
    view.cycle = Math.max(run.first, Math.min(run.end - 1, view.cycle));
    if (changes.cycle === undefined && changes.place >= 0) plane.show(...run.at(changes.place).map((v, k) => v - [run.x0, run.y0][k]));
    update(changes);
  }
  function update(changes = {}) {
    byId("cycle").value = view.cycle;
    byId("colors").value = view.slot;
    byId("pe-box").replaceChildren(...panels.pe(view));
    byId("color-box").replaceChildren(...panels.color(view));
    const kept = document.querySelector(".lines")?.scrollTop ?? 0;
    byId("source-box").replaceChildren(...panels.source(view));
    const chosen = document.querySelector("tr.chosen")?.offsetTop - 120;
    document.querySelector(".lines")?.scrollTo(0, changes.line >= 0 ? chosen : kept);
    if (changes.line >= 0 && changes.place === undefined) byId("source-box").scrollIntoView({ block: "nearest" });
    const counts = run.shares(view.cycle);
    byId("legend").replaceChildren(...STATES.map((name, k) =>
      element("span", {}, element("i", { style: `background:${COLORS[k]}` }), `${name} `, element("b", {}, `${counts[k]}`))));
    history.replaceState(null, "", `#cycle=${view.cycle}${view.place < 0 ? "" : `&pe=${run.at(view.place)}`}${view.slot < 0 ? "" : `&color=${run.colors[view.slot]}`}`);
    plane.paint();
    axis.paint(view.cycle, view.place);
  }

  function draw(context, scale) {
    const { cycle, slot } = view, single = cycle < run.words_until, links = single ? undefined : run.windowLinks(cycle);
    const at = view.line < 0 ? [] : panels.atLines(cycle).get(view.line) ?? [], marked = new Set(at);
    for (let place = 0; place < run.places; ++place) {
      const x = place % run.width, y = Math.floor(place / run.width), state = run.doing(place, cycle);
      context.fillStyle = state < 0 ? "#fff" : COLORS[state];
      context.fillRect(x + 0.04, y + 0.04, 0.92, 0.92);
      if (marked.has(place)) outline(context, x, y, "#1e63d0", scale);
    }
    if (view.place >= 0) outline(context, view.place % run.width, Math.floor(view.place / run.width), "#111", scale);
    for (let place = 0; place < run.places; ++place) {
      const x = place % run.width, y = Math.floor(place / run.width);
      if (slot >= 0) route(context, x, y, place, scale);
      if (scale >= 5) words(context, x, y, place, links);
      if (scale >= 34) label(context, x, y, place);
    }
  }
  function outline(context, x, y, color, scale) {
    Object.assign(context, { strokeStyle: color, lineWidth: Math.min(0.2, 3 / scale) });
    context.strokeRect(x + 0.04, y + 0.04, 0.92, 0.92);
  }
  function label(context, x, y, place) {
    context.fillStyle = "#24313f";
    context.font = "0.16px sans-serif";
    context.fillText(run.at(place).join(","), x + 0.1, y + 0.22);
    if (view.slot < 0) return;
    const held = run.inRouter(place, view.slot, view.cycle), queued = run.inQueue(place, view.slot, view.cycle);
    if (held > 0 || queued > 0) context.fillText(`${held} | ${queued}`, x + 0.1, y + 0.9);
  }
  // Words that leave a router in this cycle: a triangle on each link; or how busy links were in a window.
  function words(context, x, y, place, links) {
    for (let lane = 0; lane < run.colors.length; ++lane) {
      const ports = links ? 0 : run.leaving(place, lane, view.cycle);
      for (let side = 0; side < 4; ++side) if ((ports >> side) & 1) arrow(context, x, y, side, hue(run.colors[lane]), 0.16);
      if (ports & 16) dot(context, x, y, hue(run.colors[lane]));
    }
    if (!links) return;
    for (let side = 0; side < 4; ++side) {
      const busy = links[place * 5 + side] / run.every;
      if (busy > 0) arrow(context, x, y, side, `rgb(30 60 140 / ${Math.min(1, 0.15 + busy)})`, 0.14);
    }
  }
  function arrow(context, x, y, side, color, size) {
    const [dx, dy] = MOVES[side], [ex, ey] = [x + 0.5 + 0.62 * dx, y + 0.5 + 0.62 * dy];
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(ex, ey);
    context.lineTo(ex - size * dx * 1.5 - size * dy, ey - size * dy * 1.5 - size * dx);
    context.lineTo(ex - size * dx * 1.5 + size * dy, ey - size * dy * 1.5 + size * dx);
    context.fill();
  }
  function dot(context, x, y, color) {
    context.fillStyle = color;
    context.beginPath();
    context.arc(x + 0.5, y + 0.5, 0.12, 0, 7);
    context.fill();
  }
  // The route of the chosen color, red where the next router does not take it; words that wait are dots.
  function route(context, x, y, place, scale) {
    const ports = run.route(place, view.slot, view.cycle), refused = run.refused(place, view.slot, view.cycle);
    if (!ports) return;
    const line = (side, out) => {
      const [dx, dy] = side < 4 ? MOVES[side] : [0.5, 0.5];
      context.strokeStyle = out && refused.includes(side) ? "#d22c2c" : hue(run.colors[view.slot]);
      context.lineWidth = Math.max(out ? 0.1 : 0.04, 1 / scale);
      context.beginPath();
      context.moveTo(x + 0.5, y + 0.5);
      context.lineTo(x + 0.5 + 0.5 * dx, y + 0.5 + 0.5 * dy);
      context.stroke();
    };
    for (let side = 0; side < 5; ++side) {
      if ((ports.rx >> side) & 1) line(side, false);
      if ((ports.tx >> side) & 1) line(side, true);
    }
    if (run.inRouter(place, view.slot, view.cycle) > 0) dot(context, x, y, "#111");
  }

  function controls() {
    const step = (by) => element("button", { id: by < 0 ? `back${-by}` : `step${by}`, click: () => choose({ cycle: view.cycle + by }) }, by < 0 ? `${by}` : `+${by}`);
    const speed = element("select", { id: "speed" }, [1, 10, 100, 1000].map((n) => element("option", { value: n }, `${n} cycles/s`)));
    const play = element("button", { id: "play", click: () => { playing = !playing; play.textContent = playing ? "Stop" : "Play"; last = undefined; if (playing) requestAnimationFrame(frame); } }, "Play");
    let last, rest = 0;
    const frame = (now) => {
      rest += last === undefined ? 0 : ((now - last) / 1000) * speed.value;
      last = now;
      const by = Math.floor(rest);
      rest -= by;
      if (by) choose({ cycle: view.cycle + by });
      if (view.cycle >= run.end - 1 && playing) play.click();
      else if (playing) requestAnimationFrame(frame);
    };
    const cycle = element("input", { id: "cycle", type: "number", min: run.first, max: run.end - 1, change: (event) => choose({ cycle: Number(event.target.value) }) });
    const colors = element("select", { id: "colors", change: (event) => choose({ slot: Number(event.target.value) }) },
      element("option", { value: -1 }, "no color"), run.colors.map((color, slot) => element("option", { value: slot }, `color ${color}`)));
    byId("controls").append(play, speed, step(-1000), step(-1), "cycle ", cycle, step(1), step(1000), colors);
    addEventListener("keydown", (event) => {
      if (event.target.matches("input, select")) return;
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100 }[event.key];
      if (by) (event.preventDefault(), choose({ cycle: view.cycle + by }));
    });
  }
  function report() {
    const rows = run.fault ? [run.fault] : run.report;
    if (rows.length && !run.fault) byId("report").append(element("p", {}, run.ending || "At the end wait:"));
    byId("report").classList.toggle("wrong", Boolean(run.ending));
    byId("report").append(...(run.causes ?? []).map((text) => element("div", { class: "cause" }, text)), ...rows.slice(0, 200).map((row) => {
      const place = run.place(row.x, row.y), color = run.colors.indexOf(row.color);
      const jump = (event) => (event.preventDefault(), choose({ cycle: run.end - 1 }), choose({ place, slot: color, line: row.line }));
      return place < 0 ? element("div", {}, row.text) : element("a", { href: "#", click: jump, "data-pe": [row.x, row.y] }, row.text);
    }));
  }
  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1)), pe = given.get("pe")?.split(",").map(Number);
    choose({ cycle: /^\d+$/.test(given.get("cycle")) ? Number(given.get("cycle")) : run.ending ? run.end - 1 : run.first,
             slot: given.has("color") ? run.colors.indexOf(Number(given.get("color"))) : -1 });
    if (pe?.every(Number.isInteger)) choose({ place: run.place(...pe) });
  }
  byId("facts").textContent = [`${run.size[0]} x ${run.size[1]} PEs, ${run.arch.toUpperCase()}, cycles ${run.first} to ${run.end - 1}`, ...run.notes].join("; ");
  controls();
  report();
  fromAddress();
  Object.assign(window, { run, view, plane }); // for scripts and tests
}
