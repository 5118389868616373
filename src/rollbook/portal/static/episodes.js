// The list of episodes: choosing rows with the mouse and the keyboard, and menus that close.

import { copied, isTyping } from './portal.js';

const form = document.querySelector('#picked');
const boxes = form ? [...form.querySelectorAll('tbody input[type=checkbox]')] : [];
const all = document.querySelector('#pick-all');
let last = null;

/** Shows how many are chosen, and the bar only when there are some. */
function refresh() {
  const count = boxes.filter((box) => box.checked).length;
  for (const box of boxes) box.closest('tr').setAttribute('aria-selected', box.checked);
  form.querySelector('.selbar').hidden = count === 0;
  form.querySelector('[data-picked]').textContent = `${count} selected`;
  form.querySelector('[data-cli]').hidden = false;
  all.checked = count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

/** With shift, everything between the last choice and this one becomes like this one. */
function choose(box, shift) {
  if (shift && last !== null) {
    const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
    for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
  }
  last = box;
  refresh();
}

/** The row that has the focus, or that had it last. */
function rowNow() {
  const row = document.activeElement?.closest?.('#picked tbody tr');
  return row ? boxes.findIndex((box) => row.contains(box)) : -1;
}

function move(by) {
  const next = Math.max(0, Math.min(boxes.length - 1, rowNow() + by));
  const link = boxes[next].closest('tr').querySelector('a');
  link.focus();
  link.closest('tr').scrollIntoView({ block: 'nearest' });
}

function onKey(event) {
  // what closes a menu or the map of keys does not clear the selection as well
  if (event.defaultPrevented || document.querySelector('dialog[open]')) return;
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'j') move(1);
  else if (event.key === 'k') move(-1);
  else if (event.key === 'x' && rowNow() >= 0) {
    const box = boxes[rowNow()];
    box.checked = !box.checked;
    choose(box, false);
  } else if (event.key === 'Escape') {
    form.reset();
    refresh();
  }
}

if (form) {
  all.hidden = false;
  all.addEventListener('change', () => {
    for (const box of boxes) box.checked = all.checked;
    refresh();
  });
  for (const box of boxes) box.addEventListener('click', (event) => choose(box, event.shiftKey));
  form.addEventListener('reset', () => setTimeout(refresh));
  document.addEventListener('keydown', onKey);
  // a page that the browser shows again keeps its check marks
  addEventListener('pageshow', refresh);
  refresh();
}

const filters = document.querySelector('form.filters');
// only fields with something in them belong into the address
filters.addEventListener('submit', () => {
  for (const field of filters.elements) if (field.name && field.value === '') field.disabled = true;
});
addEventListener('pageshow', () => {
  for (const field of filters.elements) field.disabled = false;
});
document.addEventListener('click', (event) => {
  for (const open of filters.querySelectorAll('details[open]')) {
    if (!open.contains(event.target)) open.open = false;
  }
});
filters.addEventListener('keydown', (event) => {
  const open = event.target.closest('details[open]');
  if (event.key !== 'Escape' || !open) return;
  event.stopPropagation();
  open.open = false;
  open.querySelector('summary').focus();
});
for (const menu of filters.querySelectorAll('details')) {
  menu.addEventListener('toggle', () => menu.open && menu.querySelector('input, select, a')?.focus());
}

// the answer to a form is the list itself: from here on the address is that of the list, and loading it again sends nothing
const done = document.querySelector('[data-address]');
if (done) history.replaceState(null, '', done.dataset.address);

const link = document.querySelector('[data-copy-address]');
link.hidden = false;
link.addEventListener('click', async () => {
  if (await copied(location.href)) link.classList.add('done');
});
