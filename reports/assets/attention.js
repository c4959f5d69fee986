(() => {
  "use strict";
  // CircuitsVis draws the heads; its selectors are made reachable by keyboard here, and a strip of the tokens shows one
  // query's weights in the chosen head. Escape releases both.
  const html = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  function build(view, number) {
    const data = JSON.parse(view.parentElement.querySelector("script.patterns").textContent);
    const host = view.querySelector(".circuitsvis");
    host.id = `circuitsvis-${number}`;
    CircuitsVis.render(host.id, CircuitsVis.AttentionHeads, {
      tokens: data.tokens.map((token) => {
        const letters = [...token.replaceAll(" ", "·")]; // it would drop the blanks
        return letters.length > 16 ? letters.slice(0, 15).join("") + "…" : letters.join("");
      }),
      attention: data.attention,
      attentionHeadNames: data.names,
      maskUpperTri: data.causal,
      positiveColor: "#08306b",
      minValue: -1,
      maxValue: 1,
    });

    let head = 0;
    let query = null;
    const read = html("p", { className: "read" });
    read.setAttribute("aria-live", "polite");
    const hint = html("p", { className: "hint" });
    const tokens = data.tokens.map((token, at) => {
      const button = html("button", { type: "button", tabIndex: at ? -1 : 0 }, html("bdi", { textContent: token }));
      button.setAttribute("aria-label", `query ${at}: ${token}`);
      button.addEventListener("click", () => choose(query === at ? null : at));
      return button;
    });
    const list = html("div", { className: "tokens" }, ...tokens);
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", "Tokens; choose a query");
    view.querySelector(".strip").append(hint, list, read);

    function show() {
      const row = query === null ? null : data.attention[head][query];
      hint.textContent = `${data.names[head]} · choose a query token to see where it looks; arrow keys move, Escape releases`;
      tokens.forEach((button, at) => {
        const weight = row ? row[at] ?? 0 : 0;
        button.setAttribute("aria-pressed", query === at);
        button.style.background = weight ? `rgba(33,88,184,${Math.min(1, weight)})` : "";
        button.style.color = weight > 0.5 ? "#fff" : "";
      });
      if (!row) {
        read.textContent = "";
        return;
      }
      const order = row.map((weight, at) => [weight, at]).filter(([weight]) => weight >= 0.005).sort((a, b) => b[0] - a[0]);
      const top = order.slice(0, 4).map(([weight, at]) => `${data.tokens[at]} (${at}) ${weight.toFixed(2)}`);
      const missing = row.some((weight) => weight === null) ? " · some weights n/a" : "";
      read.textContent = `${data.names[head]}, query ${data.tokens[query]} (${query}) → ${top.join(", ") || "nothing"}${missing}`;
    }

    function choose(at) {
      query = at;
      tokens.forEach((button, i) => { button.tabIndex = i === (at ?? 0) ? 0 : -1; });
      show();
    }

    list.addEventListener("keydown", (event) => {
      const from = tokens.indexOf(document.activeElement);
      const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (to === undefined || !tokens[to]) return;
      event.preventDefault();
      choose(to);
      tokens[to].focus();
    });

    const selectors = () => [...host.querySelectorAll("h4")].map((title) => title.parentElement.parentElement);

    function release() {
      const [first] = selectors();
      host.querySelectorAll("canvas").forEach((canvas) => canvas.dispatchEvent(new MouseEvent("mouseout", { bubbles: true })));
      if (first) first.click();
      head = 0;
      choose(null);
    }

    function adorn() {
      // Its headings are labels of controls, not headings of the page.
      host.querySelectorAll("h2,h3").forEach((title) => title.setAttribute("role", "presentation"));
      host.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
      selectors().forEach((selector, at) => {
        selector.tabIndex = 0;
        selector.setAttribute("role", "button");
        selector.setAttribute("aria-label", `show head ${data.names[at]}`);
        selector.addEventListener("click", () => { head = at; show(); });
        selector.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          selector.click();
        });
      });
    }

    view.addEventListener("keydown", (event) => { if (event.key === "Escape") release(); });
    new MutationObserver((_, observer) => {
      if (!host.querySelector("canvas")) return;
      observer.disconnect();
      adorn();
    }).observe(host, { childList: true, subtree: true });
    show();
  }

  document.querySelectorAll(".view").forEach((view, number) => {
    try {
      build(view, number);
    } catch (error) {
      view.prepend(html("p", { textContent: `The interactive view could not be drawn: ${error.message}` }));
      view.parentElement.querySelector(".still").classList.add("open");
    }
  });
})();
