// What the figures show, from logits [t d_vocab] before and after.
function probabilities(logits, p, v) {
  const total = logSumExp(logits, p * v, v);
  return Float64Array.from({ length: v }, (_, i) => Math.exp(logits[p * v + i] - total));
}

// The tokens to show at a position: the likeliest before and the likeliest after, by the larger of both; while the effect
// is concealed, the likeliest before, since a choice would tell.
function topTokens(logits, p, v, concealed, most = 6) {
  const before = probabilities(logits.before, p, v);
  const after = probabilities(logits.after, p, v);
  const likeliest = (values, count = most / 2 + 1) => range(v).sort((a, b) => values[b] - values[a]).slice(0, count);
  const row = (id) => ({ id, before: before[id], after: after[id] });
  if (concealed) return likeliest(before, most).map(row);
  const together = [...new Set([...likeliest(before), ...likeliest(after)])];
  together.sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a]) || a - b);
  return together.slice(0, most).map(row);
}

// Row by position: the target (null without one), loss in nats, logit of the target minus the best other, likeliest token.
function perToken(logits, targets, v) {
  return targets.map((target, p) => {
    const row = { position: p, target: target >= 0 ? target : null };
    for (const when of ["before", "after"]) {
      const values = logits[when];
      let best = 0, rival = -Infinity;
      for (let i = 0; i < v; i++) {
        if (values[p * v + i] > values[p * v + best]) best = i;
        if (i !== target && values[p * v + i] > rival) rival = values[p * v + i];
      }
      const own = row.target === null ? NaN : values[p * v + target];
      row[when] = { loss: row.target === null ? NaN : logSumExp(values, p * v, v) - own, difference: own - rival, best };
    }
    return row;
  });
}
