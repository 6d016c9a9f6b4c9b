// The page of a floor plan: kernels as regions; a click shows one.
import { byId, element, table } from "./dom.js";
import { Plane } from "./plane.js";

export function showFloor(plan) {
  let chosen = -1;
  const regions = plan.kernels.flatMap((kernel, k) => plan.replicas.map(([dx, dy]) => [k, kernel.x + dx, kernel.y + dy, kernel]));
  const plane = new Plane(byId("plane"), plan.size[0], plan.size[1], draw, (x, y) =>
    choose(regions.find(([, left, top, r]) => x >= left && y >= top && x < left + r.width && y < top + r.height)?.[0] ?? -1));

  function choose(kernel) {
    chosen = kernel;
    const { name, facts } = plan.kernels[kernel] ?? { name: plan.title, facts: plan.facts };
    const rows = facts.map(([fact, value]) => ({ attributes: { "data-fact": fact }, cells: [fact, `${value}`] }));
    byId("pe-box").replaceChildren(element("section", { id: "kernel" }, element("h3", {}, name), table(["", ""], rows)));
    plane.paint();
  }
  function draw(context, scale) {
    context.fillStyle = "#eef1f5";
    context.fillRect(0, 0, ...plan.size);
    for (const [k, x, y, kernel] of regions) {
      Object.assign(context, { fillStyle: kernel.color, strokeStyle: k === chosen ? "#111" : "#fff", lineWidth: (k === chosen ? 3 : 1) / scale });
      context.fillRect(x, y, kernel.width, kernel.height);
      context.strokeRect(x, y, kernel.width, kernel.height);
      const size = Math.min(kernel.height * 0.5, (1.7 * kernel.width) / kernel.name.length, 14 / scale);
      if (size * scale < 7) continue;
      Object.assign(context, { fillStyle: "#111", font: `${size}px sans-serif` });
      context.fillText(kernel.name, x + size * 0.3, y + kernel.height / 2 + size * 0.3);
    }
  }
  byId("facts").textContent = `${plan.size[0]} x ${plan.size[1]} PEs`;
  document.querySelector("footer").remove();
  choose(-1);
  window.plane = plane; // for scripts and tests
}
