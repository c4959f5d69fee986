// What comes next at the query: the likeliest tokens before and after, and the answer's lead over the best other token.
function predictionsPanel(view) {
  const { payload } = view;
  const title = make("h4");
  const chart = make("div", { className: "lv-chart" });
  const details = make("p", { className: "lv-details" });
  const element = make("section", { className: "lv-predictions", ariaLabel: "Next token" }, make("header", {}, title), chart, details);
  exportable(view, element.firstChild, "next-token", () => ({ title: title.textContent, svg: chart.firstChild }));

  function update() {
    const { look, concealed } = view;
    if (!look) {
      title.textContent = "Next token";
      chart.replaceChildren();
      details.textContent = view.nothing();
      return;
    }
    const { query } = view.place();
    const { tokens } = look.sequence;
    const row = look.rows[query];
    title.replaceChildren("Next token after ", make("span", { className: "lv-token" }, tokenText(payload, tokens[query])), make("span", { className: "lv-soft", textContent: ` position ${query}` }));
    const top = topTokens(look.logits, query, payload.config.d_vocab, concealed);
    chart.replaceChildren(barChart(view, top, row.target, view.widthOf(chart)));
    if (row.target === null) {
      details.textContent = "No answer is known here.";
      return;
    }
    const after = concealed ? "" : ` → ${signed(row.after.difference)}`;
    details.replaceChildren("Answer ", make("span", { className: "lv-token" }, tokenText(payload, row.target)),
      ` · logit difference to the best other ${signed(row.before.difference)}${after}`);
  }
  return { element, update, shade: update, waits: true, shows: "look" };
}

function barChart(view, top, target, width) {
  const label = 84, numbers = 84, step = 34, height = top.length * step + 18;
  const long = (share) => Math.max(1, share * (width - label - numbers));
  const words = top.map(({ id, before, after }) => `${view.payload.vocabulary.shown[id]} ${before.toFixed(2)}${view.concealed ? "" : `, then ${after.toFixed(2)}`}`);
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Probabilities before and after: ${words.join("; ")}` });
  const text = (x, y, words, more) => svg.append(makeSvg("text", { x, y, "font-size": 12, ...more }, words));
  top.forEach(({ id, before, after }, i) => {
    const y = i * step + 4;
    const name = shortened(view.payload.vocabulary.shown[id], 9);
    text(label - 10, y + 15, name, { "text-anchor": "end", fill: "var(--ink)", "font-family": "var(--mono)", "font-weight": id === target ? 700 : 400 });
    svg.append(makeSvg("rect", { x: label, y, width: long(before), height: 9, rx: 2, fill: "var(--c1)" }));
    if (!view.concealed) svg.append(makeSvg("rect", { x: label, y: y + 11, width: long(after), height: 9, rx: 2, fill: "var(--c2)" }));
    text(width, y + 15, view.concealed ? before.toFixed(2) : `${before.toFixed(2)} → ${after.toFixed(2)}`, { "text-anchor": "end", fill: "var(--soft)", "font-size": 11 });
  });
  const foot = height - 3;
  svg.append(makeSvg("rect", { x: label, y: foot - 8, width: 9, height: 9, rx: 2, fill: "var(--c1)" }));
  text(label + 14, foot, "before", { fill: "var(--soft)", "font-size": 11 });
  svg.append(makeSvg("rect", { x: label + 64, y: foot - 8, width: 9, height: 9, rx: 2, fill: "var(--c2)" }));
  text(label + 78, foot, "after", { fill: "var(--soft)", "font-size": 11 });
  return svg;
}
