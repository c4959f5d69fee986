// The ablation view in an element. It holds the state, asks the backend, and lets every panel draw what there is.
function mount(element, payload, { anchor = "ablation", fragment = true, backend = null } = {}) {
  const said = make("p", { className: "unseen", role: "status" });
  const agreement = make("p", { className: "lv-agreement" });
  const trouble = make("p", { className: "lv-trouble", role: "alert", hidden: true });
  const widths = new Map(); // of the charts; reading them while drawing would lay the page out each time
  const view = {
    payload, state: startState(payload), look: null, looking: true, score: null, scoring: true, wrong: { at: "", sequence: "" }, hover: null, lockedKey: null, guess: null, revealed: true,
    get concealed() { return this.state.guessing && !this.revealed && isChanged(this.state); },
    place: () => view.hover ?? { query: view.look ? queryOf(view.state, view.look.sequence) : null, key: view.lockedKey },
    nothing: () => (view.looking ? "" : "Nothing to show: the sequence cannot be computed with this change."),
    link: fragment ? () => location.href.split("#")[0] + fragmentOf(view.state, payload, anchor) : null,
    widthOf: (chart) => widths.get(chart) || 360,
    setHover, set, reveal, draw,
  };
  element.classList.add("live-view");
  element.dataset.anchor = anchor;
  element.style.setProperty("--columns", payload.config.n_heads + (payload.config.d_mlp ? 1 : 0));
  const panels = [headsPanel, controlsPanel, scorePanel, sequencePanel, attentionPanel, predictionsPanel, lossesPanel, takeoutPanel].map((panel) => panel(view));
  const [heads, controls, score, sequence, attention, predictions, losses, takeout] = panels.map((panel) => panel.element);
  const body = make("div", { className: "lv-body" }, make("div", { className: "lv-side" }, heads, controls), make("div", { className: "lv-main" }, score, sequence),
    attention, make("div", { className: "lv-two" }, predictions, losses), panels[6].table, takeout);
  const probe = make("span", { className: "light lv-light", hidden: true });
  element.replaceChildren(agreement, trouble, body, said, probe);

  let ask;
  const update = (chosen = panels) => chosen.forEach((panel) => panel.update());
  const atOnce = panels.filter((panel) => !panel.waits); // the others draw what the model says, when it has said it
  const exports = panels.map((panel) => panel.element.querySelectorAll("[data-export]"));
  const shade = () => panels.forEach((panel) => panel.shade?.());

  function set(patch) {
    const { state: old, concealed } = view;
    view.state = { ...old, ...patch };
    view.state.last = { ...old.last, ...view.state.parts };
    const changed = (...names) => names.some((name) => JSON.stringify(view.state[name]) !== JSON.stringify(old[name]));
    const another = changed("parts", "frozen", "at");
    if (another || changed("guessing")) Object.assign(view, { revealed: false, guess: null });
    if (changed("sample", "tokens", "draw")) view.lockedKey = null;
    if (changed("query") && view.state.query === null) view.lockedKey = null;
    const looking = another || changed("sample", "tokens", "draw", "head");
    if (looking) lookAt();
    if (another || changed("draw")) findScore(another);
    update(looking && view.looking && view.concealed === concealed ? atOnce : panels);
    write();
  }
  // What is shown is taken out only while it is that of the present state.
  function markReady() {
    const ready = { look: view.look && !view.looking, score: view.score && !view.scoring };
    panels.forEach(({ shows, element: section }, i) => {
      if (!shows) return;
      section.setAttribute("aria-busy", shows === "look" ? view.looking : view.scoring);
      exports[i].forEach((tool) => { tool.disabled = !ready[shows]; });
    });
  }
  function setHover(place) {
    if (JSON.stringify(place) === JSON.stringify(view.hover)) return;
    view.hover = place;
    shade();
  }
  function reveal(guess) {
    Object.assign(view, { guess, revealed: true });
    update();
  }

  // What is wrong now, by what it is about: one that is mended leaves the others.
  const wrong = { start: "", link: "", sequence: "", score: "" };
  const show = (about, text) => {
    wrong[about] = text;
    trouble.textContent = [...new Set(Object.values(wrong).filter(Boolean))].join(" ");
    trouble.hidden = !trouble.textContent;
  };
  const turns = { look: 0, score: 0 }; // what an older question brings or breaks is nobody's any more
  async function lookAt() {
    const seen = sequenceOf(view.state, payload);
    const { tokens, mask, places, donor } = seen;
    const turn = ++turns.look;
    const misplaced = placesProblem(view.state, seen);
    if (misplaced) {
      lookFailed({ at: misplaced, sequence: "" });
      return;
    }
    view.looking = true;
    markReady();
    try {
      const found = await ask("sequence", { sequence: { tokens, mask, places, donor }, head: view.state.head, change: changeOf(view.state) });
      if (!found || turn !== turns.look) return;
      show("sequence", "");
      Object.assign(view, { looking: false, wrong: { at: "", sequence: "" } });
      view.look = { ...found, sequence: seen, rows: perToken(found.logits, seen.targets, payload.config.d_vocab) };
      if (view.hover && view.hover.query >= tokens.length) view.hover = null;
      update();
      markReady();
      element.dispatchEvent(new CustomEvent("drawn"));
    } catch (error) {
      if (turn !== turns.look) return;
      lookFailed({ at: "", sequence: error.lost ? "" : error.message });
      show("sequence", error.lost ? error.message : "");
    }
  }
  // Nothing of an older sequence or change stays to be taken for this one's; why stands beside what caused it.
  function lookFailed(why) {
    Object.assign(view, { look: null, looking: false, hover: null, lockedKey: null, wrong: why });
    update();
    markReady();
  }
  async function findScore(told) {
    view.scoring = true;
    const turn = ++turns.score;
    markReady();
    const take = (found) => {
      if (turn !== turns.score) return;
      view.score = found;
      panels[2].update();
      markReady();
    };
    try {
      const found = await ask("score", { change: changeOf(view.state) }, take);
      if (!found || turn !== turns.score) return;
      view.scoring = false;
      show("score", "");
      take(found);
      panels[7].update();
      if (told) said.textContent = `${changeWords(view.state, 6)}: ${view.concealed ? "guess the accuracy" : `accuracy ${percent(found.after.accuracy.value)}, before ${percent(found.before.accuracy.value)}`}`;
    } catch (error) {
      if (turn !== turns.score) return;
      view.scoring = false;
      take(null);
      show("score", error.message);
    }
  }
  async function draw(number) {
    try {
      const found = await ask("draw", { draw: number });
      if (!found) return;
      payload = view.payload = Object.assign(payload, { samples: found.samples });
      set({ draw: number, sample: 0, tokens: null, query: null });
    } catch (error) {
      show("sequence", error.message);
    }
  }

  // Browsers slow a page down that changes its address too often.
  let writing = 0;
  const write = () => {
    clearTimeout(writing);
    if (!fragment) return;
    writing = setTimeout(() => {
      try {
        history.replaceState(null, "", fragmentOf(view.state, payload, anchor));
      } catch {
        // Where the page has no address of its own (a frame of a document), the view works without a link.
      }
    }, 150);
  };
  async function readFragment() {
    try {
      const found = fragment && stateFrom(location.hash, payload, anchor);
      show("link", "");
      if (!found) return;
      if (found.draw !== view.state.draw) await draw(found.draw);
      const { guessing, way } = view.state;
      set({ ...found, guessing, way });
    } catch (error) {
      show("link", error.message);
    }
  }
  const onKey = (event) => {
    if (event.key !== "Escape" || (!view.hover && view.lockedKey === null && view.state.query === null)) return;
    Object.assign(view, { hover: null, lockedKey: null });
    set({ query: null });
    shade();
  };
  document.addEventListener("keydown", onKey); // wherever the focus is: what a mouse locks need not have it
  const redraw = () => update();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", redraw);
  if (fragment) addEventListener("hashchange", readFragment);
  const sized = new ResizeObserver((entries) => {
    entries.forEach(({ target, contentRect }) => widths.set(target, contentRect.width));
    redraw();
  });

  async function start() {
    sayAgreement(agreement, payload, null);
    try {
      backend ??= payload.backend === "server" ? serverBackend() : pageBackend();
      ask = backend.ask;
      await ask("load", payload.backend === "server" ? {} : { payload });
    } catch (error) {
      agreement.replaceChildren();
      show("start", error.message);
      body.inert = true;
      element.classList.add("lv-dead");
      return;
    }
    lookAt();
    const compared = ask("agreement");
    findScore();
    update(atOnce);
    await readFragment();
    element.querySelectorAll(".lv-chart, .lv-axis").forEach((chart) => sized.observe(chart));
    sayAgreement(agreement, payload, await compared);
  }
  start().catch((error) => show("start", error.message));
  return {
    destroy: () => {
      backend?.close();
      clearTimeout(writing);
      sized.disconnect();
      dark.removeEventListener("change", redraw);
      document.removeEventListener("keydown", onKey);
      removeEventListener("hashchange", readFragment);
      panels.forEach((panel) => panel.close?.());
      element.replaceChildren();
    },
  };
}

