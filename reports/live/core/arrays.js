// Matrices as flat Float64Arrays, rows first: the page rounds far less than PyTorch's float32 does.

// [rows columns] -> [columns rows]
function transposed(data, rows, columns) {
  const out = new Float64Array(rows * columns);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) out[c * rows + r] = data[r * columns + c];
  return out;
}

// x [t k] times the matrix whose transpose is w [n k], plus bias [n] or null -> [t n]
function times(x, w, bias, t, k, n) {
  const out = new Float64Array(t * n);
  const four = n - (n % 4);
  for (let row = 0; row < t; row++) {
    const from = row * k;
    for (let j = 0; j < four; j += 4) {
      let a = 0, b = 0, c = 0, d = 0;
      const p = j * k, q = p + k, r = q + k, s = r + k;
      for (let i = 0; i < k; i++) {
        const value = x[from + i];
        a += value * w[p + i];
        b += value * w[q + i];
        c += value * w[r + i];
        d += value * w[s + i];
      }
      const to = row * n + j;
      out[to] = bias ? a + bias[j] : a;
      out[to + 1] = bias ? b + bias[j + 1] : b;
      out[to + 2] = bias ? c + bias[j + 2] : c;
      out[to + 3] = bias ? d + bias[j + 3] : d;
    }
    for (let j = four; j < n; j++) {
      let a = 0;
      for (let i = 0; i < k; i++) a += x[from + i] * w[j * k + i];
      out[row * n + j] = bias ? a + bias[j] : a;
    }
  }
  return out;
}

function plus(a, b) {
  const out = new Float64Array(a.length);
  for (let i = 0; i < out.length; i++) out[i] = a[i] + b[i];
  return out;
}

// LayerNorm of each row of x [t d]: gain w, offset b
function layerNorm(x, { w, b }, t, d) {
  const out = new Float64Array(t * d);
  for (let row = 0; row < t; row++) {
    const from = row * d;
    let mean = 0;
    for (let i = 0; i < d; i++) mean += x[from + i];
    mean /= d;
    let variance = 0;
    for (let i = 0; i < d; i++) variance += (x[from + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / d + 1e-5);
    for (let i = 0; i < d; i++) out[from + i] = (x[from + i] - mean) * scale * w[i] + b[i];
  }
  return out;
}

// GELU, tanh form, in place
function gelu(x) {
  const root = Math.sqrt(2 / Math.PI);
  for (let i = 0; i < x.length; i++) x[i] = 0.5 * x[i] * (1 + Math.tanh(root * (x[i] + 0.044715 * x[i] ** 3)));
  return x;
}

// log of the sum of exp over logits[from .. from + n)
function logSumExp(logits, from, n) {
  let top = -Infinity;
  for (let i = 0; i < n; i++) top = Math.max(top, logits[from + i]);
  let sum = 0;
  for (let i = 0; i < n; i++) sum += Math.exp(logits[from + i] - top);
  return top + Math.log(sum);
}
