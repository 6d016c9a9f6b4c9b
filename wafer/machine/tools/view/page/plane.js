// The plane of PEs or of a floor plan's regions: zoom, drag, click; drawing is the caller's.
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { context } from "./dom.js";

export class Plane {
  // width, height: of the plane in PEs; draw(context, scale): in PEs' coordinates; pick(x, y).
  constructor(canvas, width, height, draw, pick) {
    Object.assign(this, { canvas, width, height, draw, transform: zoomIdentity });
    this.zoom = zoom().scaleExtent([0.5, 4 * Math.max(width, height)]).on("zoom", (event) => {
      this.transform = event.transform;
      this.paint();
    });
    select(canvas).call(this.zoom).on("dblclick.zoom", () => this.show());
    canvas.addEventListener("click", (event) => {
      const [x, y] = this.transform.invert([event.offsetX, event.offsetY]).map((v) => v / this.unit());
      if (x >= 0 && y >= 0 && x < width && y < height) pick(Math.floor(x), Math.floor(y));
    });
    new ResizeObserver(() => this.show()).observe(canvas);
  }
  unit() {
    return Math.min((this.canvas.clientWidth - 20) / this.width, (this.canvas.clientHeight - 20) / this.height);
  }
  // Show the whole plane, or the PEs around one.
  show(x, y) {
    const { clientWidth: w, clientHeight: h } = this.canvas, unit = this.unit();
    const near = x !== undefined && unit < 40, scale = near ? 48 / unit : 1;
    const [cx, cy] = near ? [x + 0.5, y + 0.5] : [this.width / 2, this.height / 2];
    const to = zoomIdentity.translate(w / 2 - cx * unit * scale, h / 2 - cy * unit * scale).scale(scale);
    select(this.canvas).call(this.zoom.transform, to);
  }
  paint() {
    const [draw] = context(this.canvas), scale = this.unit() * this.transform.k;
    draw.translate(this.transform.x, this.transform.y);
    draw.scale(scale, scale);
    this.draw(draw, scale);
  }
}
