// The grid of layers x heads (and MLPs), the last layer on top as the residual stream flows upwards. Arrow keys move,
// Space or Enter cycles, a click cycles, a drag gives the cells that it crosses the state of the first.
function headsPanel(view) {
  const { payload } = view;
  const { n_layers: layers, n_heads: heads, d_mlp: mlp } = payload.config;
  const cells = new Map();
  const rows = range(layers).reverse().map((l) => {
    const names = [...range(heads).map((h) => `L${l}.H${h}`), ...(mlp ? [`L${l}.mlp`] : [])];
    const row = make("div", { className: "lv-row", role: "row" }, make("span", { className: "lv-layer", role: "rowheader", textContent: `L${l}` }));
    for (const name of names) {
      const cell = make("button", { type: "button", className: isHead(name) ? "lv-cell" : "lv-cell lv-mlp", tabIndex: -1 });
      cell.dataset.head = name;
      cell.append(make("span", { textContent: name.split(".")[1] }), make("span", { className: "lv-glyph", ariaHidden: "true" }));
      cells.set(name, cell);
      row.append(make("span", { role: "gridcell" }, cell));
    }
    return row;
  });
  const grid = make("div", { className: "lv-grid", role: "grid", ariaLabel: "Heads and what replaces them" }, ...rows);
  cells.get(view.state.head).tabIndex = 0;

  function put(names, value) {
    const way = value === "on" ? view.state.way : value;
    const parts = names.reduce((made, name) => withPart(made, name, value), view.state.parts);
    view.set({ parts, way, head: names.filter(isHead).pop() ?? view.state.head });
  }
  const cycle = (name) => put([name], nextValue(view.state.parts, name, payload.ways));

  // A mouse acts when pressed, so that a drag can paint; touch and keyboard act on the click.
  let painting = null;
  let from = [0, 0];
  let pressed = null;
  grid.addEventListener("pointerdown", (event) => {
    const cell = event.target.closest(".lv-cell");
    if (!cell || event.button !== 0 || event.pointerType !== "mouse") return;
    pressed = cell;
    cycle(cell.dataset.head);
    painting = view.state.parts[cell.dataset.head] ?? "on";
    from = [event.clientX, event.clientY];
  });
  // A quick pointer jumps: every cell on the way from where it was is crossed.
  grid.addEventListener("pointermove", (event) => {
    if (painting === null || event.buttons !== 1) return;
    const [x, y] = from;
    from = [event.clientX, event.clientY];
    const steps = Math.max(1, Math.ceil(Math.hypot(from[0] - x, from[1] - y) / 6));
    const crossed = range(steps).map((i) => (i + 1) / steps).map((share) =>
      grid.getRootNode().elementFromPoint(x + share * (from[0] - x), y + share * (from[1] - y))?.closest(".lv-cell")?.dataset.head);
    const names = [...new Set(crossed)].filter((name) => name && cells.has(name) && (view.state.parts[name] ?? "on") !== painting);
    if (names.length) put(names, painting);
  });
  const release = () => { painting = null; };
  addEventListener("pointerup", release);
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest(".lv-cell");
    if (!cell) return;
    if (cell !== pressed || event.detail === 0) cycle(cell.dataset.head);
    pressed = null;
  });

  grid.addEventListener("focusin", (event) => {
    const cell = event.target.closest(".lv-cell");
    if (!cell) return;
    cells.forEach((other) => { other.tabIndex = other === cell ? 0 : -1; });
  });
  grid.addEventListener("keydown", (event) => {
    const name = event.target.closest(".lv-cell")?.dataset.head;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    if (!name || !step) return;
    event.preventDefault();
    const [layer, part] = name.split(".");
    const column = part === "mlp" ? heads : Number(part.slice(1));
    const to = column + step[1];
    const target = cells.get(`L${Number(layer.slice(1)) + step[0]}.${to === heads ? "mlp" : `H${to}`}`);
    if (!target) return;
    target.focus();
    if (isHead(target.dataset.head)) view.set({ head: target.dataset.head });
  });

  function update() {
    cells.forEach((cell, name) => {
      const value = view.state.parts[name] ?? "on";
      cell.dataset.state = value;
      cell.lastChild.textContent = GLYPH[value];
      cell.setAttribute("aria-label", `${name}: ${value}`);
      if (name === view.state.head) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    });
    printed.textContent = `Changed: ${changeWords(view.state)}.`;
  }

  const printed = make("p", { className: "lv-printed" });
  const legend = make("p", { className: "lv-legend" }, ...["on", ...payload.ways].map((way) => {
    const key = make("span", { textContent: `${way} ${GLYPH[way]}` });
    key.dataset.key = way;
    return key;
  }));
  const element = make("section", { className: "lv-heads", ariaLabel: "Heads" },
    make("h4", { textContent: "Heads" }),
    make("p", { className: "lv-hint", textContent: "Click, or arrow keys and Space, to cycle a head; drag to paint." }), make("div", { className: "lv-scroll" }, grid), legend, printed);
  return { element, update, close: () => removeEventListener("pointerup", release) };
}
