// The channel picker: topics with their channels, a box to filter them, and check boxes to show and hide.

import { EVERY } from './tracks.js';

/**
 * Fills `.picker` and keeps it in step with the timeline.
 * @param {HTMLElement} panel
 * @param {import('./tracks.js').Timeline} timeline
 */
export function fillPicker(panel, timeline) {
  const list = panel.querySelector('[data-topics]');
  const filter = panel.querySelector('input[type=search]');
  const boxes = new Map();
  const groups = [];

  function apply() {
    timeline.choose([...boxes].filter(([, box]) => box.checked).map(([name]) => name));
  }

  function checkBox(text, change) {
    const label = document.createElement('label');
    const box = document.createElement('input');
    box.type = 'checkbox';
    box.addEventListener('change', change);
    const words = document.createElement('span');
    words.className = 'clip';
    words.textContent = words.title = text;
    label.append(box, words);
    return [label, box];
  }

  for (const [topic, channels] of timeline.topics()) {
    const group = document.createElement('fieldset');
    const legend = document.createElement('legend');
    const [whole, all] = checkBox(topic, () => {
      for (const channel of channels) boxes.get(channel.name).checked = all.checked;
      apply();
    });
    legend.append(whole);
    group.append(legend);
    for (const channel of channels) {
      const [label, box] = checkBox(channel.label || channel.name, apply);
      label.dataset.name = channel.name.toLowerCase();
      boxes.set(channel.name, box);
      if (channels.length > 1) group.append(label);
    }
    groups.push({ group, all, channels, words: topic.toLowerCase() });
    list.append(group);
  }

  function show() {
    for (const [name, box] of boxes) box.checked = timeline.isShown(name);
    for (const { all, channels } of groups) {
      const shown = channels.filter((each) => boxes.get(each.name).checked).length;
      all.checked = shown === channels.length;
      all.indeterminate = shown > 0 && shown < channels.length;
    }
  }

  filter.addEventListener('input', () => {
    const wanted = filter.value.trim().toLowerCase();
    for (const { group, words } of groups) {
      const labels = [...group.querySelectorAll(':scope > label')];
      for (const label of labels) label.hidden = !words.includes(wanted) && !label.dataset.name.includes(wanted);
      group.hidden = !words.includes(wanted) && labels.every((label) => label.hidden);
    }
  });
  panel.querySelector('[data-all]').addEventListener('click', () => timeline.choose([EVERY]));
  panel.querySelector('[data-none]').addEventListener('click', () => timeline.choose([]));
  panel.querySelector('[data-usual]').addEventListener('click', () => timeline.choose(null));
  timeline.on(show);
  show();
}
