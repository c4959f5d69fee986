// Who computes: a worker in the page, or whoever serves it. Both answer ask(kind, body, onProgress) with a promise of
// the result, or of null where a newer request of the same kind has taken its place.
function pageBackend() {
  const start = `"use strict"; (${core})().serve(self);`;
  const url = URL.createObjectURL(new Blob([start], { type: "text/javascript" }));
  const worker = new Worker(url);
  let next = 1;
  const waiting = new Map();
  worker.onmessage = ({ data }) => {
    const { resolve, reject, onProgress } = waiting.get(data.id) ?? {};
    if (!resolve) return;
    if (data.progress) {
      onProgress?.(data.progress);
      return;
    }
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error));
    else resolve(data.superseded ? null : data.result);
  };
  worker.onerror = (event) => {
    event.preventDefault?.();
    waiting.forEach(({ reject }) => reject(new Error(`The page's model could not be started: ${event.message || "the browser refused a worker"}.`)));
    waiting.clear();
  };
  return {
    ask: (kind, body = {}, onProgress) => new Promise((resolve, reject) => {
      const id = next++;
      waiting.set(id, { resolve, reject, onProgress });
      worker.postMessage({ id, kind, ...body });
    }),
    close: () => {
      worker.terminate();
      URL.revokeObjectURL(url);
    },
  };
}

function serverBackend() {
  let next = 1;
  let draw = 0;
  const running = new Map();

  async function ask(kind, body = {}, onProgress) {
    running.get(kind)?.abort();
    const control = new AbortController();
    running.set(kind, control);
    if (kind === "draw") draw = body.draw;
    const request = kind === "load" ? { id: next++, kind } : { draw, ...body, id: next++, kind };
    try {
      const reply = await fetch("message", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(request),
        signal: control.signal,
      });
      for await (const line of linesOf(reply.body)) {
        const message = JSON.parse(line, decodeArray);
        if (message.error) throw new Error(message.error);
        if (message.result) return message.result;
        if (message.progress) onProgress?.(message.progress);
      }
      throw lost("The server's answer ended early.");
    } catch (error) {
      if (control.signal.aborted) return null;
      throw error instanceof TypeError ? lost("The server does not answer; is workbench ablate still running?") : error;
    }
  }
  return { ask, close: () => running.forEach((control) => control.abort()) };
}

// An error of the connection, which no control has caused.
const lost = (text) => Object.assign(new Error(text), { lost: true });

async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield line;
  }
  if (rest) yield rest;
}

const decodeArray = (_, value) => {
  if (typeof value?.f32 !== "string") return value;
  return new Float32Array(Uint8Array.from(atob(value.f32), (c) => c.charCodeAt(0)).buffer);
};
