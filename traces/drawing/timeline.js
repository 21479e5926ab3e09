(function () {
  const box = document.getElementById("ID"), view = box.querySelector("svg"), said = box.querySelector("output");
  const all = [0, TOTAL]; let shown = [...all], held = null;
  const units = [[1e9, " s"], [1e6, " ms"], [1e3, " µs"]];
  const text = ns => { const [size, unit] = units.find(of => ns >= of[0]) || units[2]; return (ns / size).toFixed(3) + unit; };
  const show = () => {
    view.setAttribute("viewBox", shown[0] / SCALE + " 0 " + (shown[1] - shown[0]) / SCALE + " HEIGHT");
    said.textContent = text(shown[0]) + " to " + text(shown[1]);
  };
  const at = event => {
    const area = view.getBoundingClientRect();
    return shown[0] + (shown[1] - shown[0]) * (event.clientX - area.left) / area.width;
  };
  const move = (start, width) => {
    width = Math.min(width, all[1]);
    start = Math.max(0, Math.min(start, all[1] - width));
    shown = [start, start + width];
    show();
  };
  view.addEventListener("wheel", event => {
    event.preventDefault();
    const factor = event.deltaY < 0 ? 0.8 : 1.25, here = at(event), width = Math.max((shown[1] - shown[0]) * factor, 1000);
    move(here - (here - shown[0]) * width / (shown[1] - shown[0]), width);
  }, {passive: false});
  view.addEventListener("pointerdown", event => { held = at(event); view.setPointerCapture(event.pointerId); });
  view.addEventListener("pointermove", event => {
    if (held !== null) move(shown[0] + held - at(event), shown[1] - shown[0]);
  });
  view.addEventListener("pointerup", () => { held = null; });
  view.addEventListener("dblclick", () => move(0, all[1]));
  show();
})();
