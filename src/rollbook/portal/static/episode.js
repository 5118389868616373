// A page with a timeline: one episode, several side by side, or a pair. Joins the clock, the pictures, the tracks, the
// transport, the keys and the address of the page.

import { fillPicker } from './channels.js';
import { Clock } from './clock.js';
import { FrameTimes, ImagePlayer, VideoPlayer } from './player.js';
import { copied, isTyping } from './portal.js';
import { Timeline } from './tracks.js';

const POLL_MS = 3000;
const MOST_POLLS = 200;
const REPLACE_MS = 250;
const SETTLED_MS = 700;
const LEAST_MOVE = 4;
const LEAST_SPREAD = 8;
const LONGEST_QUERY = 8000;
const NOT_PLAYED = 'This browser cannot play the video. The page of the episode offers it as a download.';

const root = document.querySelector('[data-timeline]');
const transport = document.querySelector('[data-transport]');
const find = (name) => transport.querySelector(`[data-${name}]`);

const clock = new Clock(Number(root.dataset.duration));
const timeline = new Timeline(root, clock, JSON.parse(root.dataset.sources));
timeline.marks = JSON.parse(root.dataset.marks);
/** @type {(VideoPlayer|ImagePlayer)[]} */
const players = [];

/** For modules of pages that have more than a timeline, such as a pair. */
export const stage = { clock, timeline, players };

clock.source = () => {
  for (const player of players) {
    const time = player.runningTime();
    if (time !== null) return time;
  }
  return null;
};

// ------------------------------------------------------------------------------------------- pictures

