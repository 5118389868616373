// The page of an eval run: what a pair is when it is pointed at, `n` and `p` from pair to pair, and live progress.

import { isTyping } from './portal.js';

/** Shows the words of the pair that is pointed at or focused, instead of the slow tooltip of the browser. */
function tips(box) {
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  box.append(tip);
  for (const title of box.querySelectorAll('a > title')) {
    title.parentElement.setAttribute('aria-label', title.textContent);
    title.remove();
  }
  const show = (event) => {
    const link = event.target.closest('a[aria-label]');
    tip.hidden = link === null;
    if (link === null) return;
    tip.textContent = link.getAttribute('aria-label');
    const at = link.querySelector('.hit').getBoundingClientRect();
    const within = box.getBoundingClientRect();
    const right = at.right - within.left + 8;
    const left = right + tip.offsetWidth > within.width ? at.left - within.left - tip.offsetWidth - 8 : right;
    tip.style.transform = `translate(${Math.max(0, left)}px, 56px)`;
  };
  box.addEventListener('pointerover', show);
  box.addEventListener('focusin', show);
  box.addEventListener('pointerleave', () => { tip.hidden = true; });
  box.addEventListener('focusout', () => { tip.hidden = true; });
}

/** Moves the one stop of the keyboard from pair to pair; Enter opens it. */
function walk(box, step) {
  const links = [...box.querySelectorAll('a')];
  const now = links.findIndex((link) => link === document.activeElement);
  const next = links[Math.min(Math.max(now === -1 ? (step > 0 ? 0 : links.length - 1) : now + step, 0), links.length - 1)];
  for (const link of links) link.tabIndex = link === next ? 0 : -1;
  next.focus();
  next.querySelector('.hit').scrollIntoView({ block: 'nearest', inline: 'center' });
}

/** Asks for the progress of the run, less and less often, and not while nobody looks. */
function follow(banner) {
  const part = (name) => banner.querySelector(`[data-progress-${name}]`);
  let wait = 1000;
  let timer = 0;
  const again = () => { timer = setTimeout(ask, wait); };
  const ask = async () => {
    timer = 0;
    if (document.hidden) return;
    let now;
    try {
      const answer = await fetch(banner.dataset.progress, { redirect: 'error' });
      if (!answer.ok) throw new Error(String(answer.status));
      now = await answer.json();
    } catch {
      part('pace').textContent = 'The server does not answer; this page asks again.';
      wait = Math.min(wait * 2, 60000);
      again();
      return;
    }
    if (now.ended) {
      location.reload();
      return;
    }
    wait = part('text').textContent === now.text ? Math.min(wait * 1.5, 15000) : 1000;
    part('text').textContent = now.text;
    part('pace').textContent = now.pace;
    part('bar').setAttribute('width', `${(100 * now.done) / Math.max(now.total, 1)}%`);
    again();
  };
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && timer === 0) { wait = 1000; ask(); }
  });
  again();
}

const dots = document.querySelector('[data-dots]');
if (dots) {
  tips(dots);
  document.addEventListener('keydown', (event) => {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { n: 1, p: -1 }[event.key] ?? (dots.contains(document.activeElement) ? { ArrowRight: 1, ArrowLeft: -1 }[event.key] : undefined);
    if (step === undefined) return;
    event.preventDefault();
    walk(dots, step);
  });
}

const banner = document.querySelector('[data-progress]');
if (banner) follow(banner);
