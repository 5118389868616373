// What every page has: times in the reader's zone, copy buttons, the theme, `/` for the search box, `?` for the keys.

const root = document.body.dataset.root;
const OPEN = 'details:is(.account, .menu, .pop)[open]';

/** Writes every <time> in the reader's own zone; its title stays in UTC. */
export function localTimes(within = document) {
  const today = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
  const other = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit' });
  for (const element of within.querySelectorAll('time[datetime]')) {
    const at = new Date(element.dateTime);
    const isToday = at.toDateString() === new Date().toDateString();
    element.textContent = isToday ? `today, ${today.format(at)}` : other.format(at);
  }
}

/** A path of ours as the browser has to ask for it. */
export function url(path) {
  return root + path;
}

/** Is the keyboard writing text now? Then its keys are not commands. */
export function isTyping(event) {
  return event.target.closest('input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable]') !== null;
}

/**
 * Puts a text into the clipboard. Browsers have `navigator.clipboard` over https and on the own machine only; a server
 * in a workshop is often reached over plain http.
 * @returns {Promise<boolean>} whether it is there
 */
export async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = document.createElement('textarea');
  field.className = 'unseen';
  field.value = text;
  const focused = document.activeElement;
  (focused?.closest('dialog') ?? document.body).append(field);
  field.select();
  const isDone = document.execCommand('copy');
  field.remove();
  focused?.focus({ preventScroll: true });
  return isDone;
}

async function copy(button) {
  const shown = button.parentElement.querySelector('pre, code');
  if (await copied(button.dataset.copy || shown.textContent)) {
    button.setAttribute('aria-label', 'Copied');
    button.classList.add('done');
  } else if (shown) getSelection().selectAllChildren(shown);
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  const theme = dark ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  document.cookie = `rollbook_theme=${theme}; path=${root || '/'}; max-age=31536000; samesite=lax`;
  dispatchEvent(new Event('themechange'));
}

function showKeyMap() {
  import('./keymap.js').then((map) => map.show());
}

document.addEventListener('click', (event) => {
  const button = event.target.closest('[data-copy]');
  if (button) copy(button);
  if (event.target.closest('[data-theme-switch]')) switchTheme();
  if (event.target.closest('[data-key-map]')) showKeyMap();
  for (const open of document.querySelectorAll(OPEN)) {
    if (!open.contains(event.target)) open.open = false;
  }
});

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') {
    for (const open of document.querySelectorAll(OPEN)) {
      open.open = false;
      open.querySelector('summary').focus();
      event.preventDefault(); // it has done its work
    }
  }
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === '/') {
    event.preventDefault();
    document.querySelector('.find input')?.focus();
  }
  if (event.key === '?') showKeyMap();
});

localTimes();
