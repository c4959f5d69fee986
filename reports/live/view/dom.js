// Elements whose every text is text, and how numbers are written.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const button = (text, act, properties = {}) => make("button", { type: "button", className: "lv-quiet", textContent: text, onclick: act, ...properties });

// A share as per cent, one decimal; a loss or logit with digits by size. The minus sign is a minus sign.
const minus = (text) => text.replace("-", "−");
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const decimal = (value) => (Number.isFinite(value) ? minus(value.toFixed(Math.abs(value) < 10 ? 2 : 1)) : "n/a");
const signed = (value) => (value > 0 ? "+" : "") + decimal(value);
const range = (n) => Array.from({ length: n }, (_, i) => i);

// At most so many letters as a reader counts them: an emoji of several code points is one.
const segmenter = globalThis.Intl?.Segmenter ? new Intl.Segmenter() : null;
function shortened(text, most) {
  if (text.length <= most) return text;
  const letters = segmenter ? Array.from(segmenter.segment(text), ({ segment }) => segment) : [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

// A token in the page's visible glyphs, in an element of its own direction.
const tokenText = (payload, id) => make("bdi", { textContent: payload.vocabulary.shown[id] });

// Moves the focus among elements of which one is in the tab order.
function rove(elements, to) {
  elements.forEach((element, i) => { element.tabIndex = i === to ? 0 : -1; });
  elements[to].focus();
}

async function copyText(text, code) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
}
