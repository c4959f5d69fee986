// The mean of per-sequence values with its 95 % interval, by the workbench's own rule: percentile bootstrap over
// sequences; where (almost) all values are equal, the exact binomial bound on the share that differs.
const TAIL = 0.025;
const FEW = 4;
const RESAMPLES = 2000;

// Resampled indices [RESAMPLES n], from a fixed seed (mulberry32), so that quantities of one sample stay paired.
const drawnIndices = new Map();
function resampledIndices(n) {
  if (!drawnIndices.has(n)) {
    let state = 0x9e3779b9 ^ n;
    const random = () => {
      state = (state + 0x6d2b79f5) | 0;
      let x = Math.imul(state ^ (state >>> 15), 1 | state);
      x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
      return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
    drawnIndices.set(n, Uint32Array.from({ length: RESAMPLES * n }, () => Math.floor(random() * n)));
  }
  return drawnIndices.get(n);
}

function quantile(sorted, q) {
  const at = q * (sorted.length - 1);
  const low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// bounds: the smallest and largest value a sequence can have, or null where nothing limits it.
function meanInterval(values, bounds) {
  const n = values.length;
  const value = values.reduce((a, b) => a + b, 0) / n;
  const common = quantile(Float64Array.from(values).sort(), 0.5);
  const [least, most] = bounds ?? [-Infinity, Infinity];
  const rounding = 1e-6 * Math.max(Math.abs(value), bounds ? most - least : 1);
  const different = values.filter((x) => Math.abs(x - common) > rounding).length;
  const few = bounds ? Math.min(FEW, Math.floor((n - 1) / 2)) : 0;
  if (different <= few) {
    const share = shareAtMost(different, n);
    return { value, low: (1 - share) * common + share * least, high: (1 - share) * common + share * most };
  }
  const indices = resampledIndices(n);
  const means = new Float64Array(RESAMPLES);
  for (let r = 0; r < RESAMPLES; r++) {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += values[indices[r * n + i]];
    means[r] = sum / n;
  }
  means.sort();
  return { value, low: quantile(means, TAIL), high: quantile(means, 1 - TAIL) };
}

// Upper Clopper-Pearson bound of a share, k of n.
function shareAtMost(k, n) {
  if (k === n) return 1;
  let low = 0;
  let high = 1;
  for (let i = 0; i < 60; i++) {
    const p = (low + high) / 2;
    let term = n * Math.log1p(-p); // log P(X = 0)
    let sum = Math.exp(term);
    for (let j = 1; j <= k; j++) {
      term += Math.log((n - j + 1) / j) + Math.log(p) - Math.log1p(-p);
      sum += Math.exp(term);
    }
    if (sum > TAIL) low = p;
    else high = p;
  }
  return (low + high) / 2;
}
