// One clock for everything on a page that has a time: videos, frames, tracks and the transport.

const RATES = [0.25, 1, 2, 4];

/** Whole milliseconds, as links have them. */
const inMilliseconds = (seconds) => Math.round(seconds * 1000) / 1000;

/**
 * Seconds from the start of the episode. A listener is called with what happened: `tick` (it went on by itself),
 * `seek` (the reader is moving it), `settled` (the reader let go), `state` (play, pause, rate or duration changed).
 */
export class Clock {
  time = 0;
  rate = 1;
  playing = false;
  /** While playing: the time of a video that runs, or null. Without one, the clock of the computer counts. */
  source = () => null;
  #duration;
  #listeners = new Set();
  #before = 0;

  /** @param {number} duration seconds */
  constructor(duration = 0) {
    this.#duration = duration;
  }

  get duration() {
    return this.#duration;
  }

  /** A recording can be longer than what was declared. */
  set duration(seconds) {
    this.#duration = seconds;
    this.#tell('state');
  }

  /** @returns a function that ends it */
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** @param {boolean} settled false while the reader is still moving it */
  seek(time, settled = true) {
    this.time = inMilliseconds(Math.min(Math.max(time, 0), this.#duration));
    this.#tell(settled ? 'settled' : 'seek');
  }

  play() {
    if (this.playing) return;
    if (this.time >= this.#duration - 0.001) this.seek(0, false);
    this.playing = true;
    this.#before = performance.now();
    this.#tell('state');
    requestAnimationFrame(this.#tick);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.#tell('state');
    this.seek(this.time);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  setRate(rate) {
    if (!RATES.includes(rate)) return;
    this.rate = rate;
    this.#tell('state');
  }

  #tick = (now) => {
    if (!this.playing) return;
    const counted = this.time + ((now - this.#before) / 1000) * this.rate;
    this.#before = now;
    this.time = Math.max(0, this.source() ?? counted);
    if (this.time >= this.#duration) {
      this.time = this.#duration;
      this.pause();
      return;
    }
    this.#tell('tick');
    requestAnimationFrame(this.#tick);
  };

  #tell(what) {
    for (const listener of this.#listeners) listener(what);
  }
}
