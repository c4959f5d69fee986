// Copy as Python, the link, and the tokens as CSV.
function takeoutPanel(view) {
  const { payload } = view;
  const code = make("code");
  const pre = make("pre", { hidden: true, tabIndex: 0, ariaLabel: "Python lines" }, code);
  pre.dataset.python = "";
  const did = make("span", { className: "lv-soft", role: "status" });
  const tell = (text) => {
    did.textContent = text;
    setTimeout(() => { did.textContent = ""; }, 1500);
  };
  const copy = button("copy as Python", async () => {
    pre.hidden = false;
    copy.setAttribute("aria-expanded", "true");
    await copyText(code.textContent, code);
    tell("copied");
  }, { ariaExpanded: "false" });
  copy.dataset.copy = "python";
  const link = view.link && button("copy link", async () => {
    await copyText(view.link(), code);
    tell("copied");
  });
  const csv = button("CSV", () => {
    saveAs(new Blob([csvOf(view)], { type: "text/csv;charset=utf-8" }), `${element.closest(".live-view").dataset.anchor}.tokens.csv`);
  }, { ariaLabel: "every token as CSV" });
  csv.dataset.export = "tokens.csv";
  const element = make("footer", { className: "lv-takeout" }, make("div", {}, copy, ...(link ? [link] : []), csv, did), pre);
  const update = () => {
    const shown = view.score && !view.scoring && !view.concealed ? view.score.after.accuracy.value : null;
    code.textContent = pythonLines(view.state, payload, shown);
  };
  return { element, update, shows: "look" };
}
