// A small WebGL2 viewer: flat-shaded triangles or points, thick lines, and marks that can be picked. z is up.
// Nothing is drawn until something changes. While the camera moves, the picture has half the size and no smoothing.

import { Orbit } from './orbit.js';

export const DISC = 0;
export const CROSS = 1;
export const RING = 2;
export const SQUARE = 3;

const STILL_AFTER_MS = 180;
const CLICK_PIXELS = 5;
const GROUND = [0.043, 0.051, 0.063];
const SURFACE = [0.56, 0.59, 0.64];

const SOLID_VERTEX = `#version 300 es
in vec3 position; uniform mat4 matrix; uniform float dot_size; out vec3 world;
void main() { world = position; gl_Position = matrix * vec4(position, 1.); gl_PointSize = dot_size; }`;

const SOLID_FRAGMENT = `#version 300 es
precision highp float; in vec3 world; uniform vec3 eye, tint; uniform vec2 heights; uniform float cut; uniform bool flat_dots; out vec4 colour;
void main() {
  if (world.z > cut) discard;
  vec3 to_eye = eye - world;
  if (flat_dots) { colour = vec4(tint * clamp(1.25 - length(to_eye) * .08, .45, 1.1), 1.); return; }
  vec3 normal = cross(dFdx(world), dFdy(world));
  normal *= inversesqrt(dot(normal, normal));
  float facing = dot(normal, to_eye);
  float above = dot(normal, vec3(.351, .251, .902)) * sign(facing);
  float light = .46 + .30 * max(above, 0.) + .22 * abs(facing) * inversesqrt(dot(to_eye, to_eye));
  light *= .84 + .24 * clamp((world.z - heights.x) * heights.y, 0., 1.);
  colour = vec4(tint * light, 1.);
}`;

// every segment is two triangles, widened on the screen; a part behind the camera is cut off
const LINE_VERTEX = `#version 300 es
in vec2 corner; in vec3 start, end; in vec4 tint; in float wide; uniform mat4 matrix; uniform vec2 half_size; out vec4 shade;
void main() {
  vec4 a = matrix * vec4(start, 1.), b = matrix * vec4(end, 1.);
  shade = tint;
  if (a.w < .02 && b.w < .02) { gl_Position = vec4(2., 2., 2., 1.); return; }
  if (a.w < .02) a = mix(a, b, (.02 - a.w) / (b.w - a.w));
  if (b.w < .02) b = mix(b, a, (.02 - b.w) / (a.w - b.w));
  vec2 along = (b.xy / b.w - a.xy / a.w) * half_size;
  along = length(along) > 0. ? normalize(along) : vec2(1., 0.);
  vec4 at = mix(a, b, corner.x);
  at.xy += vec2(-along.y, along.x) * corner.y * wide / half_size * at.w;
  at.z -= 1e-4 * at.w;
  gl_Position = at;
}`;

const LINE_FRAGMENT = `#version 300 es
precision mediump float; in vec4 shade; out vec4 colour;
void main() { colour = shade; }`;

const MARK_VERTEX = `#version 300 es
in vec3 position; in vec4 tint; in float size, form; uniform mat4 matrix; uniform float pixel; out vec4 shade; flat out int shape;
void main() {
  gl_Position = matrix * vec4(position, 1.);
  gl_Position.z -= 2e-4 * gl_Position.w;
  gl_PointSize = size * pixel;
  shade = tint;
  shape = int(form);
}`;

const MARK_FRAGMENT = `#version 300 es
precision mediump float; in vec4 shade; flat in int shape; out vec4 colour;
void main() {
  vec2 at = gl_PointCoord * 2. - 1.;
  float away = length(at);
  colour = shade;
  if (shape == ${DISC}) { if (away > 1.) discard; if (away > .74) colour = vec4(.04, .05, .06, shade.a); }
  else if (shape == ${CROSS}) { if (min(abs(at.x - at.y), abs(at.x + at.y)) > .34 || max(abs(at.x), abs(at.y)) > .8) discard; }
  else if (shape == ${RING}) { if (away > 1. || away < .72) discard; }
}`;

const CORNERS = [[0, -0.5], [1, -0.5], [0, 0.5], [1, 0.5]];
const TWO_TRIANGLES = [0, 1, 2, 2, 1, 3];
const LINE_LAYOUT = [['corner', 2], ['start', 3], ['end', 3], ['tint', 4], ['wide', 1]];
const MARK_LAYOUT = [['position', 3], ['tint', 4], ['size', 1], ['form', 1]];

