// The state as a URL fragment and back. A fragment that is not whole and about this very model is refused as a whole.
const FRAGMENT = "#ablate?";

function fragmentOf(state, payload, anchor) {
  const words = new URLSearchParams({ view: anchor, model: payload.model.slice(0, 16) });
  for (const way of payload.ways) {
    const names = Object.keys(state.parts).filter((name) => state.parts[name] === way);
    if (names.length) words.set(way, names.join(","));
  }
  if (state.frozen) words.set("frozen", "1");
  if (state.at.length) words.set("at", state.at.join(","));
  if (state.draw) words.set("draw", state.draw);
  words.set("sample", state.sample);
  if (state.tokens) words.set("tokens", state.tokens.join("."));
  words.set("head", state.head);
  if (state.query !== null) words.set("query", state.query);
  return FRAGMENT + words.toString().replaceAll("%2C", ",");
}

// The state that a fragment describes, null where it is not about this view; an Error says what is wrong with it.
function stateFrom(fragment, payload, anchor) {
  if (!fragment.startsWith(FRAGMENT)) return null;
  const words = new URLSearchParams(fragment.slice(FRAGMENT.length));
  if (words.get("view") !== anchor) return null;
  if (words.get("model") !== payload.model.slice(0, 16)) throw new Error("The link is about another model; it was ignored.");
  const known = ["view", "model", ...payload.ways, "frozen", "at", "draw", "sample", "tokens", "head", "query"];
  const strange = [...words.keys()].find((key, i, all) => !known.includes(key) || all.indexOf(key) !== i);
  if (strange !== undefined) refuse(`it sets ${strange}`);
  const names = partNames(payload.config);
  const state = startState(payload);
  for (const way of payload.ways) {
    for (const name of words.get(way)?.split(",") ?? []) {
      if (!names.includes(name)) refuse(`there is no part ${name}`);
      if (state.parts[name]) refuse(`it sets ${name} twice`);
      state.parts[name] = way;
    }
  }
  if (words.has("frozen") && words.get("frozen") !== "1") refuse("frozen is 1 or absent");
  state.frozen = words.has("frozen");
  try {
    state.at = placesFrom(words.get("at") ?? "", payload);
  } catch (error) {
    refuse(error.message);
  }
  state.draw = whole(words, "draw", 1e6);
  if (state.draw && payload.backend !== "server") refuse("its samples were drawn by a served page; open it there, with workbench ablate");
  state.sample = whole(words, "sample", payload.samples.n - 1);
  if (words.has("tokens")) {
    state.tokens = words.get("tokens").split(".").map((id) => (/^\d{1,9}$/.test(id) ? Number(id) : -1));
    const bad = tokensProblem(state.tokens, payload);
    if (bad) refuse(bad);
  }
  if (words.has("head")) {
    if (!names.includes(words.get("head")) || !isHead(words.get("head"))) refuse(`there is no head ${words.get("head")}`);
    state.head = words.get("head");
  }
  if (words.has("query")) state.query = whole(words, "query", sequenceOf(state, payload).tokens.length - 1);
  return state;
}

function refuse(why) {
  throw new Error(`The link cannot be used (${shortened(why, 121)}); it was ignored.`);
}

function whole(words, key, most) {
  const text = words.get(key) ?? "0";
  if (!/^\d{1,9}$/.test(text) || Number(text) > most) refuse(`${key} is 0 to ${most}, not ${text}`);
  return Number(text);
}

// Positions written as "3, 5, cue": whole numbers inside the samples, or names of the task's places.
function placesFrom(text, payload) {
  const { tokens, places } = payload.samples;
  const least = Math.min(...tokens.map((row, i) => (payload.samples.mask ? payload.samples.mask[i].lastIndexOf(1) + 1 : row.length)));
  const found = text.split(",").map((word) => word.trim()).filter(Boolean).map((word) => {
    if (Object.hasOwn(places, word)) return word;
    if (!/^\d{1,6}$/.test(word) || Number(word) >= least) {
      const names = Object.keys(places);
      throw new Error(`${shortened(word, 41)} is no position: use 0 to ${least - 1}${names.length ? `, or ${names.join(", ")}` : ""}.`);
    }
    return Number(word);
  });
  return [...new Set(found)];
}
