// What acts on the whole: invert, keep only, reset, presets, frozen patterns, positions, and the wish to guess first.
function controlsPanel(view) {
  const { payload } = view;
  const { config } = payload;
  const keep = button("", () => view.set({ parts: keptOnly([view.state.head], view.state, config) }));
  const actions = make("div", { className: "lv-actions" },
    button("invert", () => view.set({ parts: inverted(view.state, config) }), { title: "Heads that are off come on, the others go off; MLPs stay." }), keep,
    button("reset", () => start({})));
  // A change from the start: nothing that was set before stays, nor what was wrong with it.
  function start(parts) {
    say("");
    at.value = "";
    view.set({ parts, frozen: false, at: [] });
  }

  const presets = payload.presets.map((preset) => {
    const chip = button(preset.name, () => start({ ...preset.states }), { className: "lv-chip", title: preset.note });
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
  const at = make("input", { type: "text", placeholder: "everywhere", size: 12, spellcheck: false, autocomplete: "off", ariaLabel: "Positions at which parts are replaced" });
  const hint = make("span", { className: "lv-hint", textContent: `such as 3${places.length ? `, ${places[0]}` : ", 5"}` });
  const wrong = make("p", { className: "lv-wrong", role: "alert" });
  let written = ""; // the positions that the field has last been given
  let typed = ""; // what is wrong with what stands in the field
  function say(text) {
    typed = text;
    const shown = typed || view.wrong.at;
    if (wrong.textContent !== shown) wrong.textContent = shown;
    if (shown) at.setAttribute("aria-invalid", "true");
    else at.removeAttribute("aria-invalid");
  }
  at.addEventListener("change", () => {
    try {
      const places = placesFrom(at.value, payload);
      say("");
      view.set({ at: places });
    } catch (error) {
      say(error.message);
    }
  });

  function update() {
    const { state } = view;
    keep.textContent = `keep only ${state.head}`;
    frozen.box.checked = state.frozen;
    guessing.box.checked = state.guessing;
    const now = state.at.join(", ");
    if (now !== written) typed = ""; // a link has set others
    say(typed);
    if (now !== written || (document.activeElement !== at && !typed)) at.value = now;
    written = now;
    presets.forEach((chip, i) => chip.setAttribute("aria-pressed", !state.frozen && !state.at.length && same(payload.presets[i].states, state.parts)));
  }
  const element = make("section", { className: "lv-controls", ariaLabel: "Settings" }, actions,
    ...(presets.length ? [make("div", { className: "lv-presets", role: "group", ariaLabel: "Presets" }, ...presets)] : []),
    make("div", { className: "lv-options" }, frozen.label, guessing.label,
      make("label", {}, make("span", { textContent: "at positions " }), at, hint)), wrong);
  return { element, update };
}
