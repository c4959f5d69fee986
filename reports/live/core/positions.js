// How a model knows where a token stands.
const POSITION_BASE = 10000;

function sinusoidalTable(n, d) {
  const table = new Float32Array(n * d); // as the model keeps it
  for (let p = 0; p < n; p++) {
    for (let i = 0; i < d; i += 2) {
      const angle = p * POSITION_BASE ** (-i / d);
      table[p * d + i] = Math.sin(angle);
      table[p * d + i + 1] = Math.cos(angle);
    }
  }
  return table;
}

// Turns each head's part of x [t heads*k] by the angles of its row: coordinate i with coordinate i + k/2.
function rotate(x, t, heads, k) {
  const half = k / 2;
  for (let p = 0; p < t; p++) {
    for (let i = 0; i < half; i++) {
      const angle = p * POSITION_BASE ** ((-2 * i) / k);
      const cos = Math.fround(Math.cos(angle));
      const sin = Math.fround(Math.sin(angle));
      for (let h = 0; h < heads; h++) {
        const at = (p * heads + h) * k + i;
        const a = x[at];
        const b = x[at + half];
        x[at] = a * cos - b * sin;
        x[at + half] = b * cos + a * sin;
      }
    }
  }
  return x;
}

const alibiSlope = (head, heads) => 2 ** ((-8 * (head + 1)) / heads);

// For each row of the position table: positions count from the first real token.
function countedPositions(mask, t) {
  let seen = 0;
  return Array.from({ length: t }, (_, p) => {
    if (!mask || mask[p]) seen += 1;
    return Math.max(0, seen - 1);
  });
}
