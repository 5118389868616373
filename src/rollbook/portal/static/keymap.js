// The map of keys, which `?` opens.

const KEYS = [
  ['Everywhere', [['/', 'find an id or a name'], ['?', 'this map'], ['esc', 'close, or clear the selection']]],
  ['Lists', [['j k', 'next and previous row'], ['x', 'select the row'], ['enter', 'open it']]],
  ['An episode on its timeline', [
    ['space', 'play or pause'], ['← →', 'one second; with shift five'], [', .', 'one frame'],
    ['[ ]', 'previous and next finding'], ['+ -', 'zoom'], ['0', 'the whole episode'],
  ]],
  ['A pair', [['n p', 'the next worse or better pair']]],
  ['3D', [['← → ↑ ↓', 'turn'], ['+ -', 'nearer and farther']]],
];

function element(name, content = [], attributes = {}) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...content);
  return made;
}

function map() {
  const list = element('dl', KEYS.flatMap(([heading, rows]) => [
    element('h3', [heading]),
    ...rows.flatMap(([keys, text]) => [
      element('dt', keys.split(' ').map((key) => element('kbd', [key]))),
      element('dd', [text]),
    ]),
  ]));
  const close = element('button', ['Close'], { className: 'btn sm', type: 'button' });
  const heading = element('h2', ['Keyboard'], { id: 'keymap-heading' });
  const dialog = element('dialog', [element('header', [heading, close]), list], { className: 'keymap' });
  dialog.setAttribute('aria-labelledby', heading.id);
  close.addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

/** Opens the map, or closes it when it is open. */
export function show() {
  let dialog = document.querySelector('dialog.keymap');
  if (!dialog) document.body.append(dialog = map());
  if (dialog.open) dialog.close();
  else dialog.showModal();
}
