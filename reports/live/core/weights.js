// The packed tensors of a payload: one little-endian float32 buffer, checked by its hash before anything is read.
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function unpack(weights) {
  let bytes;
  try {
    bytes = bytesOf(weights.data);
  } catch {
    throw new Error("The weights in this page are damaged: they are not base64 text. Make the page again.");
  }
  const found = sha256(bytes);
  if (found !== weights.sha256) {
    const [expected, got] = [weights.sha256, found].map((hash) => String(hash).slice(0, 12));
    throw new Error(`The weights in this page are damaged: expected sha256 ${expected}…, got ${got}…. Make the page again.`);
  }
  const tensors = {};
  for (const { name, shape, offset } of weights.tensors) {
    const size = shape.reduce((a, b) => a * b, 1);
    tensors[name] = new Float32Array(bytes.buffer, offset, size);
  }
  return tensors;
}
