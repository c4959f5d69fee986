// The forward pass. A clean pass leaves a trace, from which a changed one restarts at its first changed layer.
class Model {
  constructor(config, tensors) {
    this.config = config;
    const { d_model: d, n_heads: h, d_head: k, d_mlp: m, d_vocab: v } = config;
    const norm = (name) => (tensors[`${name}.w`] ? { w: tensors[`${name}.w`], b: tensors[`${name}.b`] } : null);
    const byHead = (data) => { // [h d k] -> [h*k d]
      const parts = Array.from({ length: h }, (_, i) => transposed(data.subarray(i * d * k, (i + 1) * d * k), d, k));
      const whole = new Float64Array(h * k * d);
      parts.forEach((part, i) => whole.set(part, i * d * k));
      return whole;
    };
    this.embedding = tensors["embed.W_E"];
    this.places = { learned: () => tensors["pos_embed.W_pos"], sinusoidal: () => sinusoidalTable(config.n_ctx, d) }[config.positions]?.();
    this.unembedding = transposed(tensors["unembed.W_U"], d, v);
    this.lnFinal = norm("ln_final");
    this.layers = Array.from({ length: config.n_layers }, (_, l) => {
      const at = (name) => tensors[`blocks.${l}.${name}`];
      const layer = { ln1: norm(`blocks.${l}.ln1`), ln2: norm(`blocks.${l}.ln2`), O: transposed(at("attn.W_O"), h * k, d), bO: at("attn.b_O") };
      for (const name of config.attention === "learned" ? ["Q", "K", "V"] : ["V"]) {
        layer[name] = byHead(at(`attn.W_${name}`));
        layer[`b${name}`] = at(`attn.b_${name}`);
      }
      if (m) {
        Object.assign(layer, { in: transposed(at("mlp.W_in"), d, m), bIn: at("mlp.b_in"), out: transposed(at("mlp.W_out"), m, d), bOut: at("mlp.b_out") });
      }
      return layer;
    });
  }

  embed({ tokens, mask }) {
    const d = this.config.d_model;
    const x = new Float64Array(tokens.length * d);
    const row = countedPositions(mask, tokens.length);
    tokens.forEach((token, p) => {
      for (let i = 0; i < d; i++) {
        x[p * d + i] = this.embedding[token * d + i] + (this.places ? this.places[row[p] * d + i] : 0);
      }
    });
    return x;
  }

  // Every head's pattern [head query key] at this layer for the residual stream x.
  pattern(layer, x, { tokens, mask }) {
    const { n_heads: h, d_head: k, d_model: d, positions, attention, scale_scores: scaled } = this.config;
    const t = tokens.length;
    const out = new Float64Array(h * t * t);
    const learned = attention === "learned";
    let q, key;
    if (learned) {
      [q, key] = ["Q", "K"].map((name) => times(x, layer[name], layer[`b${name}`], t, d, h * k));
      if (positions === "rotary") [q, key] = [q, key].map((part) => rotate(part, t, h, k));
    }
    const scale = scaled ? 1 / Math.sqrt(k) : 1;
    const scores = new Float64Array(t);
    for (let head = 0; head < h; head++) {
      const slope = positions === "alibi" ? alibiSlope(head, h) : 0;
      for (let from = 0; from < t; from++) {
        let top = -Infinity;
        for (let to = 0; to <= from; to++) {
          if (mask && !mask[to] && to !== from) continue;
          let score = 0;
          if (learned) {
            const a = (from * h + head) * k;
            const b = (to * h + head) * k;
            for (let i = 0; i < k; i++) score += q[a + i] * key[b + i];
          }
          scores[to] = score * scale - slope * (from - to);
          if (scores[to] > top) top = scores[to];
        }
        const row = (head * t + from) * t;
        let sum = 0;
        for (let to = 0; to <= from; to++) {
          if (mask && !mask[to] && to !== from) continue;
          sum += out[row + to] = Math.exp(scores[to] - top);
        }
        for (let to = 0; to <= from; to++) out[row + to] /= sum;
      }
    }
    return out;
  }

