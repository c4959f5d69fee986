// How a head is drawn: cells, axes, the cross over one cell, and the picture that is taken out.
const READABLE = 13; // pixels of a cell beside which its token can be written
const TICKS = [0, 0.01, 0.1, 0.25, 0.5, 1];
const TEXT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

// The theme's colours as an element has them: one 32-bit colour a code, and the names that the drawing uses.
function coloursOf(style) {
  const take = (name) => style.getPropertyValue(`--${name}`).trim();
  const packed = (hex) => {
    const whole = hex.length === 4 ? hex.replace(/[^#]/g, "$&$&") : hex;
    const [red, green, blue] = [1, 3, 5].map((i) => parseInt(whole.slice(i, i + 2), 16));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  };
  const ramp = Array.from({ length: 101 }, (_, level) => take(`s${level}`));
  const codes = Uint32Array.from({ length: 256 }, (_, code) => packed(ramp[Math.round((100 * Math.min(code, TOP)) / TOP)]));
  codes[MISSING] = packed(take("c2"));
  const named = Object.fromEntries(["ink", "soft", "line", "card", "accent", "c2"].map((name) => [name, take(name)]));
  return { ...named, codes, ramp };
}

// Where the square of cells stands in `width` CSS pixels; a cell is a whole number of device pixels where that fits.
function geometry(width, most, size, ratio) {
  const margin = Math.round(clamp(width * 0.13, 46, 92));
  const room = Math.min(width - margin - 10, most);
  const even = (Math.floor((room * ratio) / size) * size) / ratio;
  const side = even >= 0.8 * room ? even : Math.floor(room);
  return { left: margin, top: 8, side, margin, width: margin + side + 10, height: 8 + side + margin };
}

function fit(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function drawCells(context, place, ratio, levels, causal, window, colours) {
  const side = Math.round(place.side * ratio);
  const image = context.createImageData(side, side);
  const every = paint(new Uint32Array(image.data.buffer), side, levels, causal, window, colours.codes);
  const bare = document.createElement("canvas"); // drawn rather than put, so that what is transparent stays so
  bare.width = bare.height = side;
  bare.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(bare, place.left, place.top, place.side, place.side);
  return every;
}

// Letters as a reader counts them: an emoji of several code points is one.
const segmenter = globalThis.Intl?.Segmenter ? new Intl.Segmenter() : null;
const lettersOf = (text) => (segmenter ? Array.from(segmenter.segment(text), ({ segment }) => segment) : [...text]);

function clipped(context, label, room) {
  if (context.measureText(label).width <= room) return label;
  const letters = lettersOf(label);
  while (letters.length > 1 && context.measureText(letters.join("") + "…").width > room) letters.pop();
  return letters.join("") + "…";
}

// A label beside the row or under the column whose middle is at `at` pixels.
function label(context, place, axis, at, words, paper) {
  context.save();
  if (axis === "query") {
    context.translate(place.left - 6, place.top + at);
  } else {
    context.translate(place.left + at, place.top + place.side + 6);
    if (context.rotated) context.rotate(-Math.PI / 2);
  }
  context.textAlign = axis === "key" && !context.rotated ? "center" : "right";
  context.textBaseline = axis === "key" && !context.rotated ? "top" : "middle";
  const said = clipped(context, words, context.rotated || axis === "query" ? place.margin - 24 : place.side);
  if (paper) {
    const wide = context.measureText(said).width;
    const ink = context.fillStyle;
    context.fillStyle = paper;
    const from = context.textAlign === "center" ? -wide / 2 : -wide;
    context.fillRect(from - 3, context.textBaseline === "top" ? -2 : -8, wide + 6, 16);
    context.fillStyle = ink;
  }
  context.fillText(said, 0, 0);
  context.restore();
}

// Every cell's token where they can be read, else positions at round places: [what it says, where in cells].
function ticks(start, span, cell, labels, every) {
  const last = Math.min(labels.length, start + span);
  const found = [];
  if (cell >= READABLE) {
    for (let i = Math.floor(start); i < last; i++) found.push([labels[i].text, i + 0.5]);
    return found;
  }
  const least = (42 * every) / cell;
  const ten = 10 ** Math.floor(Math.log10(least));
  const apart = ten * [1, 2, 5, 10].find((digit) => digit * ten >= least);
  for (let p = Math.ceil((start * every) / apart) * apart; p < last * every; p += apart) {
    found.push([String(p), (p + 0.5) / every]);
  }
  return found;
}

function drawAxes(context, place, window, labels, every, colours) {
  const cell = place.side / window.span;
  context.rotated = cell >= READABLE;
  context.font = context.rotated ? `11px ${MONO}` : `11px ${TEXT}`;
  context.fillStyle = colours.soft;
  for (const [axis, start] of [["query", window.y], ["key", window.x]]) {
    for (const [words, middle] of ticks(start, window.span, cell, labels, every)) {
      const at = (middle - start) * cell;
      if (at >= 0 && at <= place.side) label(context, place, axis, at, words);
    }
  }
  context.strokeStyle = colours.soft;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(place.left - 0.5, place.top);
  context.lineTo(place.left - 0.5, place.top + place.side + 0.5);
  context.lineTo(place.left + place.side, place.top + place.side + 0.5);
  context.stroke();
  context.font = `12px ${TEXT}`;
  context.fillStyle = colours.ink;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.fillText("key", place.left + place.side / 2, context.rotated ? place.height - 4 : place.top + place.side + 38);
  context.save();
  context.translate(14, place.top + place.side / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("query", 0, 0);
  context.restore();
}

// The row and the column of a cell up to the diagonal, the cell itself, and its two tokens on the axes.
function drawCross(context, place, window, cursor, locked, causal, labels, colours) {
  const cell = place.side / window.span;
  const x = place.left + (cursor.k - window.x) * cell;
  const y = place.top + (cursor.q - window.y) * cell;
  context.save();
  context.beginPath();
  context.rect(place.left, place.top, place.side, place.side);
  context.clip();
  const thick = Math.max(cell, 1.5);
  context.fillStyle = colours.accent;
  context.globalAlpha = cell < 4 ? 0.45 : 0.16;
  const right = causal ? place.left + (cursor.q + 1 - window.x) * cell : place.left + place.side;
  context.fillRect(place.left, y, right - place.left, thick);
  const above = causal ? Math.max(place.top, place.top + (cursor.k - window.y) * cell) : place.top;
  context.fillRect(x, above, thick, place.top + place.side - above);
  context.globalAlpha = 1;
  const box = Math.max(cell, 7);
  const line = locked ? 3 : 1.5;
  for (const [wide, colour] of [[line + 2, colours.card], [line, colours.c2]]) {
    context.lineWidth = wide;
    context.strokeStyle = colour;
    context.strokeRect(x + cell / 2 - box / 2, y + cell / 2 - box / 2, box, box);
  }
  context.restore();
  context.font = `600 11px ${MONO}`;
  context.rotated = true;
  for (const [axis, index, start] of [["query", cursor.q, window.y], ["key", cursor.k, window.x]]) {
    const at = (index + 0.5 - start) * cell;
    context.fillStyle = colours.card;
    if (at >= 0 && at <= place.side) label(context, place, axis, at, labels[index].text, colours.accent);
  }
}

// The window as it is shown, on white with its name and scale, as a picture of its own.
function picture(name, note, levels, causal, window, labels, every, colours) {
  const ratio = 2;
  const place = { ...geometry(900, 790, window.span, ratio), top: 56 };
  const foot = place.side / window.span >= READABLE ? place.margin : 52;
  const [width, height] = [place.left + place.side + 90, place.top + place.side + foot];
  const canvas = document.createElement("canvas");
  const context = fit(canvas, width, height, ratio);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  drawCells(context, place, ratio, levels, causal, window, colours);
  drawAxes(context, { ...place, height }, window, labels, every, colours);
  context.textAlign = "left";
  context.fillStyle = colours.ink;
  context.font = `600 16px ${TEXT}`;
  context.fillText(clipped(context, name, width - place.left - 20), place.left, 24);
  context.font = `12px ${TEXT}`;
  context.fillStyle = colours.soft;
  context.fillText(note, place.left, 44);
  const [x, tall] = [place.left + place.side + 24, Math.min(place.side, 260)];
  colours.ramp.forEach((colour, level) => {
    context.fillStyle = colour;
    context.fillRect(x, place.top + tall * (1 - (level + 1) / 101), 14, tall / 101 + 0.5);
  });
  context.fillStyle = colours.soft;
  context.textBaseline = "middle";
  TICKS.forEach((tick) => context.fillText(String(tick), x + 20, place.top + tall * (1 - Math.sqrt(tick))));
  return canvas;
}
