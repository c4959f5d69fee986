// Attention over a long sequence: every head small, one enlarged on a canvas that zooms, a cross that links a query, a
// key and their tokens, and the weights in words. Everything a mouse does, a keyboard does; Escape releases.
const LEAST = 8; // cells a side of the closest look
const THUMB = 74;
const HINT = "Click locks, Escape releases. Drag pans; the wheel zooms once the map has the focus (or with Ctrl), two " +
  "fingers on a touch screen. Keys: arrows move the cross (Shift by 10), Enter locks, + and − zoom, 0 shows all, " +
  "[ and ] change the head.";

function build(root) {
  const figure = root.closest("figure");
  const data = material(figure);
  const { size, causal, names, labels } = data;
  let head = 0;
  let cursor = null;
  let locked = false;
  let view = windowOf(0, 0, size, size, LEAST);
  let place = null;
  let colours = null;
  const stale = new Set();

  const base = html("canvas");
  const over = html("canvas");
  const map = html("div", { className: "map", tabIndex: 0, role: "application" }, base, over);
  map.setAttribute("aria-describedby", `${figure.id}--hint`);
  const title = html("h4");
  const pair = (name, ...inside) => html("div", {}, html("dt", { textContent: name }), html("dd", {}, ...inside));
  const [query, key, weight, row] = [html("bdi"), html("bdi"), html("span"), html("ol", { className: "strongest" })];
  const reading = html("dl", {}, pair("query", query), pair("key", key), pair("weight", weight), pair("row’s largest", row));
  const state = html("p", { className: "state" });
  const status = html("p", { className: "unseen", role: "status" });
  const ask = (textContent, does, act) => {
    const button = html("button", { type: "button", textContent, label: `${textContent}: ${does}` });
    button.addEventListener("click", act);
    return button;
  };
  const tools = html("div", { className: "ask", role: "group", label: "The map" },
    ask("+", "zoom in", () => closer(1.6)), ask("−", "zoom out", () => closer(1 / 1.6)),
    ask("all", "show the whole map", () => look(0, 0, size)),
    ask("PNG of this head", "save the shown map as PNG", savePicture),
    ask("CSV of this head", "save the shown head's weights as CSV", () =>
      save(new Blob([csv(data, head)], { type: "text/csv;charset=utf-8" }), `${figure.id}-${head}.csv`)));
  const ramp = html("div", { className: "ramp" });
  const scale = html("div", { className: "scale", role: "img", label: "Colours: weight 0 to 1 by its square root" },
    ramp, ...TICKS.map((tick) => {
      const mark = html("span", { textContent: tick });
      mark.style.left = `${100 * Math.sqrt(tick)}%`;
      return mark;
    }));
  ramp.style.forcedColorAdjust = "none";
  ramp.style.background = `linear-gradient(90deg,${Array.from({ length: 11 }, (_, i) => `var(--s${10 * i})`)})`;
  const missing = data.marks.includes("n/a") ? [html("p", { className: "missing", textContent: "weight not defined (n/a)" })] : [];
  const hint = html("p", { className: "hint", id: `${figure.id}--hint`, textContent: HINT });
  const heads = names.map((name, i) => {
    const button = html("button", { type: "button", role: "radio" },
      html("canvas"), html("bdi", { textContent: name }), html("small"));
    button.addEventListener("click", () => choose(i));
    return button;
  });
  const gallery = html("div", { className: "heads", role: "radiogroup", label: "Heads; the chosen one is enlarged" }, ...heads);
  const words = labels.map((one, i) => {
    const option = html("span", { role: "option", id: `${figure.id}--token-${i}`, title: one.at }, html("bdi", { textContent: one.text }));
    option.dataset.at = i;
    return option;
  });
  const list = html("div", { className: "words", tabIndex: 0, role: "listbox", label: "Tokens; the chosen one is the query" }, ...words);
  const beside = html("div", { className: "beside" }, title, tools, reading, state, scale, ...missing, hint);
  root.append(gallery, html("div", { className: "stage" }, map, beside), list, status);

  // Drawing: at most once a frame, and only what changed.
  function redraw(...parts) {
    if (!stale.size) requestAnimationFrame(draw);
    parts.forEach((part) => stale.add(part));
  }

  function draw() {
    const parts = new Set(stale);
    stale.clear();
    const room = map.clientWidth;
    if (!room) return; // not shown; drawn when it is
    const ratio = window.devicePixelRatio || 1;
    if (parts.has("size")) {
      place = geometry(room, Math.max(240, 0.78 * window.innerHeight), size, ratio);
      map.style.height = `${place.height}px`;
      colours = coloursOf(getComputedStyle(root));
      heads.forEach((button, i) => {
        const context = fit(button.firstChild, THUMB, THUMB, ratio);
        drawCells(context, { left: 0, top: 0, side: THUMB }, ratio, data.levels(i), causal, windowOf(0, 0, size, size, LEAST), colours);
      });
    }
    if (parts.has("size") || parts.has("cells")) {
      const context = fit(base, place.width, place.height, ratio);
      const every = drawCells(context, place, ratio, data.levels(head), causal, view, colours);
      drawAxes(context, place, view, labels, data.every, colours);
      state.dataset.pixels = every;
      map.dataset.plot = [place.left, place.top, place.side].join(" ");
      map.dataset.window = [view.x, view.y, view.span].join(" ");
      map.style.touchAction = view.span < size ? "none" : "pan-x pan-y";
    }
    const context = fit(over, place.width, place.height, ratio);
    if (cursor) drawCross(context, place, view, cursor, locked, causal, labels, colours);
    root.dataset.drawn = true;
    say();
  }

  // The weights in words, and every token shaded by how much the query looks at it.
  function say() {
    const codes = data.levels(head)[0].codes;
    const every = Number(state.dataset.pixels);
    title.replaceChildren(html("bdi", { textContent: names[head] }), data.marks[head] ? ` · ${data.marks[head]}` : "");
    state.textContent = (locked ? "Locked. " : "") + (every > 1 ? `A pixel shows the largest of ${every} × ${every}; zoom in for each.` : "");
    map.setAttribute("aria-label", `Attention of ${names[head]}, ${size} queries by ${size} keys`);
    heads.forEach((button, i) => {
      button.setAttribute("aria-checked", i === head);
      button.tabIndex = i === head ? 0 : -1;
      const code = cursor && data.code(i, cursor.q, cursor.k);
      const small = cursor ? shortWeight(code) : data.marks[i];
      button.lastChild.textContent = small;
      button.setAttribute("aria-label", small ? `${names[i]}, ${small}` : names[i]);
    });
    const name = (i) => `${labels[i].text} (${labels[i].at})`;
    query.textContent = cursor ? name(cursor.q) : "–";
    key.textContent = cursor ? name(cursor.k) : "–";
    weight.textContent = cursor ? shownWeight(codes[cursor.q * size + cursor.k]) : "–";
    const top = cursor ? strongest(codes, size, cursor.q, causal, 4) : [];
    row.replaceChildren(...top.map(([code, k]) => html("li", {}, html("bdi", { textContent: name(k) }), ` ${shortWeight(code)}`)));
    words.forEach((word, k) => {
      const code = cursor ? codes[cursor.q * size + k] : 0;
      const level = code === MISSING || (causal && cursor && k > cursor.q) ? 0 : Math.round((100 * code) / TOP);
      word.style.background = level ? `var(--s${level})` : "";
      word.style.color = level ? `var(--t${level})` : "";
      word.setAttribute("aria-selected", cursor?.q === k);
      word.classList.toggle("key", cursor?.k === k);
    });
    if (cursor) list.setAttribute("aria-activedescendant", words[cursor.q].id);
    else list.removeAttribute("aria-activedescendant");
  }

  function tell() {
    const name = (i) => `${labels[i].text} at ${labels[i].at}`;
    const said = cursor && `${names[head]}: query ${name(cursor.q)}, key ${name(cursor.k)}, weight ${shownWeight(data.code(head, cursor.q, cursor.k))}`;
    status.textContent = cursor ? said + (locked ? ", locked" : "") : "released";
  }

  // What changes what is shown.
  function choose(next) {
    head = clamp(next, 0, names.length - 1);
    redraw("cells");
    status.textContent = `${names[head]} enlarged${data.marks[head] ? `, ${data.marks[head]}` : ""}`;
  }

  function look(x, y, span) {
    const before = view;
    view = windowOf(x, y, span, size, LEAST);
    redraw("cells");
    return before.span !== view.span || before.x !== view.x || before.y !== view.y;
  }

  function closer(factor) {
    const [x, y] = cursor ? [cursor.k + 0.5, cursor.q + 0.5] : [view.x + view.span / 2, view.y + view.span / 2];
    const next = zoomed(view, factor, x, y, size, LEAST);
    look(next.x, next.y, next.span);
  }

  function point(q, k) {
    const inside = clamp(q, 0, size - 1);
    cursor = { q: inside, k: clamp(k, 0, causal ? inside : size - 1) };
    redraw("cross");
  }

  function reveal() {
    const into = (start, at) => (at < start ? at : Math.max(start, at + 1 - view.span));
    if (view.span < size) look(into(view.x, cursor.k), into(view.y, cursor.q), view.span);
    const [inside, word] = [list.getBoundingClientRect(), words[cursor.q].getBoundingClientRect()];
    if (word.top < inside.top || word.bottom > inside.bottom) list.scrollTop += word.top - inside.top - inside.height / 2;
    tell();
  }

  function release() {
    cursor = null;
    locked = false;
    redraw("cross");
    tell();
  }

  function savePicture() {
    const note = view.span < size ? `part of ${size} × ${size}` : `${size} × ${size}`;
    const light = coloursOf(getComputedStyle(document.getElementById("light")));
    const title = `${names[head]} · ${figure.querySelector("h3").textContent}`;
    picture(title, note, data.levels(head), causal, view, labels, data.every, light)
      .toBlob((blob) => save(blob, `${figure.id}-${head}.png`), "image/png");
  }

  const cellAt = (x, y) => {
    const [k, q] = [view.x + ((x - place.left) / place.side) * view.span, view.y + ((y - place.top) / place.side) * view.span];
    const inside = x >= place.left && x < place.left + place.side && y >= place.top && y < place.top + place.side;
    return inside && k >= 0 && q < size && k < (causal ? Math.floor(q) + 1 : size) ? [Math.floor(q), Math.floor(k)] : null;
  };
  function unlocked(cell) {
    if (locked) return;
    if (cell) point(...cell);
    else if (cursor) { cursor = null; redraw("cross"); }
  }
  gestures(map, {
    point: (x, y) => unlocked(place && cellAt(x, y)),
    leave: () => unlocked(null),
    tap(x, y) {
      const cell = cellAt(x, y);
      map.focus({ preventScroll: true });
      if (!cell || (locked && cursor.q === cell[0] && cursor.k === cell[1])) return release();
      locked = true;
      point(...cell);
      return reveal();
    },
    pan: (dx, dy) => look(view.x - (dx / place.side) * view.span, view.y - (dy / place.side) * view.span, view.span),
    zoom(factor, x, y) {
      const at = (start, from, pixel) => start + clamp((pixel - from) / place.side, 0, 1) * view.span;
      const next = zoomed(view, factor, at(view.x, place.left, x), at(view.y, place.top, y), size, LEAST);
      return look(next.x, next.y, next.span);
    },
  });

  const moves = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0],
    Home: [0, -Infinity], End: [0, Infinity],
  };
  const keys = {
    "+": () => closer(1.6), "=": () => closer(1.6), "-": () => closer(1 / 1.6), 0: () => look(0, 0, size),
    "[": () => choose(head - 1), "]": () => choose(head + 1), Enter: lock, " ": lock,
  };
  function lock() {
    if (!cursor) return;
    locked = !locked;
    redraw("cross");
    tell();
  }
  const held = (handle) => (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !handle(event)) return;
    event.preventDefault();
  };
  map.addEventListener("keydown", held((event) => {
    const move = moves[event.key];
    if (move) {
      const times = event.shiftKey ? 10 : 1;
      const from = cursor ?? { q: Math.floor(view.y), k: Math.floor(view.x) };
      point(from.q + (cursor ? times * move[0] : 0), from.k + (cursor ? times * move[1] : 0));
      reveal();
    } else if (keys[event.key]) {
      keys[event.key]();
    }
    return move || keys[event.key];
  }));
  gallery.addEventListener("keydown", held((event) => {
    const to = { ArrowRight: head + 1, ArrowDown: head + 1, ArrowLeft: head - 1, ArrowUp: head - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return false;
    choose(to);
    heads[head].focus();
    return true;
  }));
  const onQuery = (q) => {
    const found = strongest(data.levels(head)[0].codes, size, clamp(q, 0, size - 1), causal, 1);
    point(q, found.length ? found[0][1] : 0);
  };
  list.addEventListener("keydown", held((event) => {
    const q = cursor ? cursor.q : -1;
    const to = { ArrowRight: q + 1, ArrowDown: q + 1, ArrowLeft: q - 1, ArrowUp: q - 1, Home: 0, End: size - 1 }[event.key];
    if (to === undefined && event.key !== "Enter" && event.key !== " ") return false;
    if (to === undefined) lock();
    else { onQuery(to); reveal(); }
    return true;
  }));
  const wordOf = (event) => event.target.closest("[role=option]");
  list.addEventListener("pointerover", (event) => { if (!locked && wordOf(event)) onQuery(Number(wordOf(event).dataset.at)); });
  list.addEventListener("pointerleave", () => unlocked(null));
  list.addEventListener("click", (event) => {
    if (!wordOf(event)) return;
    const q = Number(wordOf(event).dataset.at);
    if (locked && cursor.q === q) return void release();
    locked = true;
    onQuery(q);
    tell();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && cursor) release(); });
  let wide = 0;
  new ResizeObserver(() => {
    if (map.clientWidth !== wide) redraw("size");
    wide = map.clientWidth;
  }).observe(map);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw("size"));
}

document.querySelectorAll(".long-view").forEach((root) => {
  try {
    build(root);
  } catch (error) {
    root.prepend(html("p", { textContent: `The interactive view could not be drawn: ${error.message}` }));
    root.parentElement.querySelector(".still").classList.add("open");
  }
});
