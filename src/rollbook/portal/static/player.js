// Pictures that follow a clock: videos, and image arrays of a recording. Both show exactly the frame of the time.

const DRIFT_S = 0.12;
const AGAIN_MS = 10_000;

/** When each frame of a video is shown: at a constant rate, or at the times given. */
export class FrameTimes {
  /** @param {{fps: number|null, frames: number|null, times: number[]|null}} facts */
  constructor({ fps, frames, times = null }) {
    this.times = times?.length ? times : null;
    this.fps = fps || 30;
    this.count = this.times ? this.times.length : frames;
  }

  get last() {
    return this.count ? this.count - 1 : Infinity;
  }

  frameAt(time) {
    if (!this.times) return Math.max(0, Math.min(this.last, Math.floor(time * this.fps + 1e-6)));
    let low = 0;
    let high = this.times.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= time + 1e-6) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The first whole millisecond of a frame: a link to it leads to the same frame. */
  timeOf(frame) {
    const wanted = Math.max(0, Math.min(this.last, frame));
    const start = this.times ? this.times[wanted] : wanted / this.fps;
    return Math.ceil(start * 1000 - 1e-6) / 1000;
  }

  /** Half a frame in: rounding never leads to the frame before. */
  middleOf(frame) {
    if (!this.times) return (frame + 0.5) / this.fps;
    const start = this.times[frame];
    return frame < this.last ? (start + this.times[frame + 1]) / 2 : start + 0.001;
  }

  get end() {
    if (!this.count) return null;
    return this.times ? this.times[this.last] : this.count / this.fps;
  }
}

/** A <video> that follows the clock; while playing, the clock follows the video. */
export class VideoPlayer {
  #clock;
  #frame = 0;
  #wanted = null;
  #seeking = false;
  #loadedAt = -Infinity;

  /**
   * @param {HTMLVideoElement} video
   * @param {import('./clock.js').Clock} clock
   * @param {FrameTimes} frames
   * @param {(failed: boolean) => void} onstate whether the browser gave up playing it
   */
  constructor(video, clock, frames, onstate) {
    this.video = video;
    this.frames = frames;
    this.onstate = onstate;
    this.#clock = clock;
    video.addEventListener('seeked', () => {
      this.#seeking = false;
      this.#go();
    });
    video.addEventListener('loadedmetadata', () => {
      this.#seeking = false;
      onstate(false);
      if (clock.time > 0) this.#show();
    });
    video.addEventListener('error', () => this.#loadAgain());
    if (video.error) this.#loadAgain();
    clock.on((what) => this.#follow(what));
    if (clock.time > 0) this.#show();
    if (clock.playing) this.#run();
  }

  /** The time of the video while it runs by itself, else null. */
  runningTime() {
    const { video } = this;
    return video.paused || video.ended || video.error ? null : video.currentTime;
  }

  /** The address of the bytes is valid for a while only; the page's own address gives a new one. */
  #loadAgain() {
    const now = performance.now();
    if (now - this.#loadedAt < AGAIN_MS) {
      this.onstate(true);
      return;
    }
    this.#loadedAt = now;
    this.video.load();
  }

  #follow(what) {
    if (what === 'tick') this.#keepUp();
    else if (what !== 'state') this.#show();
    else if (this.#clock.playing) this.#run();
    else this.video.pause();
  }

  #run() {
    this.video.playbackRate = this.#clock.rate;
    if (this.#isOver()) return;
    this.video.currentTime = this.#clock.time;
    this.video.play().catch(() => {}); // the clock then counts alone
  }

  #keepUp() {
    if (this.#isOver()) {
      this.video.pause();
    } else if (this.video.paused && !this.video.ended) {
      this.#run();
    } else if (Math.abs(this.video.currentTime - this.#clock.time) > DRIFT_S * this.#clock.rate) {
      this.video.currentTime = this.#clock.time;
    }
  }

  #isOver() {
    return this.#clock.time >= (this.video.duration || Infinity);
  }

  #show() {
    this.#frame = this.frames.frameAt(this.#clock.time);
    this.#wanted = Math.min(this.frames.middleOf(this.#frame), this.video.duration || Infinity);
    this.#go();
  }

  /** One seek at a time: while it is under way, only the newest wish is kept. */
  #go() {
    if (this.#seeking || this.video.readyState === 0) return;
    const wanted = this.#wanted ?? this.video.currentTime;
    this.#wanted = null;
    if (Math.abs(this.video.currentTime - wanted) < 1e-4) {
      this.video.dataset.number = String(this.#frame); // it is on the screen
      return;
    }
    this.#seeking = true;
    this.video.currentTime = wanted;
  }
}

/** Frames of an image array, each fetched as a picture and drawn on a canvas. */
export class ImagePlayer {
  #clock;
  #context;
  #loading = false;
  #shown = -1;
  #wanted = 0;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {import('./clock.js').Clock} clock
   * @param {FrameTimes} frames
   * @param {(frame: number) => string} address
   */
  constructor(canvas, clock, frames, address) {
    this.canvas = canvas;
    this.frames = frames;
    this.address = address;
    this.#clock = clock;
    this.#context = canvas.getContext('2d');
    clock.on((what) => what !== 'state' && this.show());
    this.show();
  }

  runningTime() {
    return null;
  }

  /** Another array: the frame on the canvas is not one of its own. */
  again() {
    this.#shown = -1;
    this.show();
  }

  show() {
    this.#wanted = this.frames.frameAt(this.#clock.time);
    if (!this.#loading && this.#wanted !== this.#shown) this.#load();
  }

  async #load() {
    this.#loading = true;
    while (this.#wanted !== this.#shown) {
      const frame = this.#wanted;
      const image = new Image();
      image.src = this.address(frame);
      try {
        await image.decode();
        this.canvas.width = image.naturalWidth;
        this.canvas.height = image.naturalHeight;
        this.#context.drawImage(image, 0, 0);
        this.canvas.dataset.number = String(frame);
      } catch {
        this.canvas.dataset.missing = String(frame);
      }
      this.#shown = frame;
    }
    this.#loading = false;
  }
}
