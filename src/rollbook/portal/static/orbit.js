// A camera that turns around a point. z is up; angles are in radians, lengths in metres.

const FIELD_OF_VIEW = 0.75;
const STEEPEST = 1.55;
const NEAREST = 0.05;
const FARTHEST = 500;

export const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
export const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
export const scaled = (a, factor) => [a[0] * factor, a[1] * factor, a[2] * factor];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const unit = (a) => scaled(a, 1 / (Math.hypot(...a) || 1));
const between = (low, value, high) => Math.min(high, Math.max(low, value));

export class Orbit {
  yaw = 0.8;
  pitch = 0.8;
  distance = 5;
  /** The point that the camera looks at. */
  at = [0, 0, 0];

  /** Takes over `yaw,pitch,dist,x,y,z` of an address. A text that is not six numbers changes nothing. */
  read(text) {
    const values = (text ?? '').split(',').map(Number);
    if (values.length !== 6 || !values.every(Number.isFinite) || text.trim() === '') return false;
    const [yaw, pitch, distance, ...at] = values;
    this.yaw = yaw;
    this.pitch = between(-STEEPEST, pitch, STEEPEST);
    this.distance = between(NEAREST, distance, FARTHEST);
    this.at = at;
    return true;
  }

  toString() {
    return [this.yaw, this.pitch, this.distance, ...this.at].map((value) => +value.toFixed(3)).join(',');
  }

  eye() {
    const level = this.distance * Math.cos(this.pitch);
    const offset = [level * Math.cos(this.yaw), level * Math.sin(this.yaw), this.distance * Math.sin(this.pitch)];
    return add(this.at, offset);
  }

  turn(right, down) {
    this.yaw -= right * 0.008;
    this.pitch = between(-STEEPEST, this.pitch + down * 0.008, STEEPEST);
  }

  /** Moves the point that the camera looks at by pixels of a picture of this height. */
  pan(right, down, height) {
    const { x, y } = this.axes();
    const metres = (this.distance * FIELD_OF_VIEW) / height;
    this.at = add(this.at, add(scaled(x, -right * metres), scaled(y, down * metres)));
  }

  zoom(factor) {
    this.distance = between(NEAREST, this.distance * factor, FARTHEST);
  }

  axes() {
    const z = unit(subtract(this.eye(), this.at));
    const x = unit(cross([0, 0, 1], z));
    return { x, y: cross(z, x), z };
  }

  /** From the world to clip space, column by column. */
  matrix(aspect) {
    const { x, y, z } = this.axes();
    const eye = this.eye();
    const near = this.distance / 200;
    const far = this.distance * 20;
    const lens = 1 / Math.tan(FIELD_OF_VIEW / 2);
    const [slope, shift] = [(far + near) / (near - far), (2 * far * near) / (near - far)];
    const rows = [scaled(x, lens / aspect), scaled(y, lens), scaled(z, slope), scaled(z, -1)];
    const last = [-dot(rows[0], eye), -dot(rows[1], eye), -slope * dot(z, eye) + shift, dot(z, eye)];
    return new Float32Array([0, 1, 2].flatMap((axis) => rows.map((row) => row[axis])).concat(last));
  }
}
