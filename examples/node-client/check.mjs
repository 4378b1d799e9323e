// Checks the golden vectors of the protocol against reachmesh.mjs: node check.mjs [directory of the vectors]
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { Collection, Float, pack, unpack } from "./msgpack.mjs";
import { encodeFrame, joinBatch, splitBatch, splitPayload } from "./reachmesh.mjs";

const directory = process.argv[2] ?? new URL("../../tests/unit/wire/golden/", import.meta.url).pathname;
const vectors = (name) => JSON.parse(readFileSync(`${directory}/${name}.json`, "utf-8"));
const raw = (text) => { const [digits, times] = text.split("*"); return Buffer.concat(Array(Number(times ?? 1)).fill(Buffer.from(digits, "hex"))); };
const fields = (frame) => ({ ...Object.fromEntries(Object.entries(frame).map(([key, value]) => [key, Buffer.isBuffer(value) ? value.toString("hex") : typeof value === "bigint" ? String(value) : value])), parts: frame.parts.length });
const hex = (segment) => (segment.length < 1000 ? segment.toString("hex") : `${segment.toString("hex", 0, 1)}*${segment.length}`);
let count = 0;

// A value as its tagged JSON form.
const floats = (value) => (Number.isNaN(value) ? "nan" : value === Infinity ? "inf" : Object.is(value, -0) ? "-0.0" : Number.isInteger(value) ? `${value}.0` : String(value));
const extensions = {
  2: (data) => ({ int: String(BigInt.asIntN(8 * data.length, BigInt("0x" + data.toString("hex")))) }),
  3: (data) => ({ datetime: data.toString() }), 4: (data) => ({ date: data.toString() }), 5: (data) => ({ time: data.toString() }),
  6: (data) => ({ timedelta: [data.readInt32BE(0), data.readInt32BE(4), data.readInt32BE(8)] }),
  7: (data) => { if (data.length !== 16) throw new Error("uuid"); return { uuid: data.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-") }; },
  8: (data) => ({ decimal: data.toString() }), 9: (data) => ({ bytearray: hex(data) }),
  10: (_, segment) => ({ bytes: hex(segment) }), 11: (_, segment) => ({ bytearray: hex(segment) }),
};
function tagged(value) {
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (typeof value === "bigint") return { int: String(value) };
  if (value instanceof Float) return { float: floats(value.value) };
  if (Buffer.isBuffer(value)) return { bytes: hex(value) };
  if (Array.isArray(value)) return { list: value.map(tagged) };
  if (value instanceof Collection) return { [value.kind]: value.items.map(tagged) };
  if (value instanceof Map) return { map: [...value].map((pair) => pair.map(tagged)) };
  if (value.type === 4 && !/^\d{4}-\d\d-\d\d$/.test(value.data)) throw new Error("date");
  return extensions[value.type](value.data, value.segment);
}

for (const vector of vectors("frames")) {
  const { meta, body, trace_id, span_id, ...rest } = vector.fields, [m, b, t, s] = [meta, body, trace_id, span_id].map(raw);
  assert.equal(encodeFrame({ ...rest, meta: m, body: b, trace_id: t, span_id: s }).toString("hex"), vector.hex, vector.name);
  const { frames, fault } = splitBatch(joinBatch([raw(vector.hex)]), Array(rest.parts).fill(Buffer.from("part")));
  assert.equal(fault, null, vector.name);
  assert.deepEqual(fields(frames[0]), vector.fields, vector.name);
  count++;
}
const byName = Object.fromEntries(vectors("frames").map((vector) => [vector.name, vector.fields]));
for (const vector of vectors("batches")) {
  const { frames, fault } = splitBatch(raw(vector.hex), vector.parts.map(raw));
  assert.deepEqual(frames.map(fields), vector.frames.map((name) => byName[name]), vector.name);
  assert.equal(fault !== null, vector.fault, vector.name);
  count++;
}
for (const vector of vectors("values")) {
  const value = unpack(vector.segments.map(raw), true);
  assert.deepEqual(tagged(value), vector.value, vector.name);
  assert.equal(pack(value).toString("hex"), vector.segments[0], vector.name);
  count++;
}
for (const vector of vectors("refused")) {
  assert.throws(() => tagged(unpack([raw(vector.hex)], true)), undefined, vector.name);
  count++;
}
for (const vector of vectors("control")) {
  const body = unpack([raw(vector.hex)]);
  assert.deepEqual(Object.fromEntries([...body].map(([key, value]) => [key, Buffer.isBuffer(value) ? value.toString("hex") : value])), vector.fields, vector.name);
  assert.equal(pack(body).toString("hex"), vector.hex, vector.name);
  count++;
}
for (const vector of vectors("transfer")) {
  const segments = vector.segments.map(raw);
  const table = Buffer.alloc(4 + 8 * segments.length);
  table.writeUInt32BE(segments.length);
  segments.forEach((segment, index) => table.writeBigUInt64BE(BigInt(segment.length), 4 + 8 * index));
  const sequence = Buffer.concat([table, ...segments]);
  assert.equal(sequence.toString("hex", 0, 64), vector.stream_head, vector.name);
  assert.deepEqual(splitPayload(sequence), segments, vector.name);
  count++;
}
console.log(`${count} golden vectors pass`);
