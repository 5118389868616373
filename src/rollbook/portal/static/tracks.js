// Tracks: the least and the largest value of every pixel column, on canvases that are drawn once per zoom. The play head
// is one element, moved by a transform, so that scrubbing draws nothing.

const COLOURS = ['s1', 's2', 's3', 's4', 's5', 's6'];
const NAMES = [...COLOURS, 'line', 'edge', 'ink2', 'ink3', 'accent', 'worse-fill', 'worse-soft'];
const INSET = 4;
const DOT = 1.5;
const ROUGH = 0.05; // of the scale
const LATER_MS = 120;
const BESIDE = 0.1; // of the window, fetched on either side of it
const MOST_COLUMNS = 4000;
const MOST_ROWS = 40;
const MOST_NAMED = 64; // channels of one request
const MOST_LETTERS = 20_000; // of their names, as they stand in the address
/** A choice of every channel, however many there are. */
export const EVERY = '*';
/** How a line of each kind of recording is drawn: colour, width, opacity, filled. */
const STYLES = {
  baseline: ['edge', 4, 0.55, false],
  candidate: ['accent', 1.5, 1, false],
  difference: ['accent', 1.5, 1, true],
};

/** A colour as it is used: `light-dark()` does not resolve through getPropertyValue. */
function palette(root) {
  const probe = document.createElement('i');
  root.append(probe);
  const found = NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found);
}

/**
 * Reads one answer of a tracks route: a JSON head, then float32 [channel][column][least, largest].
 * @param {string} address
 * @param {{from?: number, to?: number, columns: number, channels?: string[], signal?: AbortSignal}} asked
 */
export async function fetchTracks(address, { from, to, columns, channels = [], signal }) {
  const query = new URLSearchParams({ columns: String(columns) });
  if (from !== undefined) query.set('from', from.toFixed(6));
  if (to !== undefined) query.set('to', to.toFixed(6));
  for (const name of channels) query.append('ch', name);
  const answer = await fetch(`${address}${address.includes('?') ? '&' : '?'}${query}`, { signal });
  if (!answer.ok) throw new Error(`the tracks cannot be read (${answer.status})`);
  const bytes = await answer.arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  return new Columns(head, new Float32Array(bytes, 4 + length));
}

/** Channels by name, in as many requests as they need. */
function fetchNamed(address, names, asked) {
  const batches = [];
  let letters = Infinity;
  for (const name of names) {
    const length = encodeURIComponent(name).length;
    if (letters + length > MOST_LETTERS || batches.at(-1).length === MOST_NAMED) {
      batches.push([]);
      letters = 0;
    }
    batches.at(-1).push(name);
    letters += length;
  }
  return Promise.all(batches.map((channels) => fetchTracks(address, { ...asked, channels })));
}

/** What one answer of a tracks route says. */
class Columns {
  constructor(head, data) {
    this.head = head;
    this.data = data;
    this.places = new Map(head.channels.map((each, place) => [each.name, place]));
    this.step = (head.to - head.from) / head.columns;
  }

  covers(from, to) {
    return this.head.from <= from + 1e-6 && this.head.to >= to - 1e-6;
  }

  /** The value at a time: of its column, or of the last column before it that has one. */
  at(channel, time) {
    const place = this.places.get(channel.name);
    if (place === undefined) return null;
    const { columns, from } = this.head;
    const column = Math.min(columns - 1, Math.floor((time - from) / this.step + 1e-6));
    const first = Math.max(0, column - emptyColumns(channel, this.head, this.step));
    for (let each = column; each >= first; each--) {
      const at = (place * columns + each) * 2;
      if (!Number.isNaN(this.data[at])) return [this.data[at], this.data[at + 1]];
    }
    return null;
  }
}

/** So many columns without a value may lie between two samples; more are a gap in the recording. */
function emptyColumns(channel, head, step) {
  const period = channel.rate ? 2.5 / channel.rate : (5 * head.duration) / Math.max(1, channel.samples);
  return Math.ceil(period / step);
}

/** A number as pages write it: a true minus, and no sign at zero. */
function written(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
}

function digitsOf(low, high) {
  const span = Math.max(Math.abs(low), Math.abs(high), 1e-9);
  return span >= 1000 ? 0 : span >= 20 ? 1 : span >= 0.2 ? 2 : Math.min(6, 2 - Math.floor(Math.log10(span)));
}

