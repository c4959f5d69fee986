(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const light = getComputedStyle(document.getElementById("light"));
  const said = document.getElementById("said");

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // A drawing on its own: the page's variables become the light theme's colours, as in print.
  function svgText(figure) {
    const copy = figure.querySelector("svg.plot").cloneNode(true);
    copy.querySelectorAll(".only-dark").forEach((image) => image.remove());
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    // Attributes alone: a token's text may read like a variable.
    for (const element of [copy, ...copy.querySelectorAll("*")]) {
      for (const attribute of element.attributes) {
        if (!attribute.value.includes("var(")) continue;
        attribute.value = attribute.value.replace(/var\((--[\w-]+)\)/g, (_, name) => light.getPropertyValue(name).trim());
      }
    }
    return new XMLSerializer().serializeToString(copy);
  }

  function savePng(figure, name) {
    const [, , width, height] = figure.querySelector("svg.plot").getAttribute("viewBox").split(" ").map(Number);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = Math.round(3 * width);
      canvas.height = Math.round(3 * height);
      const context = canvas.getContext("2d");
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(blob, name), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(figure));
  }

  const field = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replace(/"/g, '""')}"` : value ?? "");

  function csvText(figure) {
    const ready = figure.querySelector("script.csv");
    if (ready) return JSON.parse(ready.textContent);
    const data = JSON.parse(figure.querySelector("script.patterns").textContent);
    const lines = ["head,query,query_token,key,key_token,weight"];
    data.attention.forEach((rows, head) => rows.forEach((row, q) => row.forEach((weight, k) => {
      if (data.causal && k > q) return;
      lines.push([data.names[head], q, data.raw[q], k, data.raw[k], weight].map(field).join(","));
    })));
    return lines.join("\r\n") + "\r\n";
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    said.textContent = "copied";
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  const act = {
    svg: (figure) => save(new Blob([svgText(figure)], { type: "image/svg+xml" }), figure.id + ".svg"),
    png: (figure) => savePng(figure, figure.id + ".png"),
    csv: (figure) => save(new Blob([csvText(figure)], { type: "text/csv;charset=utf-8" }), figure.id + ".csv"),
    still: (figure, button) => {
      const open = figure.querySelector(".still").classList.toggle("open");
      button.setAttribute("aria-expanded", open);
    },
    copy: (_, button) => copy(button),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-tool]");
    if (button) act[button.dataset.tool](button.closest("figure"), button);
  });

  // A click sorts upwards, the next downwards, the third restores the given order. Undefined cells stay last.
  document.querySelectorAll("table").forEach((table) => {
    const body = table.tBodies[0];
    const given = [...body.rows];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.ariaSort];
      headings.forEach((other) => { other.ariaSort = "none"; });
      heading.ariaSort = next;
      const key = (row) => row.cells[column].dataset.v;
      const sign = next === "descending" ? -1 : 1;
      const numeric = heading.classList.contains("n");
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
      };
      body.append(...(next === "none" ? given : [...given].sort(compare)));
      said.textContent = next === "none" ? "order restored" : `sorted by ${heading.textContent}, ${next}`;
    }));
  });
})();
