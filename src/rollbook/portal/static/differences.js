// Where the actions of a pair differ most: buttons that lead there, and marks on the ruler.

import { stage } from './episode.js';

const MOST_PEAKS = 3;
const APART = 0.06; // of the whole time
const LEAST = 0.15; // of the largest difference

/**
 * The times at which a difference is largest, each some time from the others.
 * @param {{head: object, data: Float32Array}} columns
 * @returns {number[]} seconds
 */
export function peaks({ head, data }) {
  const found = [];
  const step = (head.to - head.from) / head.columns;
  for (let channel = 0; channel < head.channels.length; channel++) {
    const { hi } = head.channels[channel];
    for (let column = 0; column < head.columns; column++) {
      const value = data[(channel * head.columns + column) * 2 + 1] / (hi || 1);
      if (value > LEAST) found.push([value, head.from + (column + 0.5) * step]);
    }
  }
  found.sort((one, other) => other[0] - one[0]);
  const chosen = [];
  for (const [, time] of found) {
    if (chosen.every((each) => Math.abs(each - time) > APART * head.duration)) chosen.push(time);
    if (chosen.length === MOST_PEAKS) break;
  }
  return chosen;
}

function showPeaks(times) {
  const place = document.querySelector('[data-peaks]');
  for (const time of times) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'btn sm';
    button.textContent = `${time.toFixed(2)} s`;
    button.addEventListener('click', () => stage.clock.seek(time));
    place.append(button);
  }
  place.hidden = !times.length;
  stage.timeline.marks.push(...times.map((at) => ({ at, until: null, channel: null, failure: false })));
  stage.timeline.draw();
}

const difference = stage.timeline.sources.find((each) => each.kind === 'difference')?.whole;
if (difference?.data.length) showPeaks(peaks(difference));
