// What acts on the whole: invert, keep only, reset, presets, frozen patterns, positions, and the wish to guess first.
function controlsPanel(view) {
  const { payload } = view;
  const { config } = payload;
  const keep = button("", () => view.set({ parts: keptOnly([view.state.head], view.state, config) }));
  const actions = make("div", { className: "lv-actions" },
    button("invert", () => view.set({ parts: inverted(view.state, config) })), keep,
    button("reset", () => view.set({ parts: {}, frozen: false, at: [] })));

  const presets = payload.presets.map((preset) => {
    const chip = button(preset.name, () => view.set({ parts: { ...preset.states } }), { className: "lv-chip", title: preset.note });
    chip.dataset.preset = preset.name;
    return chip;
  });
  const same = (a, b) => Object.keys(a).length === Object.keys(b).length && Object.keys(a).every((key) => a[key] === b[key]);

  const check = (text, name, help) => {
    const box = make("input", { type: "checkbox", onchange: () => view.set({ [name]: box.checked }) });
    box.dataset.control = name;
    return { box, label: make("label", { title: help }, box, make("span", { textContent: text })) };
  };
  const frozen = check("hold every attention pattern", "frozen", "Frozen patterns: only the direct effect of what the parts write remains.");
  const guessing = check("guess before you see", "guessing", "Hides the effect until you have said what you expect.");

  const places = Object.keys(payload.samples.places);
  const hint = ["everywhere", ...places.slice(0, 1).map((name) => `or 3, ${name}`)].join(", ");
  const at = make("input", { type: "text", placeholder: hint, size: 18, spellcheck: false, autocomplete: "off", ariaLabel: "Positions at which parts are replaced" });
  const wrong = make("p", { className: "lv-wrong", role: "alert" });
  at.addEventListener("change", () => {
    try {
      view.set({ at: placesFrom(at.value, payload) });
      wrong.textContent = "";
      at.removeAttribute("aria-invalid");
    } catch (error) {
      wrong.textContent = error.message;
      at.setAttribute("aria-invalid", "true");
    }
  });

  function update() {
    const { state } = view;
    keep.textContent = `keep only ${state.head}`;
    frozen.box.checked = state.frozen;
    guessing.box.checked = state.guessing;
    if (document.activeElement !== at && !wrong.textContent) at.value = state.at.join(", ");
    presets.forEach((chip, i) => chip.setAttribute("aria-pressed", same(payload.presets[i].states, state.parts)));
  }
  const element = make("section", { className: "lv-controls", ariaLabel: "Settings" }, actions,
    ...(presets.length ? [make("div", { className: "lv-presets", role: "group", ariaLabel: "Presets" }, ...presets)] : []),
    make("div", { className: "lv-options" }, frozen.label, guessing.label,
      make("label", {}, make("span", { textContent: "at positions " }), at)), wrong);
  return { element, update };
}
