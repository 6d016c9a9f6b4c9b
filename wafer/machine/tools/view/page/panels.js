// What the panel beside the plane says of the chosen PE, color and source line.
import { element, table } from "./dom.js";
import { LEAVES, QUEUES, SIDES, STATES, TAKEN, sides } from "./model.js";

const hex = (word) => (word === undefined ? "not kept" : `0x${word.toString(16).padStart(8, "0")}`);
const section = (title, id, ...children) => element("section", { id }, element("h3", {}, title), children);

export class Panels {
  // view: { run, cycle, place, slot, line }; choose(changes) shows another PE, color or line.
  constructor(run, choose) {
    Object.assign(this, { run, choose });
    this.profile = new Map(run.profile);
    this.cycles = run.profile.reduce((sum, [, count]) => sum + count, 0) || 1;
  }
  #link(text, changes) {
    return element("a", { href: "#", click: (event) => (event.preventDefault(), this.choose(changes)) }, text);
  }
  lineText(line) {
    if (line === undefined || line < 0) return "";
    const [file, number] = this.run.lines[line], name = this.run.files[file][0].split("/").pop();
    return number ? `${name}:${number}` : name;
  }
  lineLink(line) {
    return line === undefined || line < 0 ? "" : this.#link(this.lineText(line), { line });
  }
  peLink(place) {
    return this.#link(`PE (${this.run.at(place).join(", ")})`, { place });
  }
  colorLink(slot) {
    return this.#link(`${this.run.colors[slot]}`, { slot });
  }

  pe({ cycle, place }) {
    if (place < 0) return [element("p", {}, "Click a PE to see what it does.")];
    const state = this.run.doing(place, cycle), line = this.run.line(place, cycle);
    const at = element("p", { id: "state" }, state < 0 ? "no program" : STATES[state], line < 0 ? "" : " at ", this.lineLink(line));
    const source = line < 0 ? "" : element("pre", { id: "at" }, this.#sourceLine(line));
    const now = this.run.tasks(place).filter((t) => t.begin <= cycle && cycle < t.end);
    const running = now.map((t) => ({ cells: [t.task ? "task" : t.thread < 8 ? `microthread ${t.thread}` : "operation",
      t.name, this.lineLink(t.line), `${t.begin} to ${t.end - 1}`] }));
    return [
      section(`PE (${this.run.at(place).join(", ")})`, "pe", at, source, running.length ? table(["runs", "task", "line", "cycles"], running) : ""),
      section("Words held", "queues", this.#queues(place, cycle)),
      section("Router", "router", this.#router(place, cycle)),
      section("Memory at the end of the run", "memory", this.#memory(place)),
    ];
  }
  #queues(place, cycle) {
    if (cycle >= this.run.words_until) return element("p", {}, `Words were kept until cycle ${this.run.words_until}.`);
    const inputs = new Map(this.run.programs[this.run.columns.tile[place]]?.inputs);
    const rows = [];
    this.run.colors.forEach((color, slot) => {
      const [router, ramp] = [this.run.inRouter(place, slot, cycle), this.run.onRamp(place, slot, cycle)];
      const words = this.run.words(place, slot, cycle), queue = inputs.get(color) ?? -1;
      if (router || ramp || words.length || queue >= 0)
        rows.push({ attributes: { "data-color": color },
                    cells: [this.colorLink(slot), router, ramp, queue < 0 ? "" : queue, words.map(hex).join(" "), this.run.count(place, slot, TAKEN, cycle)] });
    });
    const out = [];
    for (let queue = 0; queue < QUEUES; ++queue) {
      const words = this.run.words(place, this.run.colors.length + queue, cycle);
      if (words.length) out.push({ attributes: { "data-output": queue }, cells: [queue, words.map(hex).join(" ")] });
    }
    return [table(["color", "in router", "on the ramp to it", "input queue", "its words, next first", "taken so far"], rows),
            out.length ? table(["output queue", "words"], out) : ""];
  }
  #router(place, cycle) {
    const rows = [];
    this.run.colors.forEach((color, slot) => {
      const route = this.run.route(place, slot, cycle);
      if (!route || !(route.rx | route.tx)) return;
      const wrong = this.run.refused(place, slot, cycle).map((side) => this.#refusal(place, slot, cycle, side));
      rows.push({ attributes: { "data-color": color, class: wrong.length ? "wrong" : undefined },
                  cells: [this.colorLink(slot), sides(route.rx), element("span", {}, sides(route.tx), wrong), route.position, this.run.count(place, slot, LEAVES, cycle), this.lineLink(route.line)] });
    });
    return table(["color", "takes from", "sends to", "position", "passed on so far", "line"], rows);
  }
  #refusal(place, slot, cycle, side) {
    const other = this.run.neighbor(place, side), route = this.run.route(other, slot, cycle);
    const takes = route && (route.rx | route.tx) ? [`takes it from ${sides(route.rx)} `, this.lineLink(route.line)] : ["has no route for it"];
    return element("div", { class: "refusal" }, `${SIDES[side]}: `, this.peLink(other), " ", takes);
  }
  #memory(place) {
    const format = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(6) : `${value}`);
    const rows = this.run.memory(place).map(({ name, type, values, more }) => ({
      attributes: { "data-symbol": name },
      cells: [name, type, values.slice(0, 64).map(format).join(" ") + (values.length > 64 || more ? " …" : "")],
    }));
    return table(["symbol", "type", "values"], rows);
  }

  color({ cycle, slot }) {
    if (slot < 0) return [];
    const { run } = this, held = [], wrong = [];
    for (let place = 0; place < run.places; ++place) {
      const counts = [run.inRouter(place, slot, cycle), run.onRamp(place, slot, cycle), run.inQueue(place, slot, cycle)];
      const cells = [this.peLink(place), ...counts];
      if (cycle < run.words_until && counts.some((n) => n > 0)) held.push({ attributes: { "data-pe": run.at(place) }, cells });
      for (const side of run.refused(place, slot, cycle))
        wrong.push(element("p", { class: "wrong" }, this.peLink(place), " sends to ", this.#refusal(place, slot, cycle, side)));
    }
    return [section(`Color ${run.colors[slot]}`, "color",
                    element("p", {}, `${held.length} PEs hold words of it.`),
                    wrong.slice(0, 20), element("div", { class: "list" }, table(["PE", "in router", "on the ramp to it", "in queue"], held.slice(0, 200))))];
  }

  #sourceLine(line) {
    const [file, number] = this.run.lines[line], [name, text] = this.run.files[file];
    return number && text ? (text.split("\n")[number - 1] ?? "").trim() : name;
  }
  // The PEs at each line in a cycle: line -> places.
  atLines(cycle) {
    const out = new Map();
    for (let place = 0; place < this.run.places; ++place) {
      const line = this.run.doing(place, cycle) > 0 ? this.run.line(place, cycle) : -1;
      if (line >= 0) out.set(line, [...(out.get(line) ?? []), place]);
    }
    return out;
  }
  source({ cycle, line }) {
    if (line < 0) return [];
    const { run } = this, [file, chosen] = run.lines[line], [name, text] = run.files[file];
    const here = this.atLines(cycle), numbers = new Map();
    run.lines.forEach(([f, number], k) => f === file && numbers.set(number, k));
    const share = (k) => (100 * (this.profile.get(k) ?? 0)) / this.cycles;
    const row = (number, content) => {
      const k = numbers.get(number), pes = here.get(k)?.length;
      return { attributes: { class: number === chosen ? "chosen" : undefined, "data-line": number },
               cells: [k === undefined ? `${number}` : this.#link(`${number}`, { line: k }),
                       share(k) ? `${share(k).toFixed(1)} %` : "", pes ?? "", element("code", {}, content)] };
    };
    const rows = text ? text.split("\n").map((content, k) => row(k + 1, content)) : [row(chosen, name)];
    const places = here.get(line) ?? [];
    return [section(name.split("/").slice(-2).join("/"), "source",
                    element("p", { id: "line" }, `${chosen ? `Line ${chosen}` : "The operation"}: ${share(line).toFixed(1)} % of all cycles; ${places.length} PEs are at it. `,
                            places.slice(0, 12).flatMap((place) => [this.peLink(place), " "])),
                    element("div", { class: "lines" }, table(["line", "cycles", "PEs", "source"], rows)))];
  }
}
