// What the reader has set. ``parts`` holds only the parts that are not on.
const GLYPH = { on: "", zero: "0", mean: "μ", resample: "↻" };

function partNames(config) {
  const heads = (l) => range(config.n_heads).map((h) => `L${l}.H${h}`);
  return range(config.n_layers).flatMap((l) => [...heads(l), ...(config.d_mlp ? [`L${l}.mlp`] : [])]);
}

const isHead = (name) => name.includes(".H");

function startState(payload) {
  const { config } = payload;
  return {
    parts: {}, frozen: false, at: [], way: payload.ways.includes("mean") ? "mean" : "zero",
    sample: 0, draw: 0, tokens: null, head: `L${config.n_layers - 1}.H0`, query: null, guessing: false,
  };
}

const changeOf = (state) => ({ states: state.parts, frozen: state.frozen, at: state.at });
const isChanged = (state) => Object.keys(state.parts).length > 0;

function withPart(parts, name, value) {
  const { [name]: _, ...others } = parts;
  return value === "on" ? others : { ...others, [name]: value };
}

function nextValue(parts, name, ways) {
  const cycle = ["on", ...ways];
  return cycle[(cycle.indexOf(parts[name] ?? "on") + 1) % cycle.length];
}

// What is off comes on, and the heads that were on go off the way last used.
function inverted(state, config) {
  const heads = partNames(config).filter((name) => isHead(name) || state.parts[name]);
  return Object.fromEntries(heads.filter((name) => !state.parts[name]).map((name) => [name, state.way]));
}

const keptOnly = (names, state, config) =>
  Object.fromEntries(partNames(config).filter((name) => isHead(name) && !names.includes(name)).map((name) => [name, state.way]));

// The sequence that is looked at: tokens, mask, places, donor (for the model), targets and scored (for the figures).
function sequenceOf(state, payload) {
  const { tokens, mask, targets, scored, places, donors } = payload.samples;
  const i = state.sample;
  const donor = donors ? donors[i] : null;
  if (state.tokens) {
    const next = state.tokens.map((_, p) => state.tokens[p + 1] ?? -100);
    return { tokens: state.tokens, mask: null, places: {}, donor, targets: next, scored: next.map(() => 0) };
  }
  const used = mask ? mask[i].lastIndexOf(1) + 1 : tokens[i].length;
  return {
    tokens: tokens[i].slice(0, used), mask: mask && mask[i].slice(0, used), donor,
    places: Object.fromEntries(Object.entries(places).map(([name, at]) => [name, at[i]])),
    targets: targets[i].slice(0, used), scored: scored[i].slice(0, used),
  };
}

// The position that is looked at: the reader's, else the middle one of those that are scored, else the last.
function queryOf(state, sequence) {
  const last = sequence.tokens.length - 1;
  if (state.query !== null) return Math.min(state.query, last);
  const scored = range(last + 1).filter((p) => sequence.scored[p]);
  return scored.length ? scored[Math.floor(scored.length / 2)] : last;
}
