// Taking things out: a drawing as SVG or PNG in the light theme, the tokens as CSV.
function saveAs(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A drawing under its title, the change that it shows, and what it is of.
function captioned(svg, [title, ...notes]) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const lines = notes.flatMap((note) => broken(note, Math.max(30, Math.floor(width / 6))));
  const top = 30 + 15 * lines.length;
  const whole = makeSvg("svg", { viewBox: `0 0 ${width} ${height + top}`, width, height: height + top });
  whole.append(makeSvg("text", { x: 4, y: 16, "font-size": 13, "font-weight": 600, fill: "var(--ink)" }, title));
  lines.forEach((line, i) => whole.append(makeSvg("text", { x: 4, y: 33 + 15 * i, "font-size": 11, fill: "var(--soft)" }, line)));
  const inside = makeSvg("g", { transform: `translate(0 ${top})` });
  inside.append(...svg.cloneNode(true).childNodes);
  whole.append(inside);
  return whole;
}

// Lines of at most so many characters, broken at blanks.
function broken(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines.length - 1;
    const longer = lines[last] ? `${lines[last]} ${word}` : word;
    if (longer.length <= most || !lines[last]) lines[last] = longer;
    else lines.push(word);
  }
  return lines;
}

// Which model, and of which sequence where the drawing is about one.
function originWords({ payload, state }, ofSequence) {
  const { run, model, task, samples } = payload;
  const from = run ? `run ${run.hash.slice(0, 12)}` : `model ${model.slice(0, 12)}`;
  const drawn = state.draw ? `, draw ${state.draw}` : "";
  const which = !ofSequence ? `${samples.n} test sequences${drawn}` : state.tokens ? "tokens of the reader's own" : `test sequence ${state.sample + 1} of ${samples.n}${drawn}`;
  return `${task.name}, ${from}, ${which}`;
}

// The drawing as a file that stands by itself: in attributes, never in texts, the page's colour variables become the
// light theme's values.
function svgSource(svg, root) {
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  svg.setAttribute("font-family", "system-ui, sans-serif");
  const light = getComputedStyle(root.querySelector(".lv-light"));
  for (const element of [svg, ...svg.querySelectorAll("*")]) {
    for (const attribute of element.attributes) {
      if (attribute.name.startsWith("aria-") || !attribute.value.includes("var(")) continue;
      attribute.value = attribute.value.replace(/var\((--[\w-]+)\)/g, (_, name) => light.getPropertyValue(name).trim().replaceAll('"', "'"));
    }
  }
  return new XMLSerializer().serializeToString(svg);
}

function savePng(source, svg, name) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const image = new Image();
  image.onload = () => {
    const canvas = make("canvas", { width: Math.round(3 * width), height: Math.round(3 * height) });
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveAs(blob, name), "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
}

// Puts SVG and PNG buttons at the end of an element; ``get`` gives {title, svg}. While the shown result is not that of
// the present state the buttons are disabled.
function exportable(view, element, name, get) {
  const save = (kind) => () => {
    const { title, svg } = get();
    const root = element.closest(".live-view");
    const file = `${root.dataset.anchor}.${name}.${kind}`;
    const whole = captioned(svg, [title, `Changed: ${changeWords(view.state)}.`, originWords(view, name !== "score")]);
    const source = svgSource(whole, root);
    if (kind === "svg") saveAs(new Blob([source], { type: "image/svg+xml" }), file);
    else savePng(source, whole, file);
  };
  const tools = make("span", { className: "lv-tools" }, ...["svg", "png"].map((kind) => {
    const tool = button(kind.toUpperCase(), save(kind), { ariaLabel: `${name} as ${kind.toUpperCase()}` });
    tool.dataset.export = `${name}.${kind}`;
    return tool;
  }));
  element.append(tools);
}

// Every token with its answer; while the effect is concealed, without what comes after the change. A spreadsheet takes
// a text that begins like a formula for one, so an apostrophe stands before it.
function csvOf({ look, concealed, payload }) {
  const field = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const token = (id) => (id === null ? "" : payload.vocabulary.tokens[id].replace(/^[=+\-@\t\r]/, "'$&"));
  const number = (value) => (Number.isFinite(value) ? String(value) : "");
  const later = (text) => (concealed ? "" : text);
  const header = ["position", "token", "answer", "scored", "loss_before", "loss_after", "logit_difference_before", "logit_difference_after", "likeliest_before", "likeliest_after"];
  const lines = look.rows.map(({ target, before, after }, p) => [String(p), token(look.sequence.tokens[p]), token(target), String(look.sequence.scored[p]),
    number(before.loss), later(number(after.loss)), number(before.difference), later(number(after.difference)), token(before.best), later(token(after.best))]);
  return [header, ...lines].map((line) => line.map(field).join(",")).join("\r\n") + "\r\n";
}
