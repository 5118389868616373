// Things to draw with lines. A segment is [from, to, colour, width in pixels]; a colour is [r, g, b, a] from 0 to 1.
// A pose is 12 numbers: the rotation row by row, world from camera with z forward, and the place.

const place = (pose, x, y, z) =>
  [0, 1, 2].map((row) => pose[row * 3] * x + pose[row * 3 + 1] * y + pose[row * 3 + 2] * z + pose[9 + row]);

/** The place of a pose. */
export const centre = (pose) => pose.slice(9, 12);

/** The view of a camera: four edges from its place, and the frame that they end at. */
export function frustum(pose, size, colour, width) {
  const half = size * 0.62;
  const from = centre(pose);
  const frame = [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([x, y]) => place(pose, x * half, y * half, size));
  return frame.flatMap((corner, at) => [
    [from, corner, colour, width],
    [corner, frame[(at + 1) % 4], colour, width],
  ]);
}

/** The twelve edges of a box that lies around a pose. */
export function box(pose, extents, colour, width) {
  const corners = [];
  for (let corner = 0; corner < 8; corner++) {
    corners.push(place(pose, ...extents.map((length, axis) => ((corner >> axis) & 1 ? 0.5 : -0.5) * length)));
  }
  const edges = [];
  for (let corner = 0; corner < 8; corner++) {
    for (const bit of [1, 2, 4]) {
      if (!(corner & bit)) edges.push([corners[corner], corners[corner | bit], colour, width]);
    }
  }
  return edges;
}

/** A line through points. */
export function path(points, colour, width) {
  return points.slice(1).map((point, before) => [points[before], point, colour, width]);
}
