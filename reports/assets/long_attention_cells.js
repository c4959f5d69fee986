// One byte a weight, in steps of its square root: code 254 is a weight of 1, small weights have small steps; 255 is a
// weight that is not defined. Nothing here knows of a document.
const TOP = 254;
const MISSING = 255;

const weightOf = (code) => (code / TOP) ** 2;
// How far the packed weight can lie from the one that the model had.
const within = (code) => (code + 0.25) / TOP ** 2;

function decimals(code) {
  return Math.ceil(-Math.log10(within(code)));
}

// The weight with as many digits as it warrants.
function shownWeight(code) {
  if (code === MISSING) return "n/a";
  if (code === 0) return "below 0.00001";
  const digits = decimals(code);
  const ten = 10 ** digits;
  return `${weightOf(code).toFixed(digits)} ± ${(Math.ceil(within(code) * ten) / ten).toFixed(digits)}`;
}

// The same to three decimals, where many stand together.
function shortWeight(code) {
  if (code === MISSING) return "n/a";
  return weightOf(code) < 0.001 ? "<0.001" : weightOf(code).toFixed(3);
}

function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// The codes of one head as a whole square; above the diagonal of a causal pattern nothing was packed.
function square(bytes, head, size, causal) {
  if (!causal) return bytes.subarray(head * size * size, (head + 1) * size * size);
  const codes = new Uint8Array(size * size);
  let from = head * ((size * (size + 1)) / 2);
  for (let q = 0; q < size; q++) {
    codes.set(bytes.subarray(from, from + q + 1), q * size);
    from += q + 1;
  }
  return codes;
}

// The square and its reductions by 2, 4, 8 ...: each code the largest of the four below it, so that thin lines and
// undefined weights (the largest code of all) stay seen.
function pyramid(codes, size) {
  const levels = [{ every: 1, size, codes }];
  for (let last = levels[0]; last.size > 16; last = levels.at(-1)) {
    const half = Math.ceil(last.size / 2);
    const made = new Uint8Array(half * half);
    for (let q = 0; q < last.size; q++) {
      const row = q * last.size;
      const target = (q >> 1) * half;
      for (let k = 0; k < last.size; k++) {
        const code = last.codes[row + k];
        if (code > made[target + (k >> 1)]) made[target + (k >> 1)] = code;
      }
    }
    levels.push({ every: 2 * last.every, size: half, codes: made });
  }
  return levels;
}

// The finest level of which no cell is smaller than a pixel.
function levelFor(levels, cellsPerPixel) {
  return levels.find((level) => level.every >= cellsPerPixel * 0.999) ?? levels.at(-1);
}

// The cells of a window {x, y, span} as `side` x `side` pixels (one 32-bit colour each); transparent where nothing is.
function paint(pixels, side, levels, causal, window, palette) {
  const perPixel = window.span / side;
  const { every, size, codes } = levelFor(levels, perPixel);
  const at = (start, i) => Math.floor((start + (i + 0.5) * perPixel) / every);
  const columns = Int32Array.from({ length: side }, (_, i) => at(window.x, i));
  for (let i = 0, before = -1; i < side; i++) {
    const row = at(window.y, i);
    if (row === before) {
      pixels.copyWithin(i * side, (i - 1) * side, i * side);
      continue;
    }
    before = row;
    const last = Math.min(size - 1, causal ? row : size - 1);
    for (let j = 0; j < side; j++) {
      const column = columns[j];
      pixels[i * side + j] = row < size && column <= last ? palette[codes[row * size + column]] : 0;
    }
  }
  return every;
}

// The largest weights of a row as [code, key], falling; what is not defined is left out.
function strongest(codes, size, query, causal, count) {
  const found = [];
  for (let key = 0; key < (causal ? query + 1 : size); key++) {
    const code = codes[query * size + key];
    if (code > 0 && code !== MISSING) found.push([code, key]);
  }
  return found.sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, count);
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// A window inside the matrix, of between `least` and all of its cells a side.
function windowOf(x, y, span, size, least) {
  const inside = clamp(span, Math.min(least, size), size);
  return { x: clamp(x, 0, size - inside), y: clamp(y, 0, size - inside), span: inside };
}

function zoomed(window, factor, atX, atY, size, least) {
  const span = clamp(window.span / factor, Math.min(least, size), size);
  const share = (start, at) => at - ((at - start) / window.span) * span;
  return windowOf(share(window.x, atX), share(window.y, atY), span, size, least);
}
