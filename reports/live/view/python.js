// The lines that give the shown score with the library.
function pythonLines(state, payload, shown) {
  const { samples, run } = payload;
  const names = Object.keys(state.parts);
  const kinds = { zero: "Zero", mean: "Mean", resample: "Resample" };
  const source = { zero: "", mean: ", given.reference", resample: ", given.pairing" };
  const used = payload.ways.filter((way) => names.some((name) => state.parts[name] === way));
  const options = (state.frozen ? ", frozen_patterns=True" : "") +
    (state.at.length ? `, at=(${state.at.map((place) => JSON.stringify(place)).join(", ")},)` : "");
  const values = used.map((way) => {
    const parts = names.filter((name) => state.parts[name] === way).join(", ");
    return `${kinds[way]}("${parts}"${source[way]}${options})`;
  });
  const classes = [...used.map((way) => kinds[way]), ...(used.length > 1 ? ["Joint"] : [])].sort();
  const draw = (state.draw ? `, draw=${state.draw}` : "") + (samples.n === 64 ? "" : `, n=${samples.n}`);
  const plugins = run?.plugins.length ? `, plugins=${JSON.stringify(run.plugins)}` : "";
  const lines = [
    "import workbench",
    "from workbench import live",
    ...(used.length ? [`from workbench.ablation import ${classes.join(", ")}`, "from workbench.measure import measure"]
      : ["from workbench.measure import run", "from workbench.metrics import sequence_accuracy"]),
    "",
    run ? `subject = workbench.open(${JSON.stringify(run.folder)}${plugins})  # run ${run.hash.slice(0, 12)}` : "subject = ...  # your Subject",
    `given = live.material(subject${draw})  # the page's ${samples.n} test sequences, means and pairing`,
  ];
  const note = shown === null ? "" : `  # ${shown.toFixed(6)} on the page`;
  if (!used.length) {
    return [...lines, "logits = run(subject.model, given.batch).logits", `print(float(sequence_accuracy(logits, given.batch).mean()))${note}`].join("\n");
  }
  const change = values.length === 1 ? values[0] : `Joint((\n    ${values.join(",\n    ")},\n))`;
  return [...lines, `change = ${change}`, "[effect] = measure(subject, given.batch, [change])", `print(effect.ablated_accuracy.mean())${note}`].join("\n");
}
