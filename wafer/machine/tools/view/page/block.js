// Read the data block of a page: docs/concepts/view-format.md.

const DIRECTION = (bytes) => new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));

// Undo the byte planes, the signs in the lowest bits, and the differences of one column.
function column(bytes, { length, delta, width }) {
  const out = new Int32Array(length);
  for (let k = 0; k < width; ++k)
    for (let i = 0, plane = k * length; i < length; ++i) out[i] |= bytes[plane + i] << (8 * k);
  for (let i = 0, last = 0; i < length; ++i) {
    const value = (out[i] >>> 1) ^ -(out[i] & 1);
    out[i] = last = delta ? last + value : value;
  }
  return out;
}

// text: base64 of the gzip block. Returns the header, with its columns as typed arrays.
export async function readBlock(text) {
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; ++i) packed[i] = letters.charCodeAt(i);
  const bytes = new Uint8Array(await new Response(DIRECTION(packed)).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  let at = 4 + size;
  for (const [name, kind] of Object.entries(header.columns ?? {})) {
    const end = at + kind.length * kind.width;
    header.columns[name] = column(bytes.subarray(at, end), kind);
    at = end;
  }
  return header;
}