/** Draws a scene into a canvas, and lets people turn, move, zoom and pick in it. Throws where WebGL2 is missing. */
export class View3D {
  orbit = new Orbit();
  /** Surfaces above this height are left out. */
  cut = 1e9;
  /** How often the scene was drawn. */
  drawn = 0;
  #scene = { solid: null, lines: new Float32Array(), marks: new Float32Array() };
  #places = [];
  #moving = false;
  #asked = 0;
  #timer = 0;
  #gpu = null;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{onpick?: (id: number) => void, onstill?: () => void}} does - `onpick` gets the id of a mark that was
   *   clicked, `onstill` is called when the camera has come to rest.
   */
  constructor(canvas, { onpick = () => {}, onstill = () => {} } = {}) {
    this.canvas = canvas;
    this.onpick = onpick;
    this.onstill = onstill;
    this.gl = canvas.getContext('webgl2', { antialias: false, alpha: false });
    if (!this.gl) throw new Error('this browser has no WebGL2');
    this.#prepare();
    canvas.addEventListener('webglcontextlost', (event) => {
      event.preventDefault();
      this.#gpu = null;
    });
    canvas.addEventListener('webglcontextrestored', () => {
      this.#prepare();
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(canvas);
    listen(this);
  }

  /** Shows triangles: three coordinates per vertex, three vertices per triangle. */
  showMesh(positions, corners) {
    this.#scene.solid = { positions, corners };
    this.#uploadSolid();
  }

  /** Shows points instead of triangles. */
  showPoints(positions) {
    this.#scene.solid = { positions, corners: null };
    this.#uploadSolid();
  }

  /** @param {Array} segments - [from, to, [r, g, b, a], width in pixels] */
  showLines(segments) {
    // four corners each: instances would be less data, but cost ten times as much without a graphics card
    const corners = segments.flatMap(([from, to, colour, width]) => CORNERS.flatMap((corner) => [...corner, ...from, ...to, ...colour, width]));
    this.#scene.lines = new Float32Array(corners);
    this.#upload('lines');
  }

  /** @param {Array} marks - [place, [r, g, b, a], size in pixels, shape, id]; a mark without an id cannot be picked */
  showMarks(marks) {
    this.#scene.marks = new Float32Array(marks.flatMap(([place, colour, size, shape]) => [...place, ...colour, size, shape]));
    this.#places = marks.filter((mark) => mark[4] != null).map(([place, , , , id]) => ({ place, id }));
    this.#upload('marks');
  }

  /** Draws again before the next frame is shown. */
  redraw() {
    this.#asked ||= requestAnimationFrame(() => {
      this.#asked = 0;
      this.draw();
    });
  }

