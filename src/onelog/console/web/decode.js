// Bytes as people can read them.

/** The bytes of a message's body. */
export function raw(found) {
  if (found.body_encoding === "text") return new TextEncoder().encode(found.body);
  return Uint8Array.from(atob(found.body), (each) => each.charCodeAt(0));
}

export function json(data) {
  return JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data)), null, 2);
}

export function hexdump(data, most = 16384) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = Array.from(data.slice(at, at + 16));
    const hex = row.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (data.length > most) lines.push("…");
  return lines.join("\n");
}

/** Protobuf without its schema: field numbers, and what the bytes could be. */
export function protobuf(data) {
  return fields(data, 0, data.length, 0).join("\n") || "(empty)";
}

function fields(data, begin, end, depth) {
  if (depth > 20) throw new Error("nested too deeply");
  const lines = [];
  const gap = "  ".repeat(depth);
  let at = begin;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (at >= end || shift > 63n) throw new Error("this is no Protobuf");
      const byte = data[at]; at += 1;
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < end) {
    const key = varint();
    const number = key >> 3n, kind = Number(key & 7n);
    if (number === 0n) throw new Error("this is no Protobuf");
    if (kind === 0) lines.push(`${gap}${number}: ${varint()}`);
    else if (kind === 1 || kind === 5) {
      const size = kind === 1 ? 8 : 4;
      if (at + size > end) throw new Error("this is no Protobuf");
      const view = new DataView(data.buffer, data.byteOffset + at, size);
      lines.push(`${gap}${number}: ${kind === 1 ? `${view.getBigUint64(0, true)} | ${view.getFloat64(0, true)}` : `${view.getUint32(0, true)} | ${view.getFloat32(0, true)}`}`);
      at += size;
    } else if (kind === 2) {
      const size = Number(varint());
      if (at + size > end) throw new Error("this is no Protobuf");
      lines.push(...nested(data, at, at + size, depth, `${gap}${number}`));
      at += size;
    } else throw new Error("this is no Protobuf");
  }
  return lines;
}

function nested(data, begin, end, depth, name) {
  const part = data.slice(begin, end);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(part);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return [`${name}: ${JSON.stringify(text)}`];
  } catch { /* No text. */ }
  try { return [`${name} {`, ...fields(data, begin, end, depth + 1), `${"  ".repeat(depth)}}`]; }
  catch { return [`${name}: 0x${Array.from(part.slice(0, 256), (each) => each.toString(16).padStart(2, "0")).join("")}`]; }
}
