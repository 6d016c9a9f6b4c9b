// Read the data block of a page: docs/concepts/view-format.md.

const DIRECTION = (bytes) => new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));

// Undo the byte planes and the differences of one column.
function column(bytes, { length, delta }) {
  const out = new Int32Array(length);
  for (let k = 0; k < 4; ++k)
    for (let i = 0, plane = k * length; i < length; ++i) out[i] |= bytes[plane + i] << (8 * k);
  if (delta) for (let i = 1; i < length; ++i) out[i] += out[i - 1];
  return out;
}

// text: base64 of the gzip block. Returns the header, with its columns as typed arrays.
export async function readBlock(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const bytes = new Uint8Array(await new Response(DIRECTION(packed)).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  let at = 4 + size;
  for (const [name, kind] of Object.entries(header.columns ?? {})) {
    const end = at + 4 * kind.length;
    header.columns[name] = column(bytes.subarray(at, end), kind);
    at = end;
  }
  return header;
}