  /** The camera has changed: draw coarsely now, and well once it rests. */
  moved() {
    this.#moving = true;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#moving = false;
      this.redraw();
      this.onstill();
    }, STILL_AFTER_MS);
    this.redraw();
  }

  draw() {
    const { gl, canvas } = this;
    if (!this.#gpu || !canvas.clientWidth || !canvas.clientHeight) return;
    const pixel = devicePixelRatio * (this.#moving ? 0.5 : 1);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((length) => Math.max(1, Math.round(length * pixel)));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const smooth = this.#moving ? null : this.#smoothTarget(width, height);
    gl.bindFramebuffer(gl.FRAMEBUFFER, smooth);
    gl.viewport(0, 0, width, height);
    gl.clearColor(...GROUND, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    this.#drawScene(this.orbit.matrix(width / height), width, height, pixel);
    if (smooth) {
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, smooth);
      gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, null);
      gl.blitFramebuffer(0, 0, width, height, 0, 0, width, height, gl.COLOR_BUFFER_BIT, gl.NEAREST);
      gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    }
    this.drawn++;
  }

  #drawScene(matrix, width, height, pixel) {
    const { gl } = this;
    const { solid, lines, marks } = this.#gpu;
    gl.enable(gl.DEPTH_TEST);
    gl.depthFunc(gl.LEQUAL);
    gl.depthMask(true);
    gl.disable(gl.BLEND);
    if (solid.count) {
      const { uniforms } = solid;
      gl.useProgram(solid.program);
      gl.uniformMatrix4fv(uniforms.matrix, false, matrix);
      gl.uniform3fv(uniforms.eye, this.orbit.eye());
      gl.uniform3fv(uniforms.tint, SURFACE);
      gl.uniform1f(uniforms.cut, this.cut);
      gl.uniform2f(uniforms.heights, solid.lowest, 1 / Math.max(1e-3, Math.min(solid.highest, this.cut) - solid.lowest));
      gl.uniform1f(uniforms.dot_size, 2 * pixel);
      gl.uniform1i(uniforms.flat_dots, solid.dots ? 1 : 0);
      gl.bindVertexArray(solid.array);
      if (solid.dots) gl.drawArrays(gl.POINTS, 0, solid.count);
      else gl.drawElements(gl.TRIANGLES, solid.count, gl.UNSIGNED_INT, 0);
    }
    gl.enable(gl.BLEND);
    // lines and marks are drawn twice: faint where the surface hides them, full where it does not
    for (const hidden of [true, false]) {
      gl.depthFunc(hidden ? gl.GREATER : gl.LEQUAL);
      gl.depthMask(!hidden);
      gl.blendColor(0, 0, 0, 0.28);
      if (hidden) gl.blendFunc(gl.CONSTANT_ALPHA, gl.ONE_MINUS_CONSTANT_ALPHA);
      else gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
      gl.useProgram(lines.program);
      gl.uniformMatrix4fv(lines.uniforms.matrix, false, matrix);
      gl.uniform2f(lines.uniforms.half_size, width / pixel / 2, height / pixel / 2);
      gl.bindVertexArray(lines.array);
      gl.drawElements(gl.TRIANGLES, (lines.count / 4) * 6, gl.UNSIGNED_INT, 0);
      gl.useProgram(marks.program);
      gl.uniformMatrix4fv(marks.uniforms.matrix, false, matrix);
      gl.uniform1f(marks.uniforms.pixel, pixel);
      gl.bindVertexArray(marks.array);
      gl.drawArrays(gl.POINTS, 0, marks.count);
    }
    gl.bindVertexArray(null);
  }

  /** The id of the mark that is closest to this place in the canvas, or null. */
  pick(x, y, reach) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const m = this.orbit.matrix(width / height);
    let best = null;
    let closest = reach;
    for (const { place: [px, py, pz], id } of this.#places) {
      const w = m[3] * px + m[7] * py + m[11] * pz + m[15];
      if (w <= 0) continue;
      const right = ((m[0] * px + m[4] * py + m[8] * pz + m[12]) / w) * 0.5 + 0.5;
      const down = 0.5 - ((m[1] * px + m[5] * py + m[9] * pz + m[13]) / w) * 0.5;
      const away = Math.hypot(right * width - x, down * height - y);
      if (away < closest) [closest, best] = [away, id];
    }
    return best;
  }

  // ---------------------------------------------------------------------------- what the graphics card holds

  /** Everything is made again after the browser lost it. */
  #prepare() {
    const { gl } = this;
    const part = (vertex, fragment) => ({ ...program(gl, vertex, fragment), array: gl.createVertexArray(), buffer: gl.createBuffer(), count: 0 });
    this.#gpu = {
      solid: { ...part(SOLID_VERTEX, SOLID_FRAGMENT), corners: gl.createBuffer(), dots: false },
      lines: { ...part(LINE_VERTEX, LINE_FRAGMENT), corners: gl.createBuffer() },
      marks: part(MARK_VERTEX, MARK_FRAGMENT),
      smooth: null,
    };
    const { solid, lines, marks } = this.#gpu;
    gl.bindVertexArray(solid.array);
    gl.bindBuffer(gl.ARRAY_BUFFER, solid.buffer);
    attributes(gl, solid.program, [['position', 3]]);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, solid.corners);
    gl.bindVertexArray(lines.array);
    gl.bindBuffer(gl.ARRAY_BUFFER, lines.buffer);
    attributes(gl, lines.program, LINE_LAYOUT);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, lines.corners);
    gl.bindVertexArray(marks.array);
    gl.bindBuffer(gl.ARRAY_BUFFER, marks.buffer);
    attributes(gl, marks.program, MARK_LAYOUT);
    gl.bindVertexArray(null);
    this.#uploadSolid();
    this.#upload('lines');
    this.#upload('marks');
  }

  #uploadSolid() {
    const { gl } = this;
    const { solid } = this.#scene;
    if (!solid || !this.#gpu) return;
    const target = this.#gpu.solid;
    gl.bindVertexArray(null);
    gl.bindBuffer(gl.ARRAY_BUFFER, target.buffer);
    gl.bufferData(gl.ARRAY_BUFFER, solid.positions, gl.STATIC_DRAW);
    if (solid.corners) {
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, target.corners);
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, solid.corners, gl.STATIC_DRAW);
    }
    // a table has the shade of the floor unless height counts a little
    [target.lowest, target.highest] = [Infinity, -Infinity];
    for (let at = 2; at < solid.positions.length; at += 3) {
      target.lowest = Math.min(target.lowest, solid.positions[at]);
      target.highest = Math.max(target.highest, solid.positions[at]);
    }
    target.dots = !solid.corners;
    target.count = solid.corners ? solid.corners.length : solid.positions.length / 3;
    this.redraw();
  }

  #upload(name) {
    const { gl } = this;
    if (!this.#gpu) return;
    const numbers = (name === 'lines' ? LINE_LAYOUT : MARK_LAYOUT).reduce((sum, [, size]) => sum + size, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.#gpu[name].buffer);
    gl.bufferData(gl.ARRAY_BUFFER, this.#scene[name], gl.STATIC_DRAW);
    this.#gpu[name].count = this.#scene[name].length / numbers;
    if (name === 'lines') {
      const segments = this.#gpu.lines.count / 4;
      const corners = Uint32Array.from({ length: segments * 6 }, (_, at) => 4 * Math.floor(at / 6) + TWO_TRIANGLES[at % 6]);
      gl.bindVertexArray(null);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.#gpu.lines.corners);
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, corners, gl.STATIC_DRAW);
    }
    this.redraw();
  }

  /** A picture with several samples per pixel, as large as the canvas. */
  #smoothTarget(width, height) {
    const { gl } = this;
    const had = this.#gpu.smooth;
    if (had?.width === width && had.height === height) return had.frame;
    for (const each of had?.buffers ?? []) gl.deleteRenderbuffer(each);
    const frame = had?.frame ?? gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, frame);
    const samples = Math.min(4, gl.getParameter(gl.MAX_SAMPLES));
    const parts = [[gl.RGB8, gl.COLOR_ATTACHMENT0], [gl.DEPTH_COMPONENT24, gl.DEPTH_ATTACHMENT]];
    const buffers = parts.map(([format, attachment]) => {
      const buffer = gl.createRenderbuffer();
      gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
      gl.renderbufferStorageMultisample(gl.RENDERBUFFER, samples, format, width, height);
      gl.framebufferRenderbuffer(gl.FRAMEBUFFER, attachment, gl.RENDERBUFFER, buffer);
      return buffer;
    });
    const works = gl.checkFramebufferStatus(gl.FRAMEBUFFER) === gl.FRAMEBUFFER_COMPLETE;
    this.#gpu.smooth = { width, height, buffers, frame: works ? frame : null };
    return this.#gpu.smooth.frame;
  }
}

