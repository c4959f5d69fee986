// What a page carries of a figure, unpacked as it is asked for; and what leaves the page.
const html = (tag, properties = {}, ...children) => {
  const { role, label: named, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  if (role) element.setAttribute("role", role);
  if (named) element.setAttribute("aria-label", named);
  element.append(...children);
  return element;
};

function save(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const field = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replace(/"/g, '""')}"` : String(value));

// What the page carries of a figure, with a square and its reductions for each head once it is asked for.
function material(figure) {
  const data = JSON.parse(figure.querySelector("script.cells").textContent);
  const { every, size, tokens, raw } = data;
  const bytes = unpack(data.cells);
  const made = new Map();
  const span = (i) => [i * every, Math.min((i + 1) * every, tokens.length) - 1];
  return {
    ...data,
    levels(head) {
      if (!made.has(head)) made.set(head, pyramid(square(bytes, head, size, data.causal), size));
      return made.get(head);
    },
    code(head, q, k) {
      if (data.causal && k > q) return undefined;
      return bytes[data.causal ? (head * size * (size + 1)) / 2 + (q * (q + 1)) / 2 + k : (head * size + q) * size + k];
    },
    labels: Array.from({ length: size }, (_, i) => {
      const [from, to] = span(i);
      const text = from === to ? tokens[from] : `${tokens[from]} … ${tokens[to]}`;
      return { text, at: from === to ? String(from) : `${from}–${to}`, raw: raw.slice(from, to + 1).join(" ") };
    }),
  };
}

// A spreadsheet takes a text that begins like a formula for one, so an apostrophe stands before it.
const plain = (text) => text.replace(/^[=+\-@\t\r]/, "'$&");

function csv(data, head) {
  const codes = data.levels(head)[0].codes;
  const lines = ["head,query,query_token,key,key_token,weight,within"];
  for (let q = 0; q < data.size; q++) {
    for (let k = 0; k < (data.causal ? q + 1 : data.size); k++) {
      const code = codes[q * data.size + k];
      const numbers = code === MISSING ? ["", ""] : [weightOf(code).toFixed(6), within(code).toFixed(6)];
      const [query, key] = [data.labels[q], data.labels[k]];
      lines.push([plain(data.heads[head]), query.at, plain(query.raw), key.at, plain(key.raw), ...numbers].map(field).join(","));
    }
  }
  return lines.join("\r\n") + "\r\n";
}
