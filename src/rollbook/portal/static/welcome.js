// The page of an organisation without episodes: it looks for the first one, and stops after a while.

import { url } from './portal.js';

const EVERY_MS = 2000;
const waiting = document.querySelector('[data-waiting]');
const until = Date.now() + 600_000;

/** The page may show a key that nobody can read again, so it never reloads by itself. */
function arrived() {
  const link = document.createElement('a');
  link.href = url('/portal');
  link.textContent = 'The first episode is here: open the overview.';
  waiting.querySelector('span').replaceChildren(link);
}

async function look() {
  if (Date.now() > until) {
    waiting.querySelector('span').textContent = 'This page stopped looking. Reload it to see what was recorded.';
    return;
  }
  const answer = await fetch(url('/api/usage')).catch(() => null);
  if (answer?.ok && (await answer.json()).episodes > 0) arrived();
  else setTimeout(look, EVERY_MS);
}

waiting.hidden = false;
setTimeout(look, EVERY_MS);
