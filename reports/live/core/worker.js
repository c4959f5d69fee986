// Answers the view's messages over a port (a worker's own scope, or one end of a channel). Work is cut into slices, so
// that a newer message of the same kind supersedes an older one.
const SLICE_MS = 5;
const REPORT_MS = 120;

function serve(port) {
  let engine = null;
  const newest = {};

  const turn = (() => {
    const { port1, port2 } = new MessageChannel();
    const waiting = [];
    port1.onmessage = () => waiting.shift()();
    port1.unref?.();
    return () => new Promise((resolve) => { waiting.push(resolve); port2.postMessage(0); });
  })();

  // Takes steps until the work is done; null where a newer request has taken its place. The last step's report answers.
  async function paced({ id, kind }, steps) {
    let slice = performance.now();
    let reported = slice;
    let report;
    for (report of steps) {
      if (performance.now() - slice < SLICE_MS) continue;
      if (performance.now() - reported > REPORT_MS) {
        reported = performance.now();
        port.postMessage({ id, progress: report() });
      }
      await turn();
      if (newest[kind] !== id) return null;
      slice = performance.now();
    }
    return report();
  }

  const answer = {
    load: ({ payload }) => {
      engine = new Engine(payload);
      return {};
    },
    agreement: (request) => paced(request, engine.agreement()),
    sequence: (request) => engine.sequence(request),
    score: (request) => paced(request, engine.score(request.change)),
  };

  port.onmessage = async ({ data: request }) => {
    const { id, kind } = request;
    newest[kind] = id;
    if (!Object.hasOwn(answer, kind)) {
      port.postMessage({ id, error: `The model does not understand ${kind}.` });
      return;
    }
    try {
      await turn(); // messages that already wait may supersede this one
      const result = newest[kind] === id ? await answer[kind](request) : null;
      if (result === null) port.postMessage({ id, superseded: true });
      else port.postMessage({ id, result });
    } catch (error) {
      port.postMessage({ id, error: error.message });
    }
  };
}
