// The three maps as one drawing with their scales, and the tokens along their sides. What is not to be seen yet is not drawn.
function attentionSvg(view) {
  const { look, payload } = view;
  const t = look.sequence.tokens.length;
  const cell = Math.max(3, Math.min(48, Math.floor(360 / t)));
  const side = cell * t, label = 68, gap = 18, top = 38;
  const width = 3 * (side + label) + 2 * gap + 8, height = top + side + label;
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const add = (tag, attributes, text) => svg.append(makeSvg(tag, attributes, text));
  const every = Math.ceil(9 / cell);
  const token = (p) => shortened(payload.vocabulary.shown[look.sequence.tokens[p]], 8);
  MAPS.forEach(([when, title, kind], m) => {
    const left = m * (side + label + gap) + label;
    add("text", { x: left, y: 12, "font-size": 12, fill: "var(--soft)" }, title);
    scaleBar(add, kind, left, 19);
    const hidden = view.concealed && when !== "before";
    for (let q = 0; q < t; q++) {
      for (let k = 0; k <= q && !hidden; k++) {
        add("rect", { x: left + k * cell, y: top + q * cell, width: cell, height: cell, fill: `var(--${kind}${levelOf(look.pattern, when, q * t + k)})` });
      }
      if (q % every) continue;
      add("text", { x: left - 4, y: top + (q + 0.5) * cell + 3, "font-size": 9, "text-anchor": "end", fill: "var(--ink)" }, token(q));
      add("text", { "font-size": 9, "text-anchor": "end", fill: "var(--ink)", transform: `translate(${left + (q + 0.5) * cell + 3} ${top + side + 5}) rotate(-90)` }, token(q));
    }
    if (hidden) add("text", { x: left + side / 2, y: top + side / 2, "font-size": 24, "text-anchor": "middle", fill: "var(--soft)" }, "?");
    add("rect", { x: left, y: top, width: side, height: side, fill: "none", stroke: "var(--line)" });
    add("text", { x: left + side / 2, y: height - 2, "font-size": 11, "text-anchor": "middle", fill: "var(--soft)" }, "key");
    add("text", { transform: `translate(${left - label + 12} ${top + side / 2}) rotate(-90)`, "font-size": 11, "text-anchor": "middle", fill: "var(--soft)" }, "query");
  });
  return svg;
}

// A map's colours from its least to its largest value.
function scaleBar(add, kind, x, y) {
  const [least, most] = kind === "s" ? ["0", "1"] : ["−1", "+1"];
  const small = { y: y + 8, "font-size": 9, fill: "var(--soft)" };
  add("text", { x, ...small }, least);
  range(26).forEach((i) => add("rect", { x: x + 17 + 2.5 * i, y, width: 2.6, height: 9, fill: `var(--${kind}${4 * i})` }));
  add("text", { x: x + 87, ...small }, most);
}
