// What the reader has set. ``parts`` holds only the parts that are not on; ``last`` how each was off when it last was.
const GLYPH = { on: "", zero: "0", mean: "μ", resample: "↻" };

function partNames(config) {
  const heads = (l) => range(config.n_heads).map((h) => `L${l}.H${h}`);
  return range(config.n_layers).flatMap((l) => [...heads(l), ...(config.d_mlp ? [`L${l}.mlp`] : [])]);
}

const isHead = (name) => name.includes(".H");

function startState(payload) {
  const { config } = payload;
  return {
    parts: {}, last: {}, frozen: false, at: [], way: payload.ways.includes("mean") ? "mean" : "zero",
    sample: 0, draw: 0, tokens: null, head: `L${config.n_layers - 1}.H0`, query: null, guessing: false,
  };
}

const changeOf = (state) => ({ states: state.parts, frozen: state.frozen, at: state.at });
const isChanged = (state) => Object.keys(state.parts).length > 0;

// The whole change in words; ``most`` parts of a kind are named, more are counted.
function changeWords(state, most = Infinity) {
  if (!isChanged(state)) return "nothing is changed";
  const sets = [...new Set(Object.values(state.parts))].map((way) => {
    const names = Object.keys(state.parts).filter((name) => state.parts[name] === way);
    return `${way}: ${names.length > most ? `${names.length} parts` : names.join(", ")}`;
  });
  if (state.frozen) sets.push("every attention pattern held");
  if (state.at.length) sets.push(`at positions ${state.at.join(", ")}`);
  return sets.join("; ");
}

function withPart(parts, name, value) {
  const { [name]: _, ...others } = parts;
  return value === "on" ? others : { ...others, [name]: value };
}

function nextValue(parts, name, ways) {
  const cycle = ["on", ...ways];
  return cycle[(cycle.indexOf(parts[name] ?? "on") + 1) % cycle.length];
}

// Heads that are off come on, those that are on go off as they last were, or the way last used; MLPs stay. Twice is
// the state itself.
function inverted(state, config) {
  const way = (name) => (isHead(name) ? !state.parts[name] && (state.last[name] ?? state.way) : state.parts[name]);
  return Object.fromEntries(partNames(config).map((name) => [name, way(name)]).filter(([, value]) => value));
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

// Why parts cannot be replaced at the chosen positions of this sequence, or "".
function placesProblem(state, sequence) {
  const t = sequence.tokens.length;
  const own = state.tokens ? "Your own tokens have" : "This sample has";
  for (const place of state.at) {
    const p = typeof place === "number" ? place : sequence.places[place];
    if (p === undefined) return `${own} no place named ${place}; use positions 0 to ${t - 1}, or leave this empty.`;
    if (!(p >= 0 && p < t)) return `${own} ${t === 1 ? "1 token" : `${t} tokens`}, so no position ${p}; use 0 to ${t - 1}, or leave this empty.`;
  }
  return "";
}

// The position that is looked at: the reader's, else the middle one of those that are scored, else the last.
function queryOf(state, sequence) {
  const last = sequence.tokens.length - 1;
  if (state.query !== null) return Math.min(state.query, last);
  const scored = range(last + 1).filter((p) => sequence.scored[p]);
  return scored.length ? scored[Math.floor(scored.length / 2)] : last;
}
