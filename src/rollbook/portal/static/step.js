// One step of a rollout: the 3D view, and changes of step, candidate, colour and order without loading the whole page.
// Every change is a link that also works without this script; the server writes all text.

import { copied, isTyping } from './portal.js';
import { add, scaled, subtract } from './orbit.js';
import { box, centre, frustum, path } from './shapes3d.js';
import { CROSS, DISC, RING, SQUARE, View3D } from './view3d.js';

const WHITE = [1, 1, 1, 1];
const WALK = [0.56, 0.63, 1, 1];
const TARGET = [0.98, 0.55, 0.24, 1];
const MOST_FRUSTA = 400;

const well = document.getElementById('scene');
const canvas = well.querySelector('canvas');
let view = null;
let scene = null;
let shell = null;
let asked = 0;

const part = (id) => document.getElementById(id);
const query = () => new URLSearchParams(location.search);

function say(problem) {
  const place = well.querySelector('[data-problem]');
  place.textContent = problem;
  place.hidden = !problem;
}

async function load(address) {
  const answer = await fetch(address);
  if (!answer.ok || answer.redirected) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

// ------------------------------------------------------------------------------------------- scene

/** The head of a scene and its numbers: vertices, corners of triangles, places of the walk. */
function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = 4 + length;
  const positions = new Float32Array(buffer, start, head.vertices * 3);
  const corners = new Uint32Array(buffer, start + positions.byteLength, head.triangles * 3);
  const walked = new Float32Array(buffer, start + positions.byteLength + corners.byteLength, head.walk * 3);
  const walk = Array.from({ length: head.walk }, (_, at) => [...walked.slice(at * 3, at * 3 + 3)]);
  return { ...head, positions, corners, walk };
}

function showScene() {
  const count = new Intl.NumberFormat('en').format;
  let words = 'no surroundings';
  if (scene.kind === 'mesh') {
    view.showMesh(scene.positions, scene.corners);
    const fewer = scene.of_triangles > scene.triangles ? ` of ${count(scene.of_triangles)}` : '';
    words = `${count(scene.triangles)}${fewer} triangles`;
  } else if (scene.kind === 'points') {
    view.showPoints(scene.positions);
    words = `${count(scene.vertices)} points of the depth images`;
  }
  if (scene.cut_m !== null) {
    view.cut = scene.cut_m;
    words += `, cut at ${scene.cut_m.toFixed(2)} m`;
  }
  const label = well.querySelector('[data-geometry]');
  label.querySelector('b').textContent = words;
  label.title = words;
  label.hidden = false;
  part('scene-reason').textContent = `The mesh of the scene is not shown: ${scene.reason}.`;
  part('scene-reason').hidden = !scene.reason;
}

/** A view over the root, the places that were taken and the target, from behind the root. */
function wholeView() {
  const places = [scene.root, ...scene.taken, scene.target?.pose].filter(Boolean).map(centre);
  if (!places.length) places.push(...Array.from({ length: shell.rows.length }, (_, at) => centre(poseOf(at))));
  if (!places.length) return;
  const middle = scaled(places.reduce(add), 1 / places.length);
  const radius = Math.max(0.3, ...places.map((place) => Math.hypot(...subtract(place, middle))));
  const back = scene.target && scene.root ? subtract(centre(scene.root), centre(scene.target.pose)) : [1, 1, 0];
  Object.assign(view.orbit, { at: middle, distance: radius * 2.3 + 0.8, yaw: Math.atan2(back[1], back[0]) + 0.7, pitch: 0.8 });
}

// -------------------------------------------------------------------------------------- candidates

const poseOf = (at) => shell.poses.slice(at * 12, at * 12 + 12);
const colourOf = (at) => [...shell.rgb.slice(at * 3, at * 3 + 3).map((value) => value / 255), 1];

/** Sizes follow the scene: a step of a metre gives cameras of 13 cm. */
function cameraSize() {
  const from = scene.root ?? scene.taken.find(Boolean);
  if (!from || !shell.rows.length) return 0.13;
  const away = shell.rows.map((_, at) => Math.hypot(...subtract(centre(poseOf(at)), centre(from)))).sort((a, b) => a - b);
  return Math.min(5, Math.max(0.005, 0.13 * away[away.length >> 1]));
}