function program(gl, vertex, fragment) {
  const made = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS) && !gl.isContextLost()) throw new Error(gl.getProgramInfoLog(made));
  const uniforms = {};
  const count = gl.isContextLost() ? 0 : gl.getProgramParameter(made, gl.ACTIVE_UNIFORMS);
  for (let at = 0; at < count; at++) {
    const { name } = gl.getActiveUniform(made, at);
    uniforms[name] = gl.getUniformLocation(made, name);
  }
  return { program: made, uniforms };
}

/** Describes the floats of the bound buffer, one attribute after the other. */
function attributes(gl, program, layout) {
  const stride = layout.reduce((sum, [, size]) => sum + size, 0) * 4;
  let offset = 0;
  for (const [name, size] of layout) {
    const location = gl.getAttribLocation(program, name);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, size, gl.FLOAT, false, stride, offset);
    offset += size * 4;
  }
}

/** Drag turns, shift-drag and two fingers move, wheel and pinch zoom, a click picks; arrows, + and - do it by keyboard. */
function listen(view) {
  const { canvas, orbit } = view;
  const fingers = new Map();
  let travelled = 0;
  let span = 0;

  const change = (how, ...by) => {
    orbit[how](...by);
    view.moved();
  };
  const pan = (right, down) => change('pan', right, down, canvas.clientHeight);

  canvas.addEventListener('pointerdown', (event) => {
    if (!fingers.size) travelled = 0;
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    span = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const [right, down] = [event.offsetX - before[0], event.offsetY - before[1]];
    travelled += Math.abs(right) + Math.abs(down);
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (fingers.size > 1) {
      const [a, b] = [...fingers.values()];
      const apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (span && apart) change('zoom', span / apart);
      span = apart;
      pan(right / 2, down / 2);
    } else if (travelled >= CLICK_PIXELS) {
      if (event.shiftKey || event.buttons === 2 || event.buttons === 4) pan(right, down);
      else change('turn', right, down);
    }
  });
  const release = (event) => {
    const held = fingers.delete(event.pointerId);
    if (!held || fingers.size || travelled >= CLICK_PIXELS || event.type !== 'pointerup') return;
    const id = view.pick(event.offsetX, event.offsetY, event.pointerType === 'touch' ? 24 : 14);
    if (id !== null) view.onpick(id);
  };
  canvas.addEventListener('pointerup', release);
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('contextmenu', (event) => event.preventDefault());
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    change('zoom', Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * 0.001));
  }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = { ArrowLeft: [-30, 0], ArrowRight: [30, 0], ArrowUp: [0, -30], ArrowDown: [0, 30] }[event.key];
    if (arrow && event.shiftKey) pan(...arrow);
    else if (arrow) change('turn', ...arrow);
    else if (event.key === '+' || event.key === '-') change('zoom', event.key === '+' ? 0.85 : 1.18);
    else return;
    event.preventDefault();
  });
}