/** Numbers that would be a long row of digits, or of zeros. */
function isFar(span) {
  return span >= 1e6 || (span > 0 && span < 1e-4);
}

function exponential(value, digits = 1) {
  return value ? value.toExponential(digits).replace('+', '').replaceAll('-', '\u2212') : '0';
}

/** An end of a scale, with as many digits as the scale needs. */
function short(value, span) {
  if (Math.abs(value) >= 1e4 || span < 1e-3) return exponential(value);
  const text = written(value, Math.max(0, Math.min(5, 1 - Math.floor(Math.log10(span)))));
  return text.includes('.') ? text.replace(/0+$/, '').replace(/\.$/, '') : text;
}

function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

/**
 * The ruler and the tracks of one or several recordings on one clock.
 *
 * With one recording a row is a topic, with at most six channels. With several a row is a channel, with a line for each
 * recording.
 */
export class Timeline {
  from = 0;
  to = 1;
  /** @type {{at: number, until: number|null, channel: string|null, failure: boolean}[]} */
  marks = [];
  /** Names of the channels that are shown, or EVERY; null: the first rows. */
  chosen = null;
  #clock;
  #rows = [];
  #listeners = new Set();
  #asked = null;
  #timer = 0;
  #width = 0;
  #scaled = 0;
  #label = '';
  #known = 0;

