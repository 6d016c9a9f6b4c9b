// What a recorded run says of a PE, a color or a source line in one cycle.

export const STATES = ["idle", "computes", "waits for a wavelet", "waits to send", "waits otherwise", "fault"];
export const SIDES = ["WEST", "EAST", "SOUTH", "NORTH", "RAMP"];
export const MOVES = [[-1, 0], [1, 0], [0, 1], [0, -1]];
export const LEAVES = 0, ENTERS = 1, QUEUED = 2, TAKEN = 3, RISES = 4, CLIMBS = 5;
export const TASK = 9, QUEUES = 8;
const STEPS = 6, PORTS = 5, FAULT = 5;
const JUMP = 1, BRANCH = 2, CALL = 3, RETURN = 4, ENDS = 5; // kinds of instructions

export const sides = (mask) => SIDES.filter((_, bit) => (mask >> bit) & 1).join(" ") || "none";

// Where the rows of each key begin, in a column of ascending keys.
function starts(keys, count) {
  const out = new Int32Array(count + 1);
  for (const key of keys) ++out[key + 1];
  for (let k = 0; k < count; ++k) out[k + 1] += out[k];
  return out;
}

// The last row in [from, to) whose cycle is at most `cycle`; from - 1 if there is none.
function last(cycles, from, to, cycle) {
  let low = from, high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cycles[middle] <= cycle) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export class Run {
  constructor(header) {
    Object.assign(this, header);
    [this.x0, this.y0, this.width, this.height] = header.rectangle;
    [this.first, this.end] = header.cycles;
    this.places = this.width * this.height;
    this.lanes = this.colors.length + QUEUES;
    const c = this.columns;
    this.stateStart = starts(c.state_pe, this.places);
    this.taskStart = starts(c.task_pe, this.places);
    this.runStart = starts(c.run_key, this.places * this.lanes * STEPS);
    this.routeStart = starts(c.route_key, this.places * this.colors.length);
    this.valueStart = starts(c.value_key, this.places * this.lanes);
    this.before = new Int32Array(c.run_key.length); // words of a key's earlier runs
    for (let i = 1; i < this.before.length; ++i)
      if (c.run_key[i] === c.run_key[i - 1]) this.before[i] = this.before[i - 1] + c.run_count[i - 1];
  }

  place(x, y) {
    const inside = x >= this.x0 && y >= this.y0 && x < this.x0 + this.width && y < this.y0 + this.height;
    return inside ? (y - this.y0) * this.width + x - this.x0 : -1;
  }
  at(place) {
    return [this.x0 + (place % this.width), this.y0 + Math.floor(place / this.width)];
  }
  neighbor(place, side) {
    const [x, y] = this.at(place);
    return this.place(x + MOVES[side][0], y + MOVES[side][1]);
  }

  #faulted(place, cycle) {
    const f = this.fault;
    return f && cycle >= f.cycle && this.place(f.x, f.y) === place;
  }
  // The row of a PE's state in the sampled cycle that a cycle belongs to, and that cycle; row -1: none.
  #stateRow(place, cycle) {
    const at = cycle - ((cycle - this.first) % this.sampled), from = this.stateStart[place];
    const row = last(this.columns.state_cycle, from, this.stateStart[place + 1], at);
    return [row < from ? -1 : row, at];
  }
  // What a PE does, an index into STATES; -1: no program.
  doing(place, cycle) {
    if (this.columns.tile[place] < 0) return -1;
    if (this.#faulted(place, cycle)) return FAULT;
    const [row] = this.#stateRow(place, cycle);
    return row < 0 ? 0 : this.columns.state[row];
  }
  // The line that a PE is at, or -1.
  line(place, cycle) {
    if (this.#faulted(place, cycle)) return this.fault.line;
    const [row, at] = this.#stateRow(place, cycle), c = this.columns;
    if (row < 0 || c.state_code[row] < 0) return row < 0 ? -1 : c.state_line[row];
    const since = at - c.state_cycle[row], stride = c.state_stride[row];
    const turn = stride ? Math.min(Math.floor(since / stride), c.state_turns[row] - 1) : 0;
    return this.#along(c.state_code[row], c.state_path[row], since - turn * stride);
  }
  // The line that a path from an instruction on is at, so many cycles behind its begin.
  #along(code, path, cycles) {
    const c = this.columns, calls = [];
    let line = c.code_line[code], left = cycles, bit = 31 - Math.clz32(path);
    for (;;) {
      const kind = c.code_kind[code], jumps = kind === JUMP || kind === BRANCH;
      if (c.code_cycles[code]) {
        if (left < 0) return line;
        line = c.code_line[code];
        left -= c.code_cycles[code];
      }
      if (kind === ENDS || (jumps && !bit) || (kind === RETURN && !calls.length)) return line;
      const taken = kind === CALL || (jumps && (path >> --bit) & 1);
      if (kind === BRANCH && taken) left -= c.code_taken[code];
      if (kind === CALL) calls.push(code + 1);
      code = kind === RETURN ? calls.pop() : code + (taken ? c.code_jump[code] : 1);
    }
  }

  // The run of words that is under way, or was last: its row, or -1.
  #row(place, lane, step, cycle) {
    const key = (place * this.lanes + lane) * STEPS + step;
    const row = last(this.columns.run_begin, this.runStart[key], this.runStart[key + 1], cycle);
    return row < this.runStart[key] ? -1 : row;
  }
  // Words that have done a step up to and in a cycle.
  count(place, lane, step, cycle) {
    const row = this.#row(place, lane, step, cycle);
    if (row < 0) return 0;
    const { run_begin: begin, run_stride: stride, run_count: count } = this.columns;
    const steps = stride[row] ? Math.floor((cycle - begin[row]) / stride[row]) + 1 : count[row];
    return this.before[row] + Math.min(steps, count[row]);
  }
  // The ports by which a word of a color leaves a router in a cycle; 0 for none.
  leaving(place, lane, cycle) {
    const row = this.#row(place, lane, LEAVES, cycle);
    if (row < 0) return 0;
    const { run_begin, run_stride, run_count, run_ports } = this.columns;
    const since = cycle - run_begin[row], stride = run_stride[row];
    const moves = stride ? since % stride === 0 && since / stride < run_count[row] : since === 0;
    return moves ? run_ports[row] : 0;
  }
  inQueue(place, lane, cycle) {
    return this.count(place, lane, QUEUED, cycle) - this.count(place, lane, TAKEN, cycle);
  }
  inRouter(place, lane, cycle) {
    return this.count(place, lane, ENTERS, cycle) - this.count(place, lane, LEAVES, cycle);
  }
  // Words that the PE has sent and the router has not let in.
  onRamp(place, lane, cycle) {
    return this.count(place, lane, RISES, cycle) - this.count(place, lane, CLIMBS, cycle);
  }
  // The words in a queue, the next one first; undefined where values were not kept.
  words(place, lane, cycle) {
    const key = place * this.lanes + lane, from = this.valueStart[key];
    const taken = this.count(place, lane, TAKEN, cycle), skipped = this.skipped(place, lane);
    return Array.from({ length: this.inQueue(place, lane, cycle) }, (_, k) => {
      const at = from + taken + k - skipped;
      return at >= from && at < this.valueStart[key + 1] ? this.columns.value[at] >>> 0 : undefined;
    });
  }
  // Words that entered a queue before the first recorded cycle.
  skipped(place, lane) {
    return this.count(place, lane, QUEUED, this.first - 1);
  }

  // A router's ports for a color: { rx, tx, position }, or undefined.
  route(place, slot, cycle) {
    const key = place * this.colors.length + slot, from = this.routeStart[key];
    const row = last(this.columns.route_cycle, from, this.routeStart[key + 1], cycle);
    if (row < from) return undefined;
    const bits = this.columns.route[row];
    const line = this.columns.route_line[key];
    return { rx: bits & 31, tx: (bits >> 5) & 31, position: bits >> 10, line };
  }
  // Sides by which a router sends a color to one that does not take it from there.
  refused(place, slot, cycle) {
    const route = this.route(place, slot, cycle);
    return [0, 1, 2, 3].filter((side) => {
      const other = (route?.tx >> side) & 1 ? this.neighbor(place, side) : -1;
      return other >= 0 && !((this.route(other, slot, cycle)?.rx >> (side ^ 1)) & 1);
    });
  }

  // Tasks and operations of a PE: [{ task, thread, begin, end, name, line, elements }].
  tasks(place) {
    const c = this.columns, out = [];
    for (let i = this.taskStart[place]; i < this.taskStart[place + 1]; ++i)
      out.push({ task: c.task_thread[i] === TASK, thread: c.task_thread[i], begin: c.task_begin[i],
                 end: c.task_end[i], name: this.names[c.task_name[i]], line: c.task_line[i],
                 elements: c.task_elements[i] });
    return out;
  }
  // PEs by state in a cycle; of each state a count.
  shares(cycle) {
    const out = new Array(STATES.length).fill(0);
    for (let place = 0; place < this.places; ++place) {
      const state = this.doing(place, cycle);
      if (state >= 0) ++out[state];
    }
    return out;
  }
  // Words over all links in the window of a cycle, by place and port; where single words were not kept.
  windowLinks(cycle) {
    const { link_index: index, link_words: words } = this.columns;
    const size = this.places * PORTS, from = Math.floor((cycle - this.first) / this.every) * size;
    const out = new Int32Array(size);
    for (let i = last(index, 0, index.length, from - 1) + 1; i < index.length && index[i] < from + size; ++i)
      out[index[i] - from] = words[i];
    return out;
  }

  // [{ name, type, values, more }] of a PE's memory at the run's end.
  memory(place) {
    const program = this.programs[this.columns.tile[place]];
    if (!program || !program.memory_bytes) return [];
    const order = this.columns.memory_start[place];
    const bytes = Uint8Array.from(this.columns.memory.subarray(order, order + program.memory_bytes));
    const view = new DataView(bytes.buffer);
    return program.symbols.map(([name, type, address, kept, size]) => {
      const [width, read] = KINDS[/[fui]\d+|bool/.exec(type.replace(/^\[\*?\d*\]/, ""))?.[0]] ?? KINDS.u8;
      const [step, get] = type.startsWith("[*") ? KINDS.u16 : [width, read];
      const values = [];
      for (let at = 0; at + step <= kept; at += step) values.push(get(view, address + at));
      return { name, type, values, more: size - kept };
    });
  }
}

function half(bits) {
  const exponent = (bits >> 10) & 31, part = bits & 1023, sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -24 * part);
}
const number = (bytes, name) => [bytes, (view, at) => view[`get${name}`](at, true)];
const KINDS = {
  f16: [2, (view, at) => half(view.getUint16(at, true))], f32: number(4, "Float32"), bool: number(1, "Uint8"),
  i8: number(1, "Int8"), i16: number(2, "Int16"), i32: number(4, "Int32"), i64: number(8, "BigInt64"),
  u8: number(1, "Uint8"), u16: number(2, "Uint16"), u32: number(4, "Uint32"), u64: number(8, "BigUint64"),
};
