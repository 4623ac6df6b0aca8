"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

// 17 of the 256 colors of matplotlib's viridis, whose lightness grows evenly.
const VIRIDIS = ("440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c " +
  "1f9f88 27ad81 3dbc74 5cc863 81d34d aadc32 d5e21a fde725").split(" ")
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

function color(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const below = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[below].map((low, i) =>
    Math.round(low + (place - below) * (VIRIDIS[below + 1][i] - low)));
}

function decoded(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// One pixel for each patch; CSS enlarges it. `paint` gives red, green, blue, alpha.
function draw(canvas, rows, cols, values, paint) {
  canvas.width = cols;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(cols, rows);
  values.forEach((value, i) => image.data.set(paint(value), 4 * i));
  context.putImageData(image, 0, 0);
}

const share = (value, most) => (most > 0 ? Math.min(value / most, 1) : 0);
const PAINTS = {
  map: (most) => (value) => [...color(share(value, most)), 255],
  // The photo is visible where there is no attention.
  heat: (most) => (value) =>
    [...color(share(value, most)), Math.round(255 * share(value, most))],
  mask: (most) => (value) => [0, 0, 0, Math.round(255 * (1 - share(value, most)))],
};

const SCALES = {
  ...PAINTS,
  heat: PAINTS.map,
  mask: (most) => (value) => [...Array(3).fill(255 * share(value, most)), 255],
};

function drawScale(name, least, most, view = "map") {
  draw(at(name), 1, 256, Array.from({length: 256}, (_, i) => i), SCALES[view](255));
  at(name + "-least").textContent = least;
  at(name + "-most").textContent = most;
}

const percent = (share) => (100 * share).toPrecision(3) + " %";

// The image.

let image = 0;
const photo = at("photo");

function showImage() {
  const chosen = document.querySelector('input[name="image"]:checked');
  image = Number(chosen.value);
  photo.src = chosen.nextElementSibling.src;
  photo.alt = data.names[image];
  const {naturalWidth, naturalHeight} = chosen.nextElementSibling;
  photo.className = Math.min(naturalWidth, naturalHeight) < 128 ? "small" : "";
  at("name").textContent = data.names[image];
  document.querySelectorAll(".predictions").forEach((table, i) => {
    table.hidden = i !== image;
  });
}

// Attention.

const attention = data.attention;
let rows = 0, cols = 0, layers = 0, heads = 0;

// One head's map: patches as shares of the attention.
function headMap(layer, head) {
  const map = (image * layers + layer - 1) * heads + head - 1;
  const size = rows * cols;
  const most = attention.most[map];
  const values = Array.from(attention.bytes.subarray(map * size, (map + 1) * size),
    (byte) => byte / 255 * most);
  return {values, total: attention.total[map]};
}

function meanMap(layer) {
  const maps = Array.from({length: heads}, (_, i) => headMap(layer, i + 1));
  const mean = (numbers) => numbers.reduce((sum, one) => sum + one, 0) / heads;
  return {
    values: maps[0].values.map((_, i) => mean(maps.map((map) => map.values[i]))),
    total: mean(maps.map((map) => map.total)),
  };
}

function rolloutMap() {
  const size = rows * cols;
  const most = data.rollout.most[image];
  const values = Array.from(data.rollout.bytes.subarray(image * size, (image + 1) * size),
    (byte) => byte / 255 * most);
  return {values, total: data.rollout.total[image]};
}

// The value with full brightness: the maximum, as in the paper, or the 97 % quantile, so
// that a single bright patch does not darken all others (arXiv:2309.16588).
function fullBrightness(values) {
  if (!at("robust").checked) return Math.max(...values);
  const sorted = [...values].sort((a, b) => a - b);
  const place = 0.97 * (sorted.length - 1), below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

function showAttention() {
  const layer = Number(at("layer").value), head = Number(at("head").value);
  const rollout = at("rollout").checked;
  at("layer-value").textContent = `${layer} of ${layers}`;
  at("head-value").textContent = head ? `${head} of ${heads}` : `mean of ${heads}`;
  at("strength-value").textContent = at("strength").value + " %";
  at("layer").disabled = at("head").disabled = rollout;
  at("strength").disabled = at("view").value === "map";
  at("heads").hidden = rollout;
  const map = rollout ? rolloutMap() : head ? headMap(layer, head) : meanMap(layer);
  const most = Math.max(...map.values);
  const brightest = map.values.indexOf(most);
  const where = rollout ? "Rollout" :
    `Layer ${layer}, ${head ? "head " + head : "mean of heads"}`;
  at("said").textContent = `${where}: ${percent(map.total)} of the attention is on ` +
    `patches; the brightest, row ${Math.floor(brightest / cols) + 1}, column ` +
    `${brightest % cols + 1}, has ${percent(most)}.`;
  const view = at("view").value, canvas = at("map");
  const full = fullBrightness(map.values);
  draw(canvas, rows, cols, map.values, PAINTS[view](full));
  canvas.style.opacity = view === "map" ? 1 : at("strength").value / 100;
  drawScale("scale", "0 %", (full < most ? "≥ " : "") + percent(full), view);
  showHeads(layer, rollout ? 0 : head);
  showDots(rollout ? 0 : layer, head);
}

function showHeads(layer, chosen) {
  document.querySelectorAll("#heads button").forEach((button) => {
    const head = Number(button.value);
    const {values} = headMap(layer, head);
    draw(button.firstElementChild, rows, cols, values, PAINTS.map(fullBrightness(values)));
    button.setAttribute("aria-label", `Head ${head}`);
    button.setAttribute("aria-pressed", String(head === chosen));
  });
}

function showDots(layer, head) {
  document.querySelectorAll("#distance circle").forEach((dot) => {
    const {layer: own, head: its} = dot.dataset;
    const chosen = Number(own) === layer && (head === 0 || Number(its) === head);
    dot.classList.toggle("chosen", chosen);
  });
}

function choose(layer, head) {
  at("rollout").checked = false;
  at("layer").value = layer;
  at("head").value = head;
  showAttention();
}

function startAttention() {
  [, layers, heads, rows, cols] = attention.shape;
  attention.bytes = decoded(attention.bytes);
  data.rollout.bytes = decoded(data.rollout.bytes);
  const canvas = at("map");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-labelledby", "said");
  canvas.style.height = 100 * data.covered[0] + "%";
  canvas.style.width = 100 * data.covered[1] + "%";
  const across = heads < 5 ? Math.max(3, heads) : Math.max(3, Math.ceil(Math.sqrt(heads)));
  document.querySelector(".heads").style.gridTemplateColumns = `repeat(${across}, 1fr)`;
  for (const id of ["layer", "head", "rollout", "robust", "view", "strength"]) {
    at(id).addEventListener("input", showAttention);
  }
  document.querySelectorAll("#heads button").forEach((button) => {
    button.addEventListener("click", () =>
      choose(at("layer").value, Number(button.value)));
  });
  document.querySelectorAll("#distance circle").forEach((dot) => {
    dot.addEventListener("click", () => choose(dot.dataset.layer, dot.dataset.head));
  });
}

// Positions.

const positions = data.positions;

function showPositions() {
  const {shape: [tall, wide], step, low} = positions;
  const row = at("row").value * step, column = at("column").value * step;
  const across = Math.ceil(wide / step), size = tall * wide;
  const start = (at("row").value * across + Number(at("column").value)) * size;
  draw(at("positions"), tall, wide,
    Array.from(positions.bytes.subarray(start, start + size)), PAINTS.map(255));
  at("row-value").textContent = `${row + 1} of ${tall}`;
  at("column-value").textContent = `${column + 1} of ${wide}`;
  document.querySelectorAll("#here rect").forEach((frame) => {
    frame.setAttribute("x", column);
    frame.setAttribute("y", row);
  });
  at("positions").setAttribute("aria-label", "Similarity of all positions to that of the patch in " +
    `row ${row + 1}, column ${column + 1}`);
  drawScale("cosine", low.toFixed(2).replace("-", "\u2212"), "1");
}

function startPositions() {
  const {shape: [tall, wide], step} = positions;
  positions.bytes = decoded(positions.bytes);
  at("positions").setAttribute("role", "img");
  at("row").addEventListener("input", showPositions);
  at("column").addEventListener("input", showPositions);
  at("positions").addEventListener("click", (event) => {
    const box = at("positions").getBoundingClientRect();
    at("row").value = Math.floor((event.clientY - box.top) / box.height * tall / step);
    at("column").value = Math.floor((event.clientX - box.left) / box.width * wide / step);
    showPositions();
  });
  showPositions();
}

if (attention) startAttention();
document.querySelectorAll('input[name="image"]').forEach((choice) => {
  choice.addEventListener("input", () => {
    showImage();
    if (attention) showAttention();
  });
});
// A browser may come back to what was chosen before.
window.addEventListener("pageshow", () => {
  showImage();
  if (attention) showAttention();
  if (positions) showPositions();
});
if (positions) startPositions();
})();