  /**
   * @param {HTMLElement} root `.tl` with `.ruler > .plot` and `.head-line`
   * @param {import('./clock.js').Clock} clock
   * @param {{url: string, name: string, kind: string}[]} sources
   */
  constructor(root, clock, sources) {
    this.root = root;
    // `whole`: the first answer; `sheets`: it and what was asked for by name later; `parts`: of the window, finer
    this.sources = sources.map((each) => ({ ...each, whole: null, sheets: [], parts: [], channels: new Map() }));
    this.ruler = root.querySelector('.ruler .plot');
    this.line = root.querySelector('.head-line');
    this.#clock = clock;
    this.#known = clock.duration;
    this.to = Math.max(clock.duration, 1e-3);
    clock.on((what) => this.#follow(what));
    new ResizeObserver(() => this.#resized()).observe(this.ruler);
    addEventListener('themechange', () => this.draw());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    matchMedia('print').addEventListener('change', () => this.draw());
  }

  /** Called when rows, window or choice changed. */
  on(listener) {
    this.#listeners.add(listener);
  }

  /** Fetches all recordings as a whole. A recording that cannot be read leaves the others. */
  async load() {
    const columns = this.#columns();
    await Promise.all(
      this.sources.map(async (source) => {
        try {
          source.whole = await fetchTracks(source.url, { columns });
          const { channels, more } = source.whole.head;
          source.channels = new Map([...channels, ...more].map((each) => [each.name, each]));
          source.sheets = [source.whole];
        } catch (error) {
          source.problem = error.message;
        }
      }),
    );
    const lengths = this.sources.map((each) => each.whole?.head.duration ?? 0);
    const longest = Math.max(this.#clock.duration, ...lengths);
    if (longest > this.#clock.duration) this.#clock.duration = longest;
    await this.#fetchChosen();
    this.arrange();
    if (this.isZoomed) this.#fetchLater();
  }

  get isZoomed() {
    return this.from > 1e-6 || this.to < this.#clock.duration - 1e-6;
  }

  /** All channels by topic, in the order of the recordings. */
  topics() {
    const topics = new Map();
    for (const { channel } of this.#channels()) {
      if (!topics.has(channel.topic)) topics.set(channel.topic, []);
      topics.get(channel.topic).push(channel);
    }
    return topics;
  }

  isShown(name) {
    return this.#shown().has(name);
  }

  /** @param {string[]|null} names null: as at the beginning */
  async choose(names) {
    this.chosen = names;
    this.arrange();
    await this.#fetchChosen();
    if (this.chosen === names) this.#fetchLater();
  }

  // ---------------------------------------------------------------------------------------- rows

  /** Channels of all recordings, each once: differences first, then actions before sensors if there are several. */
  #channels() {
    const found = new Map();
    for (const source of this.sources) {
      for (const channel of source.channels.values()) {
        const there = found.get(channel.name) ?? { channel, sources: [] };
        there.sources.push([source, channel]);
        found.set(channel.name, there);
      }
    }
    const order = (each) => (each.sources[0][0].kind === 'difference' ? 0 : each.channel.kind === 'action' ? 1 : 2);
    const all = [...found.values()];
    return this.sources.length > 1 ? all.sort((a, b) => order(a) - order(b)) : all;
  }

  #shown() {
    if (this.chosen?.includes(EVERY)) return new Set(this.#channels().map((each) => each.channel.name));
    if (this.chosen) return new Set(this.chosen);
    const drawn = this.#channels().filter((each) => each.sources.some(([source]) => source.whole.places.has(each.channel.name)));
    const rows = this.#groups(drawn).slice(0, MOST_ROWS);
    return new Set(rows.flat().map((each) => each.channel.name));
  }

  #groups(channels) {
    if (this.sources.length > 1) return channels.map((each) => [each]);
    const groups = [];
    for (const each of channels) {
      const last = groups.at(-1);
      const fits = last && last[0].channel.topic === each.channel.topic && last[0].channel.kind === each.channel.kind;
      if (fits && last.length < COLOURS.length) last.push(each);
      else groups.push([each]);
    }
    return groups;
  }

  /** Makes the rows anew. */
  arrange() {
    const shown = this.#shown();
    const channels = this.#channels().filter((each) => shown.has(each.channel.name));
    for (const row of this.#rows) row.element.remove();
    this.#rows = this.#groups(channels).map((group) => this.#row(group));
    this.line.before(...this.#rows.map((row) => row.element));
    this.draw();
    this.#tell();
  }

  #row(group) {
    const first = group[0].channel;
    const single = this.sources.length === 1;
    const lines = group.flatMap(({ channel, sources }, place) =>
      sources.map(([source, its]) => {
        const number = this.sources.indexOf(source);
        const [colour, width, alpha, filled] = STYLES[source.kind] ?? [COLOURS[(single ? place : number) % 6], 1, 1, false];
        return { source, channel: its, colour, width, alpha, filled, label: single ? channel.label : source.name };
      }),
    );
    const lows = lines.map((each) => each.channel.lo).filter(Number.isFinite);
    const highs = lines.map((each) => each.channel.hi).filter(Number.isFinite);
    const row = { lines, lo: lows.length ? Math.min(...lows) : 0, hi: highs.length ? Math.max(...highs) : 1 };
    const isDistance = lines.some((each) => each.source.kind === 'difference');
    if (row.lo === row.hi) [row.lo, row.hi] = [row.lo - (isDistance ? 0 : 1), row.hi + 1];
    const [title, range] = single ? this.#title(group) : [first.name, ''];
    row.element = element('div', `track${lines.length > 2 ? ' tall' : ''}`);
    const lab = element('div', 'lab');
    row.plot = element('div', 'plot');
    lab.append(this.#topic(row, title, range, first.unit), this.#readouts(row, single));
    lab.append(element('span', 'hi', short(row.hi, row.hi - row.lo)), element('span', 'lo', short(row.lo, row.hi - row.lo)));
    row.element.append(lab, row.plot);
    return row;
  }

  /** The topic, and which of its channels where it has several rows: more than one row holds. */
  #title(group) {
    const { topic, kind } = group[0].channel;
    const all = this.#channels().filter(({ channel }) => channel.topic === topic && channel.kind === kind);
    return [topic, all.length > COLOURS.length ? `${group[0].channel.label}–${group.at(-1).channel.label}` : ''];
  }

  #topic(row, title, range, unit) {
    const topic = element('button', 'topic');
    topic.type = 'button';
    topic.setAttribute('aria-expanded', 'true');
    topic.title = range ? `${title} · ${range}` : title;
    topic.append(element('span', 'turn'), element('span', 'clip', title));
    if (range) topic.append(element('span', 'u', range));
    if (unit) topic.append(element('span', 'u', unit));
    topic.addEventListener('click', () => {
      const folded = row.element.classList.toggle('folded');
      topic.setAttribute('aria-expanded', String(!folded));
      if (!folded) this.draw();
    });
    return topic;
  }

  #readouts(row, single) {
    const values = element('div', 'vals');
    row.digits = digitsOf(row.lo, row.hi);
    for (const line of row.lines) {
      const place = COLOURS.indexOf(line.colour) + 1;
      const readout = element('span');
      const swatch = element('i', place ? `c${place}` : line.colour === 'accent' ? 'ca' : 'cb');
      line.readout = element('span', 'value', '–');
      readout.append(swatch);
      if ((single && row.lines.length > 1) || (!single && !STYLES[line.source.kind])) {
        readout.append(element('b', 'clip', line.label));
        readout.title = line.label;
      }
      readout.append(line.readout);
      values.append(readout);
    }
    return values;
  }

  // ------------------------------------------------------------------------------------- drawing

  draw() {
    const scale = devicePixelRatio || 1;
    this.#width = this.ruler.clientWidth;
    if (!this.#width) return;
    const colours = palette(this.root);
    const sheets = this.#rows.filter((row) => row.plot.clientHeight).map((row) => [row, row.plot.clientHeight]);
    for (const [row, height] of sheets) this.#drawRow(row, canvasIn(row.plot, this.#width, height, scale), colours, scale);
    this.#drawRuler(canvasIn(this.ruler, this.#width, this.ruler.clientHeight, scale), colours, scale);
    this.#place();
  }

  #x(time) {
    return (time - this.from) / (this.to - this.from);
  }

  #drawRow(row, context, colours, scale) {
    const { width, height } = context.canvas;
    const inset = INSET * scale;
    const inner = height - 2 * inset;
    const y = (value) => inset + inner - ((value - row.lo) / (row.hi - row.lo)) * inner;
    for (const mark of this.marks) {
      if (mark.until === null || !isOf(mark, row)) continue;
      const left = this.#x(mark.at) * width;
      context.fillStyle = colours['worse-soft'];
      context.fillRect(left, 0, Math.max(2 * scale, this.#x(mark.until) * width - left), height);
    }
    context.fillStyle = colours.line;
    for (const second of this.#seconds().all) context.fillRect(Math.round(this.#x(second) * width), 0, scale, height);
    if (row.lo < 0 && row.hi > 0) {
      context.fillStyle = colours.edge;
      context.globalAlpha = 0.5;
      context.fillRect(0, Math.round(y(0)), width, scale);
      context.globalAlpha = 1;
    }
    for (const line of row.lines) {
      const columns = this.#best(line);
      if (!columns) continue;
      context.strokeStyle = context.fillStyle = colours[line.colour];
      context.globalAlpha = line.alpha;
      context.lineWidth = line.width === 1 ? Math.max(1, Math.round(scale)) : line.width * scale;
      context.lineJoin = line.width > 2 ? 'round' : 'bevel';
      this.#trace(context, line, columns, y);
      context.globalAlpha = 1;
    }
    context.fillStyle = colours['worse-fill'];
    for (const mark of this.marks) {
      if (mark.failure) context.fillRect(this.#x(mark.at) * width - scale, 0, 2 * scale, height);
    }
  }

  /** The finest columns that have this channel and cover the window. */
  #best({ source, channel }) {
    const has = (columns) => columns.data.length && columns.places.has(channel.name);
    return source.parts.find((each) => has(each) && each.covers(this.from, this.to)) ?? source.sheets.find(has);
  }

  #trace(context, line, columns, y) {
    const place = columns.places.get(line.channel.name);
    const { head, data, step } = columns;
    const { width, height } = context.canvas;
    const most = emptyColumns(line.channel, head, step);
    const scale = width / (this.to - this.from);
    const start = Math.max(0, Math.floor((this.from - head.from) / step) - most - 1);
    const end = Math.min(head.columns, Math.ceil((this.to - head.from) / step) + most + 1);
    const path = new Path2D();
    let last = -Infinity;
    let first = 0;
    let x = 0;
    for (let column = start; column < end; column++) {
      const at = (place * head.columns + column) * 2;
      const low = data[at];
      if (low !== low) continue;
      x = (head.from + (column + 0.5) * step - this.from) * scale;
      const top = y(data[at + 1]);
      const bottom = y(low);
      if (column - last > most) {
        path.moveTo(x - DOT, bottom); // a single sample is a dot
        path.lineTo(x + DOT, bottom);
        path.lineTo(x, bottom);
        first = x;
      } else path.lineTo(x, bottom);
      if (top !== bottom) path.lineTo(x, top);
      last = column;
    }
    context.stroke(path);
    if (!line.filled || last < 0) return;
    path.lineTo(x, height - INSET);
    path.lineTo(first, height - INSET);
    context.globalAlpha = 0.22;
    context.fill(path);
  }

  /** Round times in the window: all of them for the grid, and those that have room for a label. */
  #seconds() {
    const span = this.to - this.from;
    const rough = span / Math.max(2, this.#width / 64);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const all = [];
    for (let number = Math.ceil(this.from / step - 1e-9); number * step <= this.to + 1e-9; number++) all.push(number * step);
    return { all, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  #drawRuler(context, colours, scale) {
    const { width, height } = context.canvas;
    context.font = `${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = 'top';
    const { all, digits } = this.#seconds();
    all.forEach((second, number) => {
      const x = Math.round(this.#x(second) * width);
      context.fillStyle = colours.edge;
      context.fillRect(x, height - 8 * scale, scale, 8 * scale);
      const label = second.toFixed(digits) + (number === 0 ? ' s' : '');
      const right = x + 4 * scale + context.measureText(label).width;
      context.fillStyle = colours.ink3;
      if (right < width) context.fillText(label, x + 4 * scale, height - 14 * scale);
    });
    for (const mark of this.marks) {
      const x = this.#x(mark.at) * width;
      context.fillStyle = mark.failure ? colours['worse-fill'] : colours.ink2;
      context.beginPath();
      const flag = [[0, 2], [10, 6], [0, 10]];
      const arrow = [[0, 12], [-4, 5], [4, 5]];
      for (const [right, down] of mark.failure ? flag : arrow) context.lineTo(x + right * scale, down * scale);
      context.fill();
      if (mark.failure) context.fillRect(x - scale, 2 * scale, 2 * scale, height);
    }
  }

  // -------------------------------------------------------------------------------- head and values

  #follow(what) {
    if (what === 'state') {
      this.#grow();
      return;
    }
    const { time } = this.#clock;
    if (this.isZoomed && (time < this.from || time > this.to)) {
      const span = this.to - this.from;
      this.window(time - span * (what === 'tick' ? 0.02 : 0.5), time + span * (what === 'tick' ? 0.98 : 0.5));
    }
    this.#place();
  }

  /** Tracks or a video can be longer than what was declared: whoever saw all of it still does. */
  #grow() {
    const { duration } = this.#clock;
    const sawAll = this.from <= 1e-6 && this.to >= this.#known - 1e-6;
    if (duration === this.#known) return;
    this.#known = duration;
    if (sawAll) this.showAll();
  }

  #place() {
    const { time } = this.#clock;
    this.line.style.transform = `translateX(${this.#x(time) * this.#width}px)`;
    this.line.hidden = time < this.from - 1e-6 || time > this.to + 1e-6;
    for (const row of this.#rows) {
      for (const line of row.lines) {
        const columns = this.#best(line);
        const found = columns && time <= columns.head.duration + 1e-6 ? columns.at(line.channel, time) : null;
        const text = found === null ? '–' : valueText(found, row);
        if (text !== line.text) line.readout.textContent = line.text = text;
      }
    }
    const label = `${time.toFixed(3)} s`;
    if (label !== this.#label) {
      this.#label = label;
      this.ruler.setAttribute('aria-valuenow', time.toFixed(3));
      this.ruler.setAttribute('aria-valuetext', label);
    }
  }

  // --------------------------------------------------------------------------------------- window

  /** The shortest window in which a line still has some samples. */
  #shortest() {
    const rates = this.#rows.flatMap((row) => row.lines.map((line) => line.channel.rate ?? 0));
    return Math.min(this.#clock.duration, Math.max(0.02, 8 / Math.max(...rates, 8)));
  }

  /** Shows the time from `from` to `to`, as far as there is any. */
  window(from, to) {
    const { duration } = this.#clock;
    const span = Math.min(Math.max(to - from, this.#shortest()), duration);
    this.from = Math.min(Math.max(0, from), duration - span);
    this.to = Math.max(this.from + span, this.from + 1e-3);
    this.draw();
    this.#fetchLater();
    this.#tell();
  }

  /** Around a time, which keeps its place on the screen. */
  zoom(factor, around = this.#clock.time) {
    const fixed = around < this.from || around > this.to ? (this.from + this.to) / 2 : around;
    const span = Math.max((this.to - this.from) * factor, this.#shortest());
    const share = (fixed - this.from) / (this.to - this.from);
    this.window(fixed - share * span, fixed - share * span + span);
  }

  showAll() {
    this.window(0, this.#clock.duration);
  }

  timeAt(clientX) {
    const box = this.ruler.getBoundingClientRect();
    return this.from + ((clientX - box.left) / box.width) * (this.to - this.from);
  }

  // ------------------------------------------------------------------------------------- fetching

  #columns() {
    const wide = (this.ruler.clientWidth || 1200) * (devicePixelRatio || 1);
    return Math.max(64, Math.min(MOST_COLUMNS, Math.round(wide)));
  }

  #resized() {
    this.draw();
    const wide = this.#columns();
    if (this.#scaled && Math.abs(wide - this.#scaled) > this.#scaled / 4) this.#fetchLater();
    this.#scaled ||= wide;
  }

  /** Chosen channels of a recording that has more than come at once. */
  async #fetchChosen() {
    const columns = this.#columns();
    const shown = this.chosen ? this.#shown() : new Set();
    const missing = this.sources.map((source) => {
      const names = [...source.channels.keys()].filter((name) => shown.has(name));
      return names.filter((name) => !source.sheets.some((each) => each.places.has(name)));
    });
    if (!missing.flat().length) return;
    this.root.setAttribute('aria-busy', 'true');
    await Promise.all(
      this.sources.map(async (source, number) => {
        try {
          for (const sheet of await fetchNamed(source.url, missing[number], { columns })) {
            source.sheets.push(sheet);
            for (const channel of sheet.head.channels) source.channels.set(channel.name, channel);
          }
        } catch (error) {
          source.problem = error.message;
        }
      }),
    );
    this.root.removeAttribute('aria-busy');
    this.arrange();
  }

  /** Finer columns of what is shown, once the reader stops zooming. */
  #fetchLater() {
    clearTimeout(this.#timer);
    this.#asked?.abort();
    if (!this.isZoomed || !this.#rows.length) return;
    this.#timer = setTimeout(() => this.#fetchPart(), LATER_MS);
  }

  async #fetchPart() {
    const asked = (this.#asked = new AbortController());
    const beside = (this.to - this.from) * BESIDE;
    const from = Math.max(0, this.from - beside);
    const to = Math.min(this.#clock.duration, this.to + beside);
    const columns = Math.min(MOST_COLUMNS, Math.round((this.#columns() * (to - from)) / (this.to - this.from)));
    this.root.setAttribute('aria-busy', 'true');
    await Promise.all(
      this.sources.map(async (source) => {
        const channels = this.#rows.flatMap((row) => row.lines.filter((line) => line.source === source).map((line) => line.channel.name));
        if (!channels.length || from >= source.whole.head.duration) return;
        try {
          source.parts = await fetchNamed(source.url, channels, { from, to, columns, signal: asked.signal });
        } catch {
          // the coarse columns stay
        }
      }),
    );
    if (asked !== this.#asked) return;
    this.root.removeAttribute('aria-busy');
    this.draw();
  }

  #tell() {
    for (const listener of this.#listeners) listener();
  }
}

function isOf(mark, row) {
  return row.lines.some(({ channel }) => mark.channel === channel.name || mark.channel === channel.topic);
}

/** A column with values that are apart shows the middle of them, marked as such. */
function valueText([low, high], row) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return String(high);
  const isRough = high - low > (row.hi - row.lo) * ROUGH;
  const middle = (low + high) / 2;
  const isLong = isFar(Math.max(Math.abs(row.lo), Math.abs(row.hi)));
  return `${isRough ? '≈' : ''}${isLong ? exponential(middle, 2) : written(middle, row.digits)}`;
}

function canvasIn(plot, width, height, scale) {
  const canvas = plot.querySelector('canvas') ?? plot.appendChild(document.createElement('canvas'));
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext('2d');
  context.clearRect(0, 0, wide, high);
  return context;
}
