// One head's pattern before, after, and their difference, side by side. Rows are queries, columns keys. Hovering a cell
// links row, column and tokens in all three and in the strip; a click locks, Escape releases, arrow keys move.
const MAPS = [["before", "Before", "s"], ["after", "After", "s"], ["difference", "Difference", "d"]];

function attentionPanel(view) {
  const { payload } = view;
  const select = make("select", { ariaLabel: "Head whose attention is shown" },
    ...partNames(payload.config).filter(isHead).map((name) => make("option", { value: name, textContent: name })));
  select.addEventListener("change", () => view.set({ head: select.value }));
  const maps = MAPS.map(([when, title, kind]) => attentionMap(view, when, title, kind));
  const read = make("p", { className: "lv-read", ariaLive: "polite" });
  const element = make("section", { className: "lv-attention", ariaLabel: "Attention" },
    make("header", {}, make("h4", {}, "Attention of ", select)),
    make("div", { className: "lv-maps" }, ...maps.map((map) => map.element)), read);
  exportable(view, element.querySelector("header"), "attention", () => ({ title: `Attention of ${view.state.head}`, svg: attentionSvg(view) }));

  function update() {
    select.value = view.state.head;
    maps.forEach((map) => map.draw());
    shade();
  }
  function shade() {
    maps.forEach((map) => map.mark());
    read.replaceChildren(...readOut(view));
  }
  return { element, update, shade, waits: true, shows: "look" };
}

function attentionMap(view, when, title, kind) {
  const canvas = make("canvas", { width: 1, height: 1 });
  const row = make("i", { className: "lv-mark" });
  const column = make("i", { className: "lv-mark" });
  const cover = make("span", { className: "lv-cover", textContent: "?" });
  const box = make("div", { className: "lv-map", tabIndex: 0, role: "application" }, canvas, row, column, cover);
  const ends = kind === "s" ? ["0", "1"] : ["−1", "+1"];
  const scale = make("span", { className: `lv-scale lv-scale-${kind}`, ariaHidden: "true" }, make("small", { textContent: ends[0] }), make("i"), make("small", { textContent: ends[1] }));
  const size = () => view.look?.sequence.tokens.length ?? 1;

  const cellAt = (event) => {
    const { left, top, width, height } = box.getBoundingClientRect();
    const at = (offset, whole) => Math.min(size() - 1, Math.max(0, Math.floor((offset / whole) * size())));
    return { query: at(event.clientY - top, height), key: at(event.clientX - left, width) };
  };
  const lock = ({ query, key }) => {
    view.lockedKey = key;
    view.hover = null;
    view.set({ query });
  };
  box.addEventListener("pointermove", (event) => view.setHover(cellAt(event)));
  box.addEventListener("pointerleave", () => view.setHover(null));
  box.addEventListener("click", (event) => lock(cellAt(event)));
  box.addEventListener("keydown", (event) => {
    const { query, key } = view.place();
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      lock({ query, key });
    }
    if (!step) return;
    event.preventDefault();
    const clamp = (value) => Math.min(size() - 1, Math.max(0, value));
    view.setHover({ query: clamp(query + step[0]), key: key === null ? query : clamp(key + step[1]) });
  });

  function draw() {
    const hidden = view.concealed && when !== "before";
    cover.hidden = !hidden && Boolean(view.look);
    cover.textContent = view.look ? "?" : "–";
    box.setAttribute("aria-label", `${title}, ${view.state.head}: ${view.look ? `${size()} queries by ${size()} keys; arrow keys move, Enter locks` : "nothing to show"}`);
    if (!view.look) return;
    const t = size();
    canvas.width = canvas.height = t;
    if (hidden) return;
    const colours = levels(box, kind);
    const image = new ImageData(t, t);
    const cells = new Uint32Array(image.data.buffer);
    for (let q = 0; q < t; q++) for (let k = 0; k <= q; k++) cells[q * t + k] = colours[levelOf(view.look.pattern, when, q * t + k)];
    canvas.getContext("2d").putImageData(image, 0, 0);
  }
  function mark() {
    const { query, key } = view.place();
    const part = 100 / size();
    row.hidden = !view.look || query === null;
    column.hidden = !view.look || key === null;
    Object.assign(row.style, { left: 0, width: "100%", top: `${query * part}%`, height: `${part}%` });
    Object.assign(column.style, { top: 0, height: "100%", left: `${key * part}%`, width: `${part}%` });
  }
  const element = make("div", {}, make("div", { className: "lv-map-title" }, make("span", { textContent: title }), scale), box,
    make("div", { className: "lv-axes", ariaHidden: "true" }, make("span", { textContent: "↓ query" }), make("span", { textContent: "key →" })));
  return { element, draw, mark };
}

// Level 0 to 100 of a cell on its map's scale.
function levelOf(pattern, when, at) {
  const value = when === "difference" ? (pattern.after[at] - pattern.before[at] + 1) / 2 : pattern[when][at];
  return Math.round(100 * Math.min(1, Math.max(0, value)));
}

// The theme's 101 colours of a map as little-endian RGBA words, read once a theme.
const levelsRead = new Map();
function levels(element, kind) {
  const theme = `${kind} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (!levelsRead.has(theme)) levelsRead.set(theme, readLevels(element, kind));
  return levelsRead.get(theme);
}

function readLevels(element, kind) {
  const style = getComputedStyle(element);
  return Uint32Array.from({ length: 101 }, (_, i) => {
    const hex = parseInt(style.getPropertyValue(`--${kind}${i}`).trim().slice(1), 16);
    return (0xff000000 | ((hex & 0xff) << 16) | (hex & 0xff00) | (hex >> 16)) >>> 0;
  });
}

// What the cross, or the row, says: texts and tokens, each token in an element of its own direction.
function readOut(view) {
  const { look, state, payload, concealed } = view;
  if (!look) return [view.nothing()];
  const t = look.sequence.tokens.length;
  const { query, key } = view.place();
  const shown = (p) => [tokenText(payload, look.sequence.tokens[p]), ` (${p})`];
  const weight = (when, k) => look.pattern[when][query * t + k].toFixed(2);
  const both = (k) => (concealed ? weight("before", k) : `${weight("before", k)} → ${weight("after", k)}`);
  if (key !== null) {
    if (key > query) return ["query ", ...shown(query), ": key ", ...shown(key), " lies ahead and is not seen"];
    return ["query ", ...shown(query), " looks at ", ...shown(key), `: ${both(key)}`];
  }
  const row = (when) => look.pattern[when].subarray(query * t, query * t + query + 1);
  const top = (when) => row(when).reduce((best, value, k, all) => (value > all[best] ? k : best), 0);
  const named = [...new Set(concealed ? [top("before")] : [top("before"), top("after")])];
  return [`${state.head}: query `, ...shown(query), " looks most at ", ...named.flatMap((k, i) => [i ? ", " : "", ...shown(k), ` ${both(k)}`])];
}
