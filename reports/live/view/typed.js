// Sequences that a reader types: tokens as the page shows them, with blanks between; a token that itself holds a blank
// or a quotation mark stands in JSON quotes.
function writtenToken(id, payload) {
  const shown = payload.vocabulary.shown[id];
  return /[\s"]/.test(shown) ? JSON.stringify(payload.vocabulary.tokens[id]) : shown;
}

const writtenTokens = (ids, payload) => ids.map((id) => writtenToken(id, payload)).join(" ");

// The ids of a typed text, or an Error with everything that is wrong with it.
function readTokens(text, payload) {
  const { tokens, shown } = payload.vocabulary;
  const words = text.match(/"(?:[^"\\]|\\.)*"|\S+/g) ?? [];
  const unknown = [];
  const ids = words.map((word) => {
    let id = shown.indexOf(word);
    if (id < 0) id = tokens.indexOf(unquoted(word));
    if (id < 0) unknown.push(word);
    return id;
  });
  if (unknown.length) {
    const named = [...new Set(unknown)].slice(0, 3).map((word) => shortened(word, 25));
    const more = new Set(unknown).size > 3 ? " and others" : "";
    const some = shown.slice(0, 6).join(" ");
    throw new Error(`Not in the vocabulary: ${named.join(" ")}${more}. It has ${tokens.length} tokens: ${some}${tokens.length > 6 ? " …" : ""}`);
  }
  const problem = tokensProblem(ids, payload);
  if (problem) throw new Error(problem);
  return ids;
}

function unquoted(word) {
  if (!word.startsWith('"')) return word;
  try {
    return JSON.parse(word);
  } catch {
    return word;
  }
}

// Why these ids are no sequence for the model, or "".
function tokensProblem(ids, payload) {
  const { n_ctx: most, d_vocab: v } = payload.config;
  if (!ids.length) return `A sequence needs tokens: 1 to ${most}.`;
  if (ids.length > most) return `The sequence has ${ids.length} tokens; the model's context holds ${most}.`;
  const outside = ids.find((id) => !(id >= 0 && id < v));
  return outside === undefined ? "" : `A token id lies outside the vocabulary (0 to ${v - 1}).`;
}
