// Bodies by their schema: Avro, and Protobuf from a .proto file. Here and not in the broker, so that
// no body and no schema, whoever wrote them, can keep it busy.

const ITEMS_MAX = 100000;

class Reader {
  constructor(data, at = 0) {
    this.data = data;
    this.at = at;
    this.items = 0;
  }
  take(size) {
    if (size < 0 || this.at + size > this.data.length) throw new Error("the body ends too early");
    this.at += size;
    return this.data.subarray(this.at - size, this.at);
  }
  view(size) { const found = this.take(size); return new DataView(found.buffer, found.byteOffset, size); }
  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (shift > 63n) throw new Error("a number is too long");
      const [byte] = this.take(1);
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asUintN(64, value);
    }
  }
  zigzag() { const value = this.varint(); return (value >> 1n) ^ -(value & 1n); }
  size() { return Number(this.zigzag()); }
  one() { this.items += 1; if (this.items > ITEMS_MAX) throw new Error("there are too many items"); }
}

const text = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes);
const hex = (bytes) => `0x${Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("")}`;
/** A number, as long as it is exact. */
const plain = (value) => (value >= -9007199254740991n && value <= 9007199254740991n ? Number(value) : String(value));

/** What Kafka's serializers put before a body: a zero, and the number of the schema. */
function framed(data) {
  return data.length > 5 && data[0] === 0 ? new DataView(data.buffer, data.byteOffset + 1, 4).getUint32(0) : null;
}

/** The body by a schema: {value, schemaId}. What is left over is an error. */
export function decoded(data, { format, schema, message }) {
  const read = format === "avro" ? avro(schema) : protobuf(schema, message);
  const id = framed(data);
  const ways = id === null ? [[0, null]] : [[5, id], [0, null]];
  let first = null;
  for (const [at, schemaId] of ways) {
    try { return { value: read(data, at), schemaId }; } catch (error) { first = first || error; }
  }
  throw first;
}

// -- Avro ----------------------------------------------------------------------------------------

function avro(schema) {
  const parsed = JSON.parse(schema), names = new Map();
  know(parsed, "", names);
  return (data, at) => {
    const reader = new Reader(data, at);
    const found = avroValue(reader, parsed, "", names);
    if (reader.at !== data.length) throw new Error(`${data.length - reader.at} bytes are left over`);
    return found;
  };
}

const full = (name, space) => (name.includes(".") || !space ? name : `${space}.${name}`);
const within = (schema, space) => schema.namespace ?? (schema.name?.includes(".") ? schema.name.slice(0, schema.name.lastIndexOf(".")) : space);

function know(schema, space, names) {
  if (Array.isArray(schema)) { schema.forEach((each) => know(each, space, names)); return; }
  if (typeof schema !== "object" || schema === null) return;
  const inner = within(schema, space);
  if (schema.name && ["record", "error", "enum", "fixed"].includes(schema.type)) names.set(full(schema.name, inner), [schema, inner]);
  for (const each of schema.fields || []) know(each.type, inner, names);
  for (const each of [schema.items, schema.values, typeof schema.type === "string" ? null : schema.type]) if (each) know(each, inner, names);
}

const AVRO = {
  null: () => null, boolean: (reader) => reader.take(1)[0] === 1, int: (reader) => plain(reader.zigzag()), long: (reader) => plain(reader.zigzag()),
  float: (reader) => reader.view(4).getFloat32(0, true), double: (reader) => reader.view(8).getFloat64(0, true),
  bytes: (reader) => hex(reader.take(reader.size())), string: (reader) => text(reader.take(reader.size())),
};

function avroValue(reader, schema, space, names) {
  reader.one();
  if (Array.isArray(schema)) {
    const chosen = schema[reader.size()];
    if (chosen === undefined) throw new Error("this is not of the schema: there is no such branch of a union");
    return avroValue(reader, chosen, space, names);
  }
  if (typeof schema === "string") {
    if (AVRO[schema]) return AVRO[schema](reader);
    const known = names.get(full(schema, space)) || names.get(schema);
    if (!known) throw new Error(`the schema does not say what ${schema} is`);
    return avroValue(reader, known[0], known[1], names);
  }
  const inner = within(schema, space);
  switch (schema.type) {
    case "record": case "error": return Object.fromEntries(schema.fields.map((each) => [each.name, avroValue(reader, each.type, inner, names)]));
    case "enum": { const found = schema.symbols[reader.size()]; if (found === undefined) throw new Error("this is not of the schema: there is no such symbol"); return found; }
    case "fixed": return logical(schema, reader.take(schema.size));
    case "array": return blocks(reader, () => avroValue(reader, schema.items, inner, names));
    case "map": return Object.fromEntries(blocks(reader, () => [AVRO.string(reader), avroValue(reader, schema.values, inner, names)]));
    case "bytes": return logical(schema, reader.take(reader.size()));
    case "int": case "long": return moment(schema.logicalType, reader.zigzag());
    default: return avroValue(reader, schema.type, inner, names);
  }
}