// How far the page's model is from PyTorch's; while ``found`` is null, that it is being compared.
function sayAgreement(element, payload, found) {
  const good = found === null || found.difference <= 1e-4;
  const number = make("b", { textContent: found === null ? "" : found.difference.toExponential(1) });
  number.dataset.agreement = "";
  number.setAttribute("aria-busy", found === null);
  number.classList.toggle("lv-bad", !good);
  const served = payload.backend === "server";
  const [place, other] = served
    ? ["The model is served by PyTorch; what answers quickly here", "a plain pass"]
    : ["The trained model is in this page. It", "PyTorch (float64)"];
  if (found === null) element.replaceChildren(`${place} is compared with ${other}: `, number, "…");
  else element.replaceChildren(`${place} ${good ? "agrees" : "does not agree"} with ${other}: the largest difference of a logit is `, number, ` over ${found.passes} stored passes, computed when you opened it.`);
}

// Mounts every view of the page whose data are whole.
function mountAll() {
  document.querySelectorAll(".live-view").forEach((element) => {
    const script = element.parentElement.querySelector("script.live-data");
    const refuse = (text) => element.replaceChildren(make("p", { className: "lv-trouble", role: "alert", textContent: text }));
    const source = script.textContent;
    setTimeout(() => { // after the first paint
      if (sha256(new TextEncoder().encode(source)) !== script.dataset.sha256) {
        refuse("The model in this page is damaged: its data do not have the hash that the page names. Make the page again.");
        return;
      }
      try {
        mount(element, JSON.parse(source), { anchor: element.dataset.anchor });
      } catch (error) {
        refuse(`The ablation view could not be drawn: ${error.message}`);
      }
    });
  });
}