function showStep() {
  const selected = Number(part('step-candidates').dataset.selected || -1);
  const step = Number(query().get('step') ?? 1) - 1;
  const size = cameraSize();
  const lines = [];
  const marks = [];
  shell.rows.forEach((row, at) => {
    const pose = poseOf(at);
    const colour = colourOf(at);
    const [valid, taken] = [shell.valid[at], shell.taken[at]];
    if (taken || row === selected) lines.push(...frustum(pose, size * 2, WHITE, taken ? 2.5 : 1.75));
    else if (valid && shell.rows.length <= MOST_FRUSTA) lines.push(...frustum(pose, size, colour, 1.25));
    marks.push([centre(pose), colour, taken ? 15 : 10, valid ? DISC : CROSS, row]);
    if (taken) marks.push([centre(pose), WHITE, 24, RING, null]);
    if (row === selected && !taken) marks.push([centre(pose), WHITE, 19, RING, null]);
  });
  const chain = [scene.root, ...scene.taken].filter(Boolean).map(centre);
  lines.push(...path(scene.walk, WALK, 3), ...path(chain, WHITE, 2.5));
  scene.taken.forEach((pose, at) => {
    if (pose && at !== step) marks.push([centre(pose), WHITE, 9, SQUARE, null]);
  });
  if (scene.target) lines.push(...box(scene.target.pose, scene.target.extents.map((length) => length * 1.06), TARGET, 2.5));
  if (scene.root) lines.push(...frustum(scene.root, size * 1.5, WALK, 2));
  view.showLines(lines);
  view.showMarks(marks);
  part('step-legend').querySelector('[data-walk]').hidden = scene.walk.length < 2;
}

// ------------------------------------------------------------------------------------------ address

/** The camera stands in the address and in every link of the page. */
function keepView() {
  const here = new URL(location.href);
  here.searchParams.set('view', view.orbit);
  const plain = (address) => address.href.replaceAll('%2C', ',');
  history.replaceState(history.state, '', plain(here));
  for (const link of document.querySelectorAll('a[data-swap]')) {
    const address = new URL(link.href);
    address.searchParams.set('view', view.orbit);
    link.href = plain(address);
  }
}

/** Takes the parts of another page of this rollout over into this one. */
async function go(address, remember = true) {
  const turn = ++asked;
  let fresh;
  try {
    const text = await (await load(address)).text();
    if (turn !== asked) return;
    fresh = new DOMParser().parseFromString(text, 'text/html');
    if (!fresh.getElementById('step-candidates')) throw new Error('another page');
  } catch {
    location.assign(address);
    return;
  }
  if (remember) history.pushState(null, '', address);
  const focused = document.activeElement?.id;
  for (const old of document.querySelectorAll('[data-part]')) old.replaceWith(document.adoptNode(fresh.getElementById(old.id)));
  document.title = fresh.title;
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  showLinkButton();
  await refresh(turn);
}

/** Draws the candidates that the page is about now. */
async function refresh(turn) {
  if (!view) return;
  try {
    const address = part('step-candidates').dataset.candidates;
    const answer = shell?.address === address ? shell : { ...(await (await load(address)).json()), address };
    if (turn !== asked) return;
    shell = answer;
    showStep();
    well.dataset.shown = address;
    say('');
  } catch {
    say('The candidates could not be loaded. Load the page again.');
  }
}

function showLinkButton() {
  document.querySelector('[data-link]').hidden = false;
}

async function copyLink(button) {
  const words = button.querySelector('span');
  words.textContent = (await copied(location.href)) ? 'Link copied' : 'Copy the address of this page';
}

// --------------------------------------------------------------------------------------------- start

document.addEventListener('click', (event) => {
  const link = event.target.closest('a[data-swap]');
  const button = event.target.closest('[data-link]');
  if (button) copyLink(button);
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.href);
});

document.addEventListener('keydown', (event) => {
  if (event.defaultPrevented || isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...document.querySelectorAll('[data-row]')];
  const at = rows.findIndex((row) => row.closest('[aria-selected]'));
  const links = {
    ',': part('step-previous'),
    ArrowLeft: part('step-previous'),
    '.': part('step-next'),
    ArrowRight: part('step-next'),
    j: rows[at + 1],
    k: rows[at - 1],
  };
  if (!links[event.key]) return;
  event.preventDefault();
  links[event.key].click();
});

addEventListener('popstate', () => {
  if (view?.orbit.read(query().get('view'))) view.redraw();
  go(location.href, false);
});

function pick(row) {
  const address = new URL(location.href);
  address.searchParams.set('cand', row);
  go(address.href.replaceAll('%2C', ','));
}

async function start() {
  showLinkButton();
  try {
    view = new View3D(canvas, { onpick: pick, onstill: keepView });
  } catch {
    canvas.hidden = true;
    say('This browser cannot draw in 3D: it has no WebGL2. The table and the pictures on this page show the same candidates.');
    return;
  }
  try {
    scene = unpacked(await (await load(well.dataset.scene)).arrayBuffer());
  } catch {
    say('The scene could not be loaded. Load the page again.');
    return;
  }
  await refresh(asked);
  if (!shell) return;
  showScene();
  if (!view.orbit.read(query().get('view'))) wholeView();
  view.redraw();
  well.dataset.ready = '';
}

start();