  // The weighted values z [t head*k] of a pattern.
  weighted(layer, x, pattern, t) {
    const { n_heads: h, d_head: k, d_model: d } = this.config;
    const v = times(x, layer.V, layer.bV, t, d, h * k);
    const z = new Float64Array(t * h * k);
    const sum = new Float64Array(k);
    for (let head = 0; head < h; head++) {
      for (let from = 0; from < t; from++) {
        sum.fill(0);
        for (let to = 0; to <= from; to++) {
          const weight = pattern[(head * t + from) * t + to];
          if (weight === 0) continue;
          const at = (to * h + head) * k;
          for (let i = 0; i < k; i++) sum[i] += weight * v[at + i];
        }
        z.set(sum, (from * h + head) * k);
      }
    }
    return z;
  }

  // From z on: what the layer gives to the next one. ``replaceMlp`` edits what the MLP writes, in place.
  finish(layer, x, z, t, replaceMlp) {
    const { n_heads: h, d_head: k, d_model: d, d_mlp: m, norm } = this.config;
    let post = plus(x, times(z, layer.O, layer.bO, t, h * k, d));
    if (norm === "post") post = layerNorm(post, layer.ln1, t, d);
    if (!m) return { post, mlp: null };
    const read = norm === "pre" ? layerNorm(post, layer.ln2, t, d) : post;
    const mlp = times(gelu(times(read, layer.in, layer.bIn, t, d, m)), layer.out, layer.bOut, t, m, d);
    replaceMlp?.(mlp);
    post = plus(post, mlp);
    return { post: norm === "post" ? layerNorm(post, layer.ln2, t, d) : post, mlp };
  }

  // What attention reads of the residual stream.
  read(layer, x, t) {
    return this.config.norm === "pre" ? layerNorm(x, layer.ln1, t, this.config.d_model) : x;
  }

  clean(sequence) {
    const t = sequence.tokens.length;
    let x = this.embed(sequence);
    const layers = this.layers.map((layer) => {
      const read = this.read(layer, x, t);
      const pattern = this.pattern(layer, read, sequence);
      const z = this.weighted(layer, read, pattern, t);
      const { post, mlp } = this.finish(layer, x, z, t);
      const kept = { pre: x, pattern, z, mlp };
      x = post;
      return kept;
    });
    return { sequence, layers, final: x };
  }

  // The pass again under edits (see resolveChange); layers below the first edit are the trace's own.
  changed(trace, edits) {
    const { sequence } = trace;
    const t = sequence.tokens.length;
    let x = trace.layers[edits.first]?.pre ?? trace.final;
    const patterns = trace.layers.slice(0, edits.first).map((layer) => layer.pattern);
    for (let l = edits.first; l < this.layers.length; l++) {
      const layer = this.layers[l];
      let { pattern, z } = trace.layers[l];
      if (l > edits.first) {
        const read = this.read(layer, x, t);
        if (!edits.frozen) pattern = this.pattern(layer, read, sequence);
        z = this.weighted(layer, read, pattern, t);
      }
      patterns.push(pattern);
      const { heads, mlp } = edits.layers[l];
      if (heads.length) {
        z = z.slice();
        heads.forEach((edit) => edit(z));
      }
      x = this.finish(layer, x, z, t, mlp).post;
    }
    return { patterns, final: x };
  }

  // Logits [rows d_vocab] of some positions of the last residual stream.
  logits(final, rows) {
    const { d_model: d, d_vocab: v } = this.config;
    let x = new Float64Array(rows.length * d);
    rows.forEach((row, i) => x.set(final.subarray(row * d, (row + 1) * d), i * d));
    if (this.lnFinal) x = layerNorm(x, this.lnFinal, rows.length, d);
    return times(x, this.unembedding, null, rows.length, d, v);
  }
}