async function openVideo(well) {
  const video = well.querySelector('video');
  for (let polls = 0; polls < MOST_POLLS; polls++) {
    const facts = await factsOf(well.dataset.video);
    if (facts.state === 'ready') {
      sayInstead(well, '');
      if (!video.getAttribute('src')) video.src = facts.src;
      video.controls = false;
      noteFirstFrame(video);
      fit(well, video.videoWidth, video.videoHeight);
      video.addEventListener('loadedmetadata', () => fit(well, video.videoWidth, video.videoHeight));
      add(new VideoPlayer(video, clock, new FrameTimes(facts), (failed) => sayInstead(well, failed ? NOT_PLAYED : '')), well);
      return;
    }
    if (facts.state === 'refused') {
      sayInstead(well, facts.why);
      return;
    }
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

/** Words in place of the video; without words the video is shown. */
function sayInstead(well, text) {
  let words = well.querySelector('[data-waiting]');
  well.querySelector('video').hidden = text !== '';
  if (!text) {
    words?.remove();
    return;
  }
  if (!words) {
    words = document.createElement('p');
    words.className = 'instead';
    words.dataset.waiting = '';
    words.setAttribute('role', 'status');
    well.append(words);
  }
  words.textContent = text;
}

/** A request that is lost is asked again, like one that was too early. */
async function factsOf(address) {
  try {
    const answer = await fetch(address);
    return answer.ok ? await answer.json() : { state: 'refused', why: `The video cannot be read (${answer.status}).` };
  } catch {
    return { state: 'lost' };
  }
}

/** The picture keeps its own shape, unless it is very tall or very wide. */
function fit(well, width, height) {
  if (width && height) well.style.aspectRatio = String(Math.min(3, Math.max(1, width / height)));
}

function noteFirstFrame(video) {
  const note = () => {
    performance.mark('rollbook:first-frame');
    video.dataset.ready = 'true';
  };
  if (video.readyState >= 2) note();
  else video.addEventListener('loadeddata', note, { once: true });
}

/** Shows image arrays where there is no video. */
function openImages(well, source) {
  const images = source.whole?.head.images ?? [];
  if (!images.length) return;
  const canvas = document.createElement('canvas');
  canvas.setAttribute('role', 'img');
  well.querySelector('[data-waiting]')?.remove();
  well.append(canvas);
  well.hidden = false;
  const pick = well.querySelector('select');
  const open = (image) => {
    canvas.setAttribute('aria-label', `Frames of ${image.name}`);
    fit(well, image.width, image.height);
    const address = (frame) => `${well.dataset.images}/${encodeURIComponent(image.name)}/${frame}`;
    const frames = new FrameTimes({ fps: image.rate, frames: image.frames, times: image.times });
    const [old] = players.filter((each) => each.canvas === canvas);
    if (old) Object.assign(old, { frames, address }).again();
    else add(new ImagePlayer(canvas, clock, frames, address), well);
  };
  for (const image of images) pick.add(new Option(image.name));
  pick.parentElement.hidden = false;
  pick.addEventListener('change', () => open(images[pick.selectedIndex]));
  open(images[0]);
}

/** In the order of the page: the frame of the first is the one that is counted. */
function add(player, well) {
  player.number = Number(well.dataset.source);
  players.push(player);
  players.sort((one, other) => one.number - other.number);
  const { end } = player.frames;
  if (end && end > clock.duration) clock.duration = end;
  show();
}

// ------------------------------------------------------------------------------------------ transport

const now = find('now');
const total = find('total');
const frame = find('frame');
const linkText = find('link-text');
const wells = document.querySelectorAll('[data-ends]');

function show() {
  const text = clock.time.toFixed(3);
  if (now.textContent !== text) {
    now.textContent = text;
    linkText.textContent = `Link to ${text} s`;
  }
  const [first] = players;
  const which = first ? frameText(first.frames) : '';
  if (frame.textContent !== which) frame.textContent = which;
  for (const well of wells) {
    well.toggleAttribute('data-over', clock.time > Number(well.dataset.ends) + 1e-3);
  }
}

function frameText(frames) {
  return `frame ${frames.frameAt(clock.time)}${frames.count ? ` of ${frames.count}` : ''}`;
}

function showState() {
  total.textContent = clock.duration.toFixed(3);
  root.querySelector('.ruler .plot').setAttribute('aria-valuemax', clock.duration.toFixed(3));
  transport.classList.toggle('playing', clock.playing);
  find('play').setAttribute('aria-label', clock.playing ? 'Pause (space)' : 'Play (space)');
  for (const button of transport.querySelectorAll('[data-rate]')) {
    button.setAttribute('aria-pressed', String(Number(button.dataset.rate) === clock.rate));
  }
}

function stepFrame(by) {
  clock.pause();
  const [first] = players;
  const frames = first?.frames ?? new FrameTimes({ fps: Number(root.dataset.fps) || null, frames: null });
  clock.seek(frames.timeOf(frames.frameAt(clock.time) + by));
}

function stepMark(by) {
  const times = [...new Set(timeline.marks.map((each) => Math.round(each.at * 1000) / 1000))].sort((a, b) => a - b);
  const next = by > 0 ? times.find((each) => each > clock.time + 5e-4) : times.findLast((each) => each < clock.time - 5e-4);
  if (next !== undefined) clock.seek(next);
}

const DEEDS = {
  back: () => stepFrame(-1),
  play: () => clock.toggle(),
  on: () => stepFrame(1),
  'zoom-out': () => timeline.zoom(2),
  'zoom-in': () => timeline.zoom(0.5),
  'zoom-all': () => timeline.showAll(),
  link: copyLink,
  choose: togglePicker,
};

for (const [name, deed] of Object.entries(DEEDS)) {
  for (const button of document.querySelectorAll(`[data-${name}]`)) button.addEventListener('click', deed);
}
for (const button of transport.querySelectorAll('[data-rate]')) {
  button.addEventListener('click', () => clock.setRate(Number(button.dataset.rate)));
}

/** After a click with the mouse, space plays again and does not press the same button. */
transport.addEventListener('click', (event) => event.detail && event.target.closest('button')?.blur());

async function copyLink() {
  writeAddress('replaceState');
  linkText.textContent = (await copied(location.href)) ? 'Copied' : 'It is in the address bar';
}

function togglePicker() {
  const panel = document.querySelector('[data-picker]');
  panel.hidden = !panel.hidden;
  for (const button of document.querySelectorAll('[data-choose]')) button.setAttribute('aria-expanded', String(!panel.hidden));
  if (!panel.hidden) panel.querySelector('input').focus();
}

// ----------------------------------------------------------------------------------------------- keys

const KEYS = {
  ' ': () => clock.toggle(),
  ArrowLeft: (event) => clock.seek(clock.time - (event.shiftKey ? 5 : 1)),
  ArrowRight: (event) => clock.seek(clock.time + (event.shiftKey ? 5 : 1)),
  ',': () => stepFrame(-1),
  '.': () => stepFrame(1),
  '[': () => stepMark(-1),
  ']': () => stepMark(1),
  '+': () => timeline.zoom(0.5),
  '=': () => timeline.zoom(0.5),
  '-': () => timeline.zoom(2),
  0: () => timeline.showAll(),
  Home: () => clock.seek(0),
  End: () => clock.seek(clock.duration),
};

document.addEventListener('keydown', (event) => {
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector('dialog[open]')) return;
  const isPressed = event.target.closest('button, a, summary, select, label');
  if (event.key === ' ' && isPressed) return; // space presses what has the focus
  const deed = KEYS[event.key];
  if (!deed) return;
  event.preventDefault();
  deed(event);
});

// -------------------------------------------------------------------------------------------- pointer

/** Where each pointer is, and whether it scrubs. A finger does so once it moves sideways: up and down scrolls the page. */
const held = new Map();
let spread = 0;

root.addEventListener('pointerdown', (event) => {
  if (!event.target.closest('.plot') || event.button !== 0) return;
  const scrubs = event.pointerType !== 'touch';
  held.set(event.pointerId, { x: event.clientX, from: event.clientX, scrubs });
  event.target.setPointerCapture(event.pointerId);
  spread = spreadOf();
  if (scrubs) clock.seek(timeline.timeAt(event.clientX), false);
});
root.addEventListener('pointermove', (event) => {
  const pointer = held.get(event.pointerId);
  if (!pointer) return;
  pointer.x = event.clientX;
  if (held.size > 1) {
    const wide = spreadOf();
    if (wide > LEAST_SPREAD && spread > LEAST_SPREAD) timeline.zoom(spread / wide);
    spread = wide;
    return;
  }
  pointer.scrubs ||= Math.abs(pointer.x - pointer.from) > LEAST_MOVE;
  if (pointer.scrubs) clock.seek(timeline.timeAt(pointer.x), false);
});
root.addEventListener('pointerup', (event) => {
  const pointer = held.get(event.pointerId);
  if (!held.delete(event.pointerId) || held.size) return;
  clock.seek(pointer.scrubs ? clock.time : timeline.timeAt(event.clientX));
  endStep();
});
root.addEventListener('pointercancel', (event) => {
  if (held.get(event.pointerId)?.scrubs) clock.seek(clock.time);
  held.delete(event.pointerId);
});

function spreadOf() {
  const places = [...held.values()].map((each) => each.x);
  return Math.max(...places) - Math.min(...places);
}

root.addEventListener(
  'wheel',
  (event) => {
    if (!event.target.closest('.plot')) return;
    const span = timeline.to - timeline.from;
    if (event.ctrlKey || event.altKey) {
      timeline.zoom(event.deltaY > 0 ? 1.25 : 0.8, timeline.timeAt(event.clientX));
    } else if (timeline.isZoomed && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (event.deltaX / root.clientWidth) * span;
      timeline.window(timeline.from + by, timeline.to + by);
    } else return;
    event.preventDefault();
  },
  { passive: false },
);

// -------------------------------------------------------------------------------------------- address

/** `12340ms`; null for anything else. */
function secondsOf(text) {
  const found = /^(\d{1,9})ms$/.exec(text ?? '');
  return found ? Number(found[1]) / 1000 : null;
}

const inMs = (seconds) => `${Math.round(seconds * 1000)}ms`;

function writeAddress(how) {
  const query = new URLSearchParams(location.search);
  for (const name of ['t', 'from', 'to', 'ch']) query.delete(name);
  if (clock.time > 0) query.set('t', inMs(clock.time));
  if (timeline.isZoomed) {
    query.set('from', inMs(timeline.from));
    query.set('to', inMs(timeline.to));
  }
  // `ch=` alone: none is shown. A choice of hundreds makes an address that no server takes
  for (const name of timeline.chosen?.length === 0 ? [''] : timeline.chosen ?? []) query.append('ch', name);
  if (String(query).length > LONGEST_QUERY) query.delete('ch');
  const search = query.size ? `?${query}` : '';
  if (search !== location.search) history[how](null, '', search || location.pathname);
}

function readAddress(search = location.search) {
  const query = new URLSearchParams(search);
  const [from, to] = [secondsOf(query.get('from')), secondsOf(query.get('to'))];
  timeline.showAll();
  clock.seek(secondsOf(query.get('t')) ?? 0, false);
  // last: a window follows the time when that moves
  if (from !== null && to !== null && from < to) timeline.window(from, to);
  const channels = query.getAll('ch');
  timeline.chosen = channels.length ? channels : null;
}

/** What the page was opened with. How long a recording is may be known only when it has arrived: until the reader moves,
 *  a longer one is shown where the address says. */
const opened = { search: location.search, duration: clock.duration, isLeft: false };

function readAgain() {
  if (opened.isLeft || clock.duration <= opened.duration) return;
  opened.duration = clock.duration;
  readAddress(opened.search);
  opened.isLeft = false;
}

/** Does the next change open a step of its own in the history? Not before the page has come to rest. */
let opensStep = false;
let writing = 0;
let settling = 0;

/** A move is one step in the history, which follows it. Browsers refuse more than some changes a second. */
function addressLater(settled) {
  if (!writing && !clock.playing) writing = setTimeout(writeStep, REPLACE_MS);
  clearTimeout(settling);
  if (settled) settling = setTimeout(endStep, SETTLED_MS);
}

function writeStep() {
  clearTimeout(writing);
  writing = 0;
  writeAddress(opensStep ? 'pushState' : 'replaceState');
  opensStep = false;
}

function endStep() {
  clearTimeout(settling);
  if (writing) writeStep();
  opensStep = true;
}

addEventListener('popstate', () => {
  readAddress();
  timeline.choose(timeline.chosen);
  endStep();
});

/** A finding that leads to a time on this page does so without loading the page again. */
document.addEventListener('click', (event) => {
  const anchor = event.target.closest('a[href^="?t="]');
  const time = anchor && secondsOf(new URLSearchParams(anchor.search).get('t'));
  if (time === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  clock.seek(time);
  endStep();
});

// --------------------------------------------------------------------------------------------- begin

clock.on((what) => {
  show();
  if (what === 'state') {
    showState();
    readAgain();
    return;
  }
  opened.isLeft = true;
  if (what !== 'tick') addressLater(what === 'settled');
});
timeline.on(() => {
  const topics = [...timeline.topics().values()].flat();
  const shown = topics.filter((each) => timeline.isShown(each.name)).length;
  root.querySelector('[data-shown]').textContent = `${shown} of ${topics.length} channel${topics.length === 1 ? '' : 's'}`;
  for (const button of document.querySelectorAll('[data-zoom-all]')) button.hidden = !timeline.isZoomed;
  addressLater(false);
});

readAddress();
opened.isLeft = false;
showState();
show();
for (const well of document.querySelectorAll('.well[data-video]')) openVideo(well);
await timeline.load();
performance.mark('rollbook:tracks');
const panel = document.querySelector('[data-picker]');
fillPicker(panel, timeline);
for (const [number, source] of timeline.sources.entries()) {
  for (const well of document.querySelectorAll(`.well[data-images][data-source="${number}"]`)) openImages(well, source);
}
const notes = timeline.sources.flatMap((source) => notesOf(source));
const list = document.querySelector('[data-notes]');
list.hidden = !notes.length;
list.append(
  ...notes.map((text) => {
    const item = document.createElement('li');
    item.textContent = text;
    return item;
  }),
);
root.dataset.ready = 'true';
endStep();

/** What could not be drawn, and why. */
function notesOf(source) {
  const before = timeline.sources.length > 1 ? `${source.name}: ` : '';
  if (source.problem) return [`${before}${source.problem}`];
  const { channels, skipped } = source.whole.head;
  const none = channels.length || skipped.length ? [] : [`${before}there are no sensors or actions to draw`];
  return [...none, ...skipped.map((each) => `${before}${each.name}: ${each.why}`)];
}
