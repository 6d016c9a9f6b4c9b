// Elements of the page.

export const byId = (id) => document.getElementById(id);

// An element with attributes (functions are listeners) and children (nodes or text).
export function element(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") out.addEventListener(name, value);
    else if (value !== undefined && value !== false) out.setAttribute(name, value);
  out.append(...children.flat(Infinity));
  return out;
}

export function table(heads, rows) {
  const cells = (tag, row) => row.map((cell) => element(tag, {}, cell));
  return element("table", {}, element("tr", {}, cells("th", heads)),
                 rows.map((row) => element("tr", row.attributes, cells("td", row.cells))));
}

// A canvas as large as its element, in the screen's pixels; its context draws in CSS pixels.
export function context(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale))
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  const out = canvas.getContext("2d");
  out.setTransform(scale, 0, 0, scale, 0, 0);
  out.clearRect(0, 0, width, height);
  return [out, width, height];
}
