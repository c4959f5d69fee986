// Mouse, pen, touch and wheel on the map, told as what they mean: point, tap, pan, zoom, leave. Places are CSS pixels
// from the map's corner.
function gestures(map, tell) {
  const down = new Map();
  let moved = false;
  let apart = 0;
  let middle = null;
  const place = (event) => {
    const box = map.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  function two() {
    const [[ax, ay], [bx, by]] = down.values();
    return { middle: [(ax + bx) / 2, (ay + by) / 2], apart: Math.hypot(ax - bx, ay - by) };
  }

  function began() {
    if (down.size === 2) ({ middle, apart } = two());
  }

  map.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    if (!down.size) moved = false;
    down.set(event.pointerId, place(event));
    map.setPointerCapture(event.pointerId);
    began();
  });
  map.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = down.get(event.pointerId);
    if (!before) return tell.point(...now);
    if (!moved && down.size === 1 && Math.hypot(now[0] - before[0], now[1] - before[1]) < 4) return undefined;
    moved = true;
    down.set(event.pointerId, now);
    if (down.size === 1) return tell.pan(now[0] - before[0], now[1] - before[1]);
    if (down.size > 2) return undefined;
    const last = { middle, apart };
    ({ middle, apart } = two());
    tell.pan(middle[0] - last.middle[0], middle[1] - last.middle[1]);
    if (last.apart > 0 && apart > 0) tell.zoom(apart / last.apart, ...middle);
    return undefined;
  });
  map.addEventListener("pointerup", (event) => {
    if (down.delete(event.pointerId) && !moved && !down.size) tell.tap(...place(event));
    began();
  });
  map.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  map.addEventListener("pointerleave", () => { if (!down.size) tell.leave(); });
  // The wheel belongs to the page until the map has the focus, or Ctrl or Meta is held (which a touch pad's pinch does).
  map.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey || document.activeElement === map)) return;
    if (tell.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...place(event))) event.preventDefault();
  }, { passive: false });
}