function blocks(reader, read) {
  const found = [];
  for (let count = reader.size(); count !== 0; count = reader.size()) {
    if (count < 0) { count = -count; reader.size(); }
    for (let each = 0; each < count; each += 1) { reader.one(); found.push(read()); }
  }
  return found;
}

function logical(schema, bytes) {
  if (schema.logicalType !== "decimal") return hex(bytes);
  const value = bytes.reduce((sum, each) => (sum << 8n) | BigInt(each), 0n);
  const number = bytes.length ? BigInt.asIntN(bytes.length * 8, value) : 0n, scale = schema.scale || 0;
  const digits = String(number < 0n ? -number : number).padStart(scale + 1, "0");
  return `${number < 0n ? "-" : ""}${scale ? `${digits.slice(0, -scale)}.${digits.slice(-scale)}` : digits}`;
}

function moment(kind, value) {
  const zone = kind?.startsWith("local-") ? "" : "Z";
  const iso = (ms, digits) => new Date(Number(ms)).toISOString().replace(/\.\d+Z$/, `${digits ? `.${digits}` : ""}${zone}`);
  const rest = (each) => ((value % each) + each) % each;
  try {
    if (kind === "date") return new Date(Number(value) * 86400000).toISOString().slice(0, 10);
    if (kind?.endsWith("timestamp-millis")) return iso(value, String(rest(1000n)).padStart(3, "0"));
    if (kind?.endsWith("timestamp-micros")) { const left = rest(1000000n); return iso((value - left) / 1000n, String(left).padStart(6, "0")); }
    if (kind === "time-millis") return new Date(Number(value)).toISOString().slice(11, 23);
    if (kind === "time-micros") return `${new Date(Number(value / 1000n)).toISOString().slice(11, 19)}.${String(rest(1000000n)).padStart(6, "0")}`;
  } catch { /* It is no time that anybody writes. */ }
  return plain(value);
}

// -- Protobuf ------------------------------------------------------------------------------------

const SCALARS = {
  double: [1, (view) => view.getFloat64(0, true)], fixed64: [1, (view) => plain(view.getBigUint64(0, true))], sfixed64: [1, (view) => plain(view.getBigInt64(0, true))],
  float: [5, (view) => view.getFloat32(0, true)], fixed32: [5, (view) => view.getUint32(0, true)], sfixed32: [5, (view) => view.getInt32(0, true)],
  int32: [0, (value) => plain(BigInt.asIntN(32, value))], int64: [0, (value) => plain(BigInt.asIntN(64, value))], uint32: [0, (value) => plain(BigInt.asUintN(32, value))], uint64: [0, plain],
  sint32: [0, (value) => plain((value >> 1n) ^ -(value & 1n))], sint64: [0, (value) => plain((value >> 1n) ^ -(value & 1n))], bool: [0, (value) => value !== 0n],
  string: [2, text], bytes: [2, hex],
};

