// What the page asks of the model: agreement with PyTorch, one sequence looked at closely, the score over the samples.
const TRACE_BYTES = 96 * 2 ** 20; // clean traces kept between changes; beyond it they are computed again
const NEAR_TIE = 1e-4;

class Engine {
  constructor(payload) {
    const tensors = unpack(payload.weights);
    this.tensors = tensors;
    this.model = new Model(payload.config, tensors);
    this.checks = payload.checks;
    const layers = (name) => Array.from({ length: payload.config.n_layers }, (_, l) => tensors[`reference.${name}.${l}`]);
    this.reference = { ...payload.reference, z: layers("z"), mlp: layers("mlp") };
    const { tokens, mask, places, donors } = payload.samples;
    this.samples = payload.samples;
    this.sequences = tokens.map((row, i) => ({
      tokens: row,
      mask: mask && mask[i],
      places: Object.fromEntries(Object.entries(places).map(([name, at]) => [name, at[i]])),
      donor: donors && donors[i],
    }));
    this.traces = new Map();
    this.kept = 0;
    this.before = new Map();
    this.looked = { key: "", found: null };
  }

  trace(i) {
    const ready = this.traces.get(i);
    if (ready) return ready;
    const made = this.model.clean(this.sequences[i]);
    const bytes = 8 * made.layers.reduce((sum, layer) => sum + layer.pre.length + layer.pattern.length + layer.z.length + (layer.mlp?.length ?? 0), made.final.length);
    if (this.kept + bytes <= TRACE_BYTES) {
      this.traces.set(i, made);
      this.kept += bytes;
    }
    return made;
  }

  edits(change, sequence) {
    return resolveChange(change, this.model, this.reference, sequence, () => {
      if (sequence.donor === null || sequence.donor === undefined) throw new Error("This sequence is paired with no other one, so nothing can be resampled. Use zero or mean.");
      return this.trace(sequence.donor);
    });
  }

  // The largest difference between these logits and PyTorch's (in float64), over the stored passes; a step a pass, as in ``score``.
  *agreement() {
    let difference = 0;
    for (const { sequence, donor, change, rows, logits } of this.checks) {
      const stored = { ...this.sequences[sequence], donor };
      const trace = this.trace(sequence);
      const { final } = this.model.changed(trace, this.edits(change, stored));
      const ours = this.model.logits(final, rows);
      this.tensors[logits].forEach((value, i) => {
        const off = Math.abs(value - ours[i]);
        if (!(off <= difference)) difference = off; // NaN counts as the worst
      });
      yield () => ({ difference, passes: this.checks.length });
    }
  }

  // One sequence {tokens, mask, places, donor} before and after: a head's pattern, the logits everywhere.
  sequence({ sequence, head, change }) {
    const { n_ctx: most, d_vocab: v } = this.model.config;
    const t = sequence.tokens.length;
    if (t === 0) throw new Error(`The sequence is empty; it needs 1 to ${most} tokens.`);
    if (t > most) throw new Error(`The sequence has ${t} tokens; the model's context holds ${most}.`);
    const outside = sequence.tokens.find((id) => !(Number.isInteger(id) && id >= 0 && id < v));
    if (outside !== undefined) throw new Error(`Token id ${outside} lies outside the vocabulary of ${v}.`);
    const { layer, head: index } = parsePart(head, this.model.config);

    const key = JSON.stringify(sequence);
    if (this.looked.key !== key) this.looked = { key, trace: this.model.clean(sequence) };
    const { trace } = this.looked;
    const after = this.model.changed(trace, this.edits(change, sequence));
    const rows = Array.from({ length: t }, (_, p) => p);
    const cut = (pattern) => new Float32Array(pattern.subarray(index * t * t, (index + 1) * t * t));
    const logits = (final) => new Float32Array(this.model.logits(final, rows));
    return {
      pattern: { before: cut(trace.layers[layer].pattern), after: cut(after.patterns[layer]) },
      logits: { before: logits(trace.final), after: logits(after.final) },
    };
  }

  // Accuracy and mean loss of a sample over its scored positions, and how many of these a rounding error decides.
  judge(i, final) {
    const { targets, scored } = this.samples;
    const v = this.model.config.d_vocab;
    const rows = [];
    scored[i].forEach((on, p) => { if (on) rows.push(p); });
    const logits = this.model.logits(final, rows);
    let right = 0, loss = 0, ties = 0;
    rows.forEach((p, r) => {
      const target = targets[i][p];
      let best = 0, rival = -Infinity;
      for (let token = 0; token < v; token++) {
        const value = logits[r * v + token];
        if (value > logits[r * v + best]) best = token;
        if (token !== target && value > rival) rival = value;
      }
      const own = logits[r * v + target];
      if (best === target) right += 1;
      if (Math.abs(own - rival) < NEAR_TIE) ties += 1;
      loss += logSumExp(logits, r * v, v) - own;
    });
    return { accuracy: right / rows.length, loss: loss / rows.length, ties };
  }

  // A step a sample: each yields what gives {done, total, before, after, ties}, intervals over the samples done so far.
  *score(change) {
    const total = this.sequences.length;
    const before = [];
    const after = [];
    for (let i = 0; i < total; i++) {
      const sequence = this.sequences[i];
      const trace = this.trace(i);
      if (!this.before.has(i)) this.before.set(i, this.judge(i, trace.final));
      before.push(this.before.get(i));
      const edits = this.edits(change, sequence);
      after.push(edits.first < this.model.layers.length ? this.judge(i, this.model.changed(trace, edits).final) : before[i]);
      yield () => ({ done: i + 1, total, before: summary(before), after: summary(after), ties: after.reduce((sum, one) => sum + one.ties, 0) });
    }
  }
}

function summary(judged) {
  return {
    accuracy: meanInterval(judged.map((one) => one.accuracy), [0, 1]),
    loss: meanInterval(judged.map((one) => one.loss), null),
  };
}
