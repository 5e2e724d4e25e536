// The requests that this tab has made, latest first: their ids alone, until it is closed.

const KEPT = 50;
const ids = [];

export function remember(id) {
  if (!id) return;
  ids.unshift(id);
  ids.length = Math.min(ids.length, KEPT);
}

export function visited() {
  return [...ids];
}
