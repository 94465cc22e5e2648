// The points of a figure tell their numbers: to a mouse that comes near, to a finger, and to the arrow keys.
function readable(chart) {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  chart.append(tip);
  let chosen = null, pinned = false;

  function show(plot, point) {
    if (chosen) chosen.classList.remove("chosen");
    chosen = point;
    tip.hidden = !point;
    if (!point) { pinned = false; return; }
    point.classList.add("chosen");
    tip.textContent = point.ariaLabel;
    if (point.dataset.runs) {
      const link = document.createElement("a");
      link.href = point.dataset.runs;
      link.textContent = "the runs behind it";
      tip.append(link);
    }
    const box = plot.getBoundingClientRect(), outer = chart.getBoundingClientRect();
    const scale = box.width / plot.viewBox.baseVal.width;
    const x = box.left - outer.left + scale * point.dataset.x, y = box.top - outer.top + scale * point.dataset.y;
    tip.style.left = "0";
    const left = Math.max(0, Math.min(x - tip.offsetWidth / 2, outer.width - tip.offsetWidth));
    const above = y - tip.offsetHeight - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${outer.top + above > 0 ? above : y + 14}px`;
  }

  for (const plot of chart.querySelectorAll("svg.plot")) {
    const points = Array.from(plot.querySelectorAll(".point"));
    for (const point of points) {
      const title = point.querySelector("title");
      point.ariaLabel = title.textContent;
      title.remove(); // or else the browser would show it beside the tip
    }
    // The arrow keys go through the points from left to right.
    const sorted = points.slice().sort((a, b) => a.dataset.x - b.dataset.x || a.dataset.y - b.dataset.y);
    const nearest = event => {
      const on = event.target.closest(".point");
      if (on) return on;
      const box = plot.getBoundingClientRect(), scale = plot.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const far = point => Math.hypot(point.dataset.x - x, "column" in point.dataset ? 0 : point.dataset.y - y);
      const best = points.reduce((a, b) => far(b) < far(a) ? b : a, points[0]);
      return best && far(best) < 18 ? best : null;
    };
    plot.addEventListener("pointermove", event => { if (!pinned && event.pointerType === "mouse") show(plot, nearest(event)); });
    plot.addEventListener("pointerleave", event => { if (!pinned && event.pointerType === "mouse") show(plot, null); });
    plot.addEventListener("click", event => {
      const point = nearest(event);
      show(plot, point);
      pinned = point !== null;
      event.stopPropagation();
    });
    plot.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") show(plot, null);
      if (!step) return;
      event.preventDefault();
      const at = sorted.indexOf(chosen);
      show(plot, sorted[at < 0 ? (step > 0 ? 0 : sorted.length - 1) : (at + step + sorted.length) % sorted.length]);
      pinned = true;
    });
    plot.addEventListener("blur", event => { if (!tip.contains(event.relatedTarget)) show(plot, null); });
  }
  document.addEventListener("click", event => { if (!tip.contains(event.target)) show(null, null); });
}
document.querySelectorAll(".chart").forEach(readable);
