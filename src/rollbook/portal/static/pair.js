// The page of a pair: `n` and `p` go to the next worse or better pair. With something to draw, its timeline follows.

import { isTyping } from './portal.js';

document.addEventListener('keydown', (event) => {
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  const link = { n: '[data-worse]', p: '[data-better]' }[event.key];
  if (link) document.querySelector(link)?.click();
});

if (document.querySelector('[data-timeline]')) import('./differences.js');
