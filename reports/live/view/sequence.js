// The sequence that is looked at: a sample of the task, or tokens typed by the reader. A token is a query: hovering looks,
// a click locks, Escape releases.
function sequencePanel(view) {
  const { payload } = view;
  const { n } = payload.samples;
  const name = make("span", { className: "lv-soft" });
  const step = (by) => view.set({ sample: (view.state.sample + by + n) % n, tokens: null, query: null });
  const pick = make("input", { type: "number", min: 1, max: n, value: 1, ariaLabel: `Sample, 1 to ${n}` });
  pick.addEventListener("change", () => {
    const number = Math.round(Number(pick.value));
    if (number >= 1 && number <= n) view.set({ sample: number - 1, tokens: null, query: null });
    else pick.value = view.state.sample + 1;
  });
  const fresh = payload.backend === "server" ? [button("new samples", () => view.draw(view.state.draw + 1))] : [];
  const edit = button("edit", () => open(form.hidden), { ariaExpanded: "false" });
  const list = make("div", { className: "lv-tokens", role: "group", ariaLabel: "Tokens; choose a query" });

  const area = make("textarea", { rows: 2, spellcheck: false, autocomplete: "off", autocapitalize: "off", ariaLabel: "Tokens, with blanks between" });
  const wrong = make("p", { className: "lv-wrong", role: "alert" });
  const missed = make("p", { className: "lv-wrong", role: "alert" });
  const form = make("form", { className: "lv-edit", hidden: true }, area,
    make("div", {}, make("button", { type: "submit", className: "lv-chip", textContent: "use these tokens" }), button("cancel", () => open(false))), wrong);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      const tokens = readTokens(area.value, payload);
      open(false);
      view.set({ tokens, query: null });
    } catch (error) {
      wrong.textContent = error.message;
      area.setAttribute("aria-invalid", "true");
    }
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); }
    if (event.key === "Escape") { event.stopPropagation(); open(false); edit.focus(); }
  });
  function open(on) {
    form.hidden = !on;
    edit.setAttribute("aria-expanded", on);
    wrong.textContent = "";
    area.removeAttribute("aria-invalid");
    if (!on) return;
    area.value = writtenTokens(sequenceOf(view.state, payload).tokens, payload);
    area.focus();
  }

  let drawn = "";
  let tokens = [];
  let shaded = [];
  function build(sequence) {
    const key = sequence.tokens.join(".") + sequence.scored.join("");
    if (key === drawn) return;
    drawn = key;
    shaded = [];
    tokens = sequence.tokens.map((id, p) => {
      const token = make("button", { type: "button", className: "lv-token", tabIndex: p ? -1 : 0 }, tokenText(payload, id));
      token.setAttribute("aria-label", `position ${p}: ${payload.vocabulary.shown[id]}`);
      token.classList.toggle("lv-scored", Boolean(sequence.scored[p]));
      token.addEventListener("click", () => { view.hover = null; view.set({ query: view.state.query === p ? null : p }); });
      token.addEventListener("pointerenter", () => view.setHover({ query: p, key: null }));
      return token;
    });
    list.replaceChildren(...tokens);
  }
  list.addEventListener("pointerleave", () => view.setHover(null));
  list.addEventListener("keydown", (event) => {
    const from = tokens.indexOf(document.activeElement);
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined || !tokens[to]) return;
    event.preventDefault();
    view.set({ query: to });
    rove(tokens, to);
  });

  function update() {
    const { state } = view;
    const sequence = sequenceOf(state, payload);
    build(sequence);
    name.textContent = state.tokens ? "your own tokens" : `of ${n}`;
    pick.value = state.sample + 1;
    missed.textContent = view.wrong.sequence;
    shade();
  }
  // Each token in the weight that the query gives it, before or (where it is shown) after.
  function shade() {
    const { look, state } = view;
    const place = view.place();
    tokens.forEach((token, p) => {
      const t = tokens.length;
      const fits = look && look.sequence.tokens.length === t;
      const pattern = fits ? look.pattern[view.concealed ? "before" : "after"] : null;
      const weight = pattern && place.query !== null && p <= place.query ? pattern[place.query * t + p] : 0;
      const level = Math.round(100 * Math.min(1, Math.max(0, weight)));
      const how = `${level} ${p === place.query} ${p === place.key} ${state.query === p}`;
      if (shaded[p] === how) return;
      shaded[p] = how;
      token.style.background = level ? `var(--s${level})` : "";
      token.style.color = level ? `var(--t${level})` : "";
      token.classList.toggle("lv-query", p === place.query);
      token.classList.toggle("lv-key", p === place.key);
      token.setAttribute("aria-pressed", state.query === p);
    });
  }
  const element = make("section", { className: "lv-sequence", ariaLabel: "Sequence" },
    make("header", {}, make("h4", { textContent: "Sequence" }),
      make("div", { className: "lv-pick" }, button("‹", () => step(-1), { ariaLabel: "previous sample" }), pick, name, button("›", () => step(1), { ariaLabel: "next sample" }), edit, ...fresh)),
    list, missed, form, make("p", { className: "lv-hint", textContent: "Shaded by the weight that the outlined query gives each key, after the change. Dotted tokens are scored. Hover to look, click to lock, Escape to release." }));
  return { element, update, shade };
}
