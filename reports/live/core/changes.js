// A change {states: {"L1.H0": "zero" | "mean" | "resample", "L0.mlp": ...}, frozen, at} as edits of a pass.
// ``at`` holds the positions at which parts are replaced: indices, or names of places; empty means everywhere.

function parsePart(name, config) {
  const match = /^L(\d+)\.(?:H(\d+)|mlp)$/.exec(name);
  const layer = match ? Number(match[1]) : -1;
  const head = match?.[2] === undefined ? null : Number(match[2]);
  const there = match && layer < config.n_layers && (head === null ? config.d_mlp > 0 : head < config.n_heads);
  if (!there) throw new Error(`This model has no part ${name}.`);
  return { layer, head };
}

// Copies rows of width ``width`` from ``value`` (null is zero) into ``target``; ``offset`` is where a head's part begins.
function replacer(rows, width, stride, offset, value) {
  return (target) => {
    for (const p of rows) {
      const to = p * stride + offset;
      if (value) target.set(value.data.subarray(value.row(p) * stride + offset, value.row(p) * stride + offset + width), to);
      else target.fill(0, to, to + width);
    }
  };
}

// ``donor`` is a function that gives the trace of the paired sequence.
function resolveChange(change, model, reference, sequence, donor) {
  const { config } = model;
  const { n_layers: layers, n_heads: h, d_head: k, d_model: d } = config;
  const rows = changedRows(change.at ?? [], sequence);
  const edits = { first: layers, frozen: Boolean(change.frozen), layers: Array.from({ length: layers }, () => ({ heads: [], mlp: null })) };
  for (const [name, state] of Object.entries(change.states)) {
    const { layer, head } = parsePart(name, config);
    const value = replacement(state, layer, head, reference, sequence, donor);
    const edit = head === null ? replacer(rows, d, d, 0, value) : replacer(rows, k, h * k, head * k, value);
    if (head === null) edits.layers[layer].mlp = edit;
    else edits.layers[layer].heads.push(edit);
    edits.first = Math.min(edits.first, layer);
  }
  return edits;
}

function changedRows(at, sequence) {
  const t = sequence.tokens.length;
  if (!at.length) return Array.from({ length: t }, (_, p) => p);
  return at.map((place) => {
    const p = typeof place === "number" ? place : sequence.places?.[place];
    if (p === undefined) throw new Error(`This sequence has no place named ${place}.`);
    if (!(p >= 0 && p < t)) throw new Error(`Position ${p} lies outside this sequence of ${t} tokens.`);
    return p;
  });
}

function replacement(state, layer, head, reference, sequence, donor) {
  const { tokens, mask } = sequence;
  const real = (p) => !mask || mask[p];
  if (state === "zero") return null;
  if (state === "mean") {
    const data = head === null ? reference.mlp[layer] : reference.z[layer];
    if (!reference.per_position) return { data, row: () => 0 };
    tokens.forEach((_, p) => {
      if (real(p) && !reference.filled[p]) throw new Error(`There is no mean at position ${p}: the reference sequences are shorter. Use zero, or a shorter sequence.`);
    });
    const last = reference.filled.length - 1;
    return { data, row: (p) => Math.min(p, last) };
  }
  if (state !== "resample") throw new Error(`A part cannot be set to ${state}; it can be zero, mean or resample.`);
  const trace = donor();
  const other = trace.sequence;
  tokens.forEach((_, p) => {
    if (real(p) && (p >= other.tokens.length || (other.mask && !other.mask[p]))) throw new Error(`The paired sequence has nothing to give at position ${p}: it is shorter. Use zero or mean.`);
  });
  const data = head === null ? trace.layers[layer].mlp : trace.layers[layer].z;
  return { data, row: (p) => Math.min(p, other.tokens.length - 1) };
}
