// Loss or logit difference at every position, before and after, as pairs joined by a line; and the same as a table.
const MEASURES = { loss: "Loss per token", difference: "Logit difference per token" };

function lossesPanel(view) {
  const { payload } = view;
  let measure = "loss";
  const select = make("select", { ariaLabel: "What is shown per token" }, ...Object.entries(MEASURES).map(([value, textContent]) => make("option", { value, textContent })));
  select.addEventListener("change", () => { measure = select.value; update(); });
  const chart = make("div", { className: "lv-chart" });
  const details = make("p", { className: "lv-details" });
  const body = make("tbody");
  const heads = ["position", "token", "answer", "loss before", "loss after", "logit difference before", "after", "likeliest before", "after"];
  const headRow = make("tr", {}, ...heads.map((textContent) => make("th", { textContent, scope: "col" })));
  const table = make("details", { className: "lv-table" }, make("summary", { textContent: "every token as a table" }),
    make("div", { className: "lv-scroll" }, make("div", { className: "lv-rows" }, make("table", {}, make("thead", {}, headRow), body))));
  table.addEventListener("toggle", () => update());
  const element = make("section", { className: "lv-losses", ariaLabel: "Loss per token" }, make("header", {}, make("h4", {}, select)), chart, details);
  exportable(view, element.firstChild, "per-token", () => ({ title: MEASURES[measure], svg: chart.firstChild }));

  function update() {
    const { look } = view;
    if (!look) {
      chart.replaceChildren();
      body.replaceChildren();
      details.textContent = view.nothing();
      return;
    }
    chart.replaceChildren(tokenChart(view, measure, view.widthOf(chart)));
    const known = look.rows.filter((row) => row.target !== null);
    const mean = (when) => decimal(known.reduce((sum, row) => sum + row[when][measure], 0) / known.length);
    details.textContent = known.length ? `${known.length === 1 ? "The 1 token" : `Mean over the ${known.length} tokens`} with an answer: ${mean("before")}${view.concealed ? "" : ` → ${mean("after")}`}${measure === "loss" ? " nats" : ""}` : "No token has an answer.";
    if (table.open) body.replaceChildren(...look.rows.map(tableRow));
  }
  function tableRow(row) {
    const { look } = view;
    const token = (id) => make("td", {}, ...(id === null ? [] : [make("span", { className: "lv-token" }, tokenText(payload, id))]));
    const number = (value, hidden) => make("td", { className: "n", textContent: hidden ? "?" : decimal(value) });
    const hidden = view.concealed;
    return make("tr", {}, make("th", { scope: "row", textContent: row.position }), token(look.sequence.tokens[row.position]), token(row.target),
      number(row.before.loss), number(row.after.loss, hidden), number(row.before.difference), number(row.after.difference, hidden),
      token(row.before.best), hidden ? make("td", { textContent: "?" }) : token(row.after.best));
  }
  return { element, table, update, shade: update, waits: true, shows: "look" };
}

function tokenChart(view, measure, width) {
  const { look, concealed } = view;
  const left = 40, right = 8, top = 22, height = 226, bottom = 30;
  const { rows } = look;
  const values = rows.flatMap((row) => [row.before[measure], concealed ? NaN : row.after[measure]]).filter(Number.isFinite);
  const [least, most] = [Math.min(0, ...values), Math.max(measure === "loss" ? 1 : 0, ...values)];
  const ticks = niceTicks(least, most);
  const [low, high] = [ticks[0], ticks[ticks.length - 1]];
  const x = (p) => left + ((p + 0.5) / rows.length) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low || 1)) * (height - top - bottom);
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${MEASURES[measure]} by position, before and after` });
  const add = (tag, attributes, text) => svg.append(makeSvg(tag, attributes, text));
  const small = { "font-size": 11, fill: "var(--soft)" };
  for (const tick of ticks) {
    add("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: "var(--line)", "stroke-width": tick === 0 ? 1.5 : 1 });
    add("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end", ...small }, minus(String(tick)));
  }
  add("text", { x: 2, y: 10, ...small }, measure === "loss" ? "nats" : "logits");
  const { query } = view.place();
  const band = (width - left - right) / rows.length;
  if (query !== null) add("rect", { x: x(query) - band / 2, y: top, width: band, height: height - top - bottom, fill: "var(--accent)", "fill-opacity": 0.12 });
  // A few paths, not an element a token: the chart is drawn anew with every change.
  const r = Math.max(1.2, Math.min(3.5, band / 2.6));
  const known = rows.map((row, p) => [row, x(p)]).filter(([row]) => row.target !== null);
  const path = (parts, more) => add("path", { d: parts.join(""), ...more });
  const dot = (at, value) => `M${at - r} ${y(value)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  const square = (at, value) => `M${at - r} ${y(value) - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (!concealed) path(known.map(([row, at]) => `M${at} ${y(row.before[measure])}V${y(row.after[measure])}`), { stroke: "var(--muted)", fill: "none" });
  path(known.map(([row, at]) => dot(at, row.before[measure])), { fill: "var(--c1)" });
  if (!concealed) path(known.map(([row, at]) => square(at, row.after[measure])), { fill: "var(--c2)" });
  path(known.filter(([row]) => look.sequence.scored[row.position]).map(([, at]) => `M${at - band / 2} ${height - bottom + 3}h${band}`), { stroke: "var(--soft)", "stroke-width": 2 });
  const every = Math.ceil(rows.length / Math.max(2, Math.floor((width - left) / 48)));
  for (let p = 0; p < rows.length; p += every) add("text", { x: x(p), y: height - bottom + 17, "text-anchor": "middle", ...small }, String(p));
  add("text", { x: width - right, y: height - 1, "text-anchor": "end", ...small }, width > 420 && rows.some((_, p) => look.sequence.scored[p]) ? "position; underlined where scored" : "position");
  add("circle", { cx: left + 4, cy: height - 4, r: 3.5, fill: "var(--c1)" });
  add("text", { x: left + 12, y: height - 1, ...small }, "before");
  add("rect", { x: left + 56, y: height - 7.5, width: 7, height: 7, fill: "var(--c2)" });
  add("text", { x: left + 67, y: height - 1, ...small }, "after");
  svg.addEventListener("click", (event) => {
    const p = Math.floor(((event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right)) * rows.length);
    if (rows[p]) view.set({ query: p });
  });
  return svg;
}

// Round ticks, four or so, whose ends hold the values.
function niceTicks(least, most) {
  const rough = (most - least || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const [from, to] = [Math.floor(least / step), Math.ceil(most / step)];
  return range(to - from + 1).map((i) => Number(((from + i) * step).toPrecision(6)));
}