/** The messages and enums of a .proto file, by their names. */
function parsed(source) {
  const words = source.replace(/\/\*[^]*?\*\//g, " ").replace(/\/\/[^\n]*/g, " ").match(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.-]+|[{}[\]()=;,<>]/g) || [];
  const types = new Map();
  let at = 0, space = "";
  const expect = (word) => { if (words[at] !== word) throw new Error(`the schema: ${word} is expected, not ${words[at] ?? "its end"}`); at += 1; };
  const skip = () => { for (let depth = 0; at < words.length; at += 1) { if (words[at] === "{") depth += 1; if (words[at] === "}") depth -= 1; if (depth === 0 && (words[at] === ";" || words[at] === "}")) { at += 1; return; } } };
  const options = () => { if (words[at] === "[") { while (at < words.length && words[at] !== "]") at += 1; at += 1; } };
  function enumeration(prefix) {
    const values = new Map();
    types.set(`${prefix}${words[at++]}`, { values });
    expect("{");
    while (at < words.length && words[at] !== "}") {
      if (words[at + 1] === "=") { const name = words[at]; at += 2; values.set(BigInt(words[at++]), name); options(); expect(";"); } else skip();
    }
    expect("}");
  }
  function field(fields, label) {
    let type = words[at++], key = null;
    if (type === "map") { expect("<"); key = words[at++]; expect(","); type = words[at++]; expect(">"); }
    const name = words[at++];
    expect("=");
    const number = BigInt(words[at++]);
    options();
    expect(";");
    fields.set(number, { name, type, key, repeated: label === "repeated" });
  }
  function message(prefix) {
    const name = `${prefix}${words[at++]}`, fields = new Map();
    types.set(name, { fields });
    expect("{");
    body(name, fields);
    expect("}");
  }
  function body(name, fields) {
    while (at < words.length && words[at] !== "}") {
      const word = words[at];
      if (word === "message") { at += 1; message(`${name}.`); }
      else if (word === "enum") { at += 1; enumeration(`${name}.`); }
      else if (word === "oneof") { at += 2; expect("{"); body(name, fields); expect("}"); }
      else if (["option", "reserved", "extensions", "extend"].includes(word)) skip();
      else if (word === ";") at += 1;
      else { const label = ["optional", "required", "repeated"].includes(word) ? words[at++] : ""; field(fields, label); }
    }
  }
  while (at < words.length) {
    const word = words[at];
    if (word === "package") { space = `${words[at + 1]}.`; skip(); }
    else if (word === "message") { at += 1; message(space); }
    else if (word === "enum") { at += 1; enumeration(space); }
    else skip();
  }
  return { types, space };
}

function protobuf(source, wanted) {
  const { types, space } = parsed(source);
  const messages = [...types].filter(([, each]) => each.fields).map(([name]) => name);
  const name = wanted ? [wanted, `${space}${wanted}`].find((each) => types.get(each)?.fields) : messages[0];
  if (!name) throw new Error(wanted ? `the schema has no message ${wanted}` : "the schema has no message");
  const top = messages.filter((each) => !types.get(each.slice(0, each.lastIndexOf(".")))?.fields);
  return (data, at) => {
    const reader = new Reader(data, at);
    let chosen = name;
    if (at) { // Behind Kafka's prefix: which message of the file, as a path of numbers.
      const count = reader.size();
      const path = Array.from({ length: Math.min(count, 100) }, () => reader.size());
      if (!wanted && count && top[path[0]]) chosen = top[path[0]];
    }
    return message(reader, data.length, chosen, types, 0);
  };
}

/** A type by the name that is used inside another one: the innermost that is called so. */
function find(name, inside, types) {
  if (name.startsWith(".")) return name.slice(1);
  for (let space = inside; space; space = space.includes(".") ? space.slice(0, space.lastIndexOf(".")) : "") if (types.has(`${space}.${name}`)) return `${space}.${name}`;
  return name;
}

function message(reader, end, name, types, depth) {
  if (depth > 100) throw new Error("nested too deeply");
  const { fields } = types.get(name), found = Object.create(null);
  while (reader.at < end) {
    reader.one();
    const key = reader.varint(), number = key >> 3n, kind = Number(key & 7n), field = fields.get(number);
    if (number === 0n || ![0, 1, 2, 5].includes(kind)) throw new Error("this is no Protobuf");
    const raw = kind === 0 ? reader.varint() : reader.take(kind === 1 ? 8 : kind === 5 ? 4 : Number(reader.varint()));
    if (reader.at > end) throw new Error("this is no Protobuf");
    if (!field) { (found["?"] ??= Object.create(null))[number] = kind === 0 ? plain(raw) : hex(raw); continue; }
    if (field.key) {
      const entry = entryOf(raw, field, name, types, depth);
      (found[field.name] ??= Object.create(null))[entry[0]] = entry[1];
    } else if (field.repeated) (found[field.name] ??= []).push(...values(raw, kind, field.type, name, types, depth));
    else found[field.name] = values(raw, kind, field.type, name, types, depth).at(-1);
  }
  return found;
}

function entryOf(raw, field, name, types, depth) {
  if (!(raw instanceof Uint8Array)) throw new Error("this is no Protobuf");
  const inner = new Map([...types, ["", { fields: new Map([[1n, { name: "key", type: field.key }], [2n, { name: "value", type: find(field.type, name, types) }]]) }]]);
  const entry = message(new Reader(raw), raw.length, "", inner, depth + 1);
  return [entry.key ?? "", entry.value ?? null];
}

/** One value, or the many of a packed field. */
function values(raw, kind, type, inside, types, depth) {
  const scalar = SCALARS[type], isBytes = raw instanceof Uint8Array;
  const target = scalar ? null : types.get(find(type, inside, types));
  if (!scalar && !target) throw new Error(`the schema does not say what ${type} is`);
  if (target?.fields) {
    if (kind !== 2) throw new Error("this is not of the schema");
    return [message(new Reader(raw), raw.length, find(type, inside, types), types, depth + 1)];
  }
  const [expected, read] = scalar || [0, (value) => target.values.get(BigInt.asIntN(32, value)) ?? plain(BigInt.asIntN(32, value))];
  const one = (value) => (expected === 1 || expected === 5 ? read(new DataView(value.buffer, value.byteOffset, value.length)) : read(value));
  if (kind === expected) return [one(raw)];
  if (!isBytes || kind !== 2 || expected === 2) throw new Error("this is not of the schema");
  const packed = new Reader(raw), found = [];
  while (packed.at < raw.length) { packed.one(); found.push(one(expected === 0 ? packed.varint() : packed.take(expected === 1 ? 8 : 4))); }
  return found;
}
