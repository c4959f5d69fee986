// Runs the page's own arithmetic under Node: reads {source, jobs} from standard input, writes the answers as JSON.
// A job is {payload, calls: [[method of the engine, argument], ...]} (one that takes steps runs to its end), {named: [[function,
// ...arguments], ...]}, or {payload, messages: [...]}: all sent at once to the worker's own loop, answered by id.
const { source, jobs } = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const live = new Function(`${source}; return { Engine, serve, sha256, meanInterval };`)();
const functions = { sha256: (bytes) => live.sha256(Uint8Array.from(bytes)), meanInterval: live.meanInterval };

const orMessage = (work) => {
  try {
    return work();
  } catch (error) {
    return { error: error.message };
  }
};

function call(engine, [method, argument]) {
  const found = engine[method](argument);
  if (typeof found.next !== "function") return found;
  let report;
  for (report of found);
  return report();
}

function send(payload, messages) {
  const { port1, port2 } = new MessageChannel();
  live.serve(port2);
  const answers = {};
  const asked = [{ id: 0, kind: "load", payload }, ...messages];
  return new Promise((resolve) => {
    port1.onmessage = ({ data }) => {
      if (!data.progress) answers[data.id] = data;
      if (Object.keys(answers).length < asked.length) return;
      port1.close();
      resolve(answers);
    };
    asked.forEach((message) => port1.postMessage(message));
  });
}

async function main() {
  const results = [];
  for (const { payload, calls, named, messages } of jobs) {
    if (named) results.push(named.map(([name, ...given]) => functions[name](...given)));
    else if (messages) results.push(await send(payload, messages));
    else results.push(orMessage(() => {
      const engine = new live.Engine(payload);
      return calls.map((one) => orMessage(() => call(engine, one)));
    }));
  }
  const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  process.stdout.write(JSON.stringify(results, plain));
}
main();
