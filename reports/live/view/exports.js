// Taking things out: a drawing as SVG or PNG in the light theme, the tokens as CSV.
function saveAs(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The page's colour variables become the light theme's values, so that the file stands by itself.
function svgSource(svg, root) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("font-family", "system-ui, sans-serif");
  const light = getComputedStyle(root.querySelector(".lv-light"));
  return new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => light.getPropertyValue(name).trim().replaceAll('"', "'"));
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

// Puts SVG and PNG buttons at the end of an element; ``get`` gives {svg}, or nothing while there is nothing to take.
function exportable(element, name, get) {
  const save = (kind) => () => {
    const found = get();
    if (!found) return;
    const root = element.closest(".live-view");
    const file = `${root.dataset.anchor}.${name}.${kind}`;
    const source = svgSource(found.svg, root);
    if (kind === "svg") saveAs(new Blob([source], { type: "image/svg+xml" }), file);
    else savePng(source, found.svg, file);
  };
  const tools = make("span", { className: "lv-tools" }, ...["svg", "png"].map((kind) => {
    const tool = button(kind.toUpperCase(), save(kind), { ariaLabel: `${name} as ${kind.toUpperCase()}` });
    tool.dataset.export = `${name}.${kind}`;
    return tool;
  }));
  element.append(tools);
}

function csvOf(look, payload) {
  const field = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const token = (id) => (id === null ? "" : payload.vocabulary.tokens[id]);
  const number = (value) => (Number.isFinite(value) ? String(value) : "");
  const header = ["position", "token", "answer", "scored", "loss_before", "loss_after", "logit_difference_before", "logit_difference_after", "likeliest_before", "likeliest_after"];
  const lines = look.rows.map((row, p) => [String(p), token(look.sequence.tokens[p]), token(row.target), String(look.sequence.scored[p]),
    number(row.before.loss), number(row.after.loss), number(row.before.difference), number(row.after.difference), token(row.before.best), token(row.after.best)]);
  return [header, ...lines].map((line) => line.map(field).join(",")).join("\r\n") + "\r\n";
}
