// The task's score over the carried sequences, before and after, each with its interval, on one axis with floor and ceiling.
function scorePanel(view) {
  const { payload } = view;
  const { task } = payload;
  const big = { before: make("span", { className: "lv-big" }), after: make("span", { className: "lv-big lv-after" }) };
  const exact = { before: make("span", { className: "unseen" }), after: make("span", { className: "unseen" }) };
  exact.before.dataset.scoreBefore = "";
  exact.after.dataset.scoreAfter = "";
  Object.values(big).forEach((element) => element.setAttribute("aria-hidden", "true"));
  const side = (when) => make("div", {}, make("small", { textContent: when }), big[when], exact[when]);
  const chart = make("div", { className: "lv-axis" });
  const details = make("p", { className: "lv-details" });
  const title = make("h4");
  const guess = guessForm(view);
  const header = make("header", {}, title);
  const element = make("section", { className: "lv-score", ariaLabel: "Score" }, header,
    make("div", { className: "lv-pair" }, side("before"), make("span", { className: "lv-arrow", textContent: "→", ariaHidden: "true" }), side("after")),
    guess.element, chart, details);
  exportable(view, header, "score", () => ({ title: title.textContent, svg: chart.firstChild }));

  function update() {
    const { score, concealed } = view;
    const busy = view.scoring;
    title.textContent = `Accuracy on ${payload.samples.n} test sequences`;
    const known = { before: score?.before.accuracy, after: concealed ? null : score?.after.accuracy };
    for (const when of ["before", "after"]) {
      big[when].textContent = known[when] ? percent(known[when].value) : when === "after" && concealed ? "?" : busy ? "…" : "n/a";
      exact[when].textContent = known[when] ? known[when].value.toFixed(6) : "";
      exact[when].setAttribute("aria-busy", busy);
    }
    element.classList.toggle("lv-busy", busy);
    element.classList.toggle("lv-changed", isChanged(view.state));
    guess.update();
    chart.replaceChildren(...(score ? [scoreAxis(known, task, view.guess, view.widthOf(chart))] : []));
    details.textContent = score ? scoreWords(score, concealed) : "";
  }
  return { element, update, shows: "score" };
}

function scoreWords(score, concealed) {
  if (score.done < score.total) return `${score.done} of ${score.total} sequences so far`;
  const span = ({ low, high }) => `${percent(low)} to ${percent(high)}`;
  const { before, after, ties } = score;
  const words = [`95 % intervals over sequences (bootstrap; exact where nearly all agree): before ${span(before.accuracy)}${concealed ? "" : `, after ${span(after.accuracy)}`}.`];
  words.push(`Loss where scored: ${decimal(before.loss.value)}${concealed ? "" : ` → ${decimal(after.loss.value)}`} nats.`);
  if (ties && !concealed) words.push(`At ${ties} scored positions target and runner-up are level within rounding.`);
  return words.join(" ");
}

function scoreAxis(known, task, guess, width) {
  const left = 46, right = 20, height = 92;
  const x = (share) => left + share * (width - left - right);
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Accuracy before and after on an axis from 0 to 100 per cent" });
  const line = (x1, y1, x2, y2, stroke, more = {}) => svg.append(makeSvg("line", { x1, y1, x2, y2, stroke, ...more }));
  const text = (at, y, words, anchor = "middle", fill = "var(--soft)") => svg.append(makeSvg("text", { x: at, y, fill, "font-size": 11, "text-anchor": anchor }, words));
  line(x(0), 66, x(1), 66, "var(--line)");
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    line(x(tick), 63, x(tick), 69, "var(--line)");
    text(x(tick), 83, `${100 * tick}%`);
  }
  const marks = [["floor", task.floor], ...(task.ceiling === null ? [] : [["ceiling", task.ceiling]]), ...(guess === null ? [] : [["your guess", guess]])];
  marks.forEach(([name, share]) => {
    line(x(share), 16, x(share), 66, "var(--soft)", { "stroke-dasharray": "3 3" });
    text(x(share), 11, name, share > 0.85 ? "end" : share < 0.15 ? "start" : "middle");
  });
  [["before", 30, "var(--c1)"], ["after", 50, "var(--c2)"]].forEach(([when, y, colour]) => {
    text(left - 8, y + 4, when, "end");
    const at = known[when];
    if (!at) return;
    line(x(at.low), y, x(at.high), y, colour, { "stroke-width": 6, "stroke-opacity": 0.35, "stroke-linecap": "butt" });
    svg.append(makeSvg("rect", { x: x(at.value) - 2, y: y - 7, width: 4, height: 14, rx: 2, fill: colour }));
  });
  return svg;
}

// Predict, then reveal.
function guessForm(view) {
  const slider = make("input", { type: "range", min: 0, max: 100, value: 50, ariaLabel: "Your guess of the accuracy after, in per cent" });
  const shown = make("output", { textContent: "50 %" });
  slider.addEventListener("input", () => { shown.textContent = `${slider.value} %`; });
  const ask = make("div", { className: "lv-guess" }, make("span", { textContent: "What will accuracy be?" }), slider, shown,
    button("reveal", () => view.reveal(Number(slider.value) / 100), { className: "lv-chip" }));
  const said = make("p", { className: "lv-said", role: "status" });
  const element = make("div", {}, ask, said);
  function update() {
    ask.hidden = !view.concealed;
    const after = view.score && !view.scoring ? view.score.after.accuracy.value : null;
    const open = view.guess !== null && !view.concealed && after !== null;
    said.textContent = open ? `You said ${percent(view.guess)}; it is ${percent(after)}, off by ${(100 * Math.abs(view.guess - after)).toFixed(1)} points.` : "";
  }
  return { element, update };
}
