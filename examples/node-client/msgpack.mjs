// MessagePack with the extensions of reachmesh/wire/SPEC.md, section 8. Extensions stay `Ext`, collections that are no list are
// `Collection`, and with `exact` integers are BigInt and floats `Float`, so that nothing is lost between reading and writing.

export class Ext { constructor(type, data, segment) { Object.assign(this, { type, data, segment }); } }
export class Collection { constructor(kind, items) { Object.assign(this, { kind, items }); } }
export class Float { constructor(value) { this.value = value; } }
const KINDS = ["tuple", "set", "frozenset"], MARK = 1, NEXT_SEGMENT = [10, 11];

export function number(size, bits, value) {
  const bytes = Buffer.alloc(size);
  for (let at = size - 1, rest = BigInt.asUintN(bits, value); at >= 0; at--, rest >>= 8n) bytes[at] = Number(rest & 255n);
  return bytes;
}
const head = (code, size, value) => Buffer.concat([Buffer.from([code]), number(size, 8 * size, BigInt(value))]);
const sized = (length, fix, most, codes) =>
  length <= most ? Buffer.from([fix | length]) : length < 256 && codes[0] ? head(codes[0], 1, length) : length < 65536 ? head(codes[1], 2, length) : head(codes[2], 4, length);

function packInt(value) {
  if (value >= -32n && value < 128n) return Buffer.from([Number(value & 255n)]);
  const sizes = value >= 0n ? [[0xcc, 1], [0xcd, 2], [0xce, 4], [0xcf, 8]] : [[0xd0, 1], [0xd1, 2], [0xd2, 4], [0xd3, 8]];
  for (const [code, size] of sizes) {
    const bits = BigInt(8 * size);
    if (value >= 0n ? value < 1n << bits : value >= -(1n << (bits - 1n))) return head(code, size, value);
  }
  throw new RangeError("an integer of more than 64 bits is an extension of type 2");
}

export function pack(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (value === true || value === false) return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === "bigint") return packInt(value);
  if (typeof value === "number" && Number.isSafeInteger(value) && !Object.is(value, -0)) return packInt(BigInt(value));
  if (typeof value === "number" || value instanceof Float) {
    const bytes = Buffer.alloc(9, 0xcb);
    bytes.writeDoubleBE(Number(value.value ?? value), 1);
    return bytes;
  }
  if (typeof value === "string") { const text = Buffer.from(value); return Buffer.concat([sized(text.length, 0xa0, 31, [0xd9, 0xda, 0xdb]), text]); }
  if (value instanceof Uint8Array) return Buffer.concat([sized(value.length, 0, -1, [0xc4, 0xc5, 0xc6]), value]);
  if (value instanceof Ext) {
    const { data } = value, fixed = [1, 2, 4, 8, 16].indexOf(data.length);
    return Buffer.concat([fixed < 0 ? sized(data.length, 0, -1, [0xc7, 0xc8, 0xc9]) : Buffer.from([0xd4 + fixed]), Buffer.from([value.type]), data]);
  }
  if (value instanceof Collection) return pack([new Ext(MARK, Buffer.from([KINDS.indexOf(value.kind)])), ...value.items]);
  if (Array.isArray(value)) return Buffer.concat([sized(value.length, 0x90, 15, [0, 0xdc, 0xdd]), ...value.map(pack)]);
  const entries = value instanceof Map ? [...value] : Object.entries(value);
  return Buffer.concat([sized(entries.length, 0x80, 15, [0, 0xde, 0xdf]), ...entries.flat().map(pack)]);
}

export function unpack(segments, exact = false) {
  const bytes = segments[0];
  let at = 0, used = 1;
  const take = (size) => { if (at + size > bytes.length) throw new Error("truncated"); at += size; return bytes.subarray(at - size, at); };
  const uint = (size) => take(size).readUIntBE(0, size);
  const small = (value) => (exact || value < Number.MIN_SAFE_INTEGER || value > Number.MAX_SAFE_INTEGER ? value : Number(value));
  const text = (size) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(take(size));
  const many = (count, depth) => Array.from({ length: Math.min(count, bytes.length - at + 1) }, () => read(depth));
  const extension = (size) => {
    const type = take(1).readInt8(), data = take(size);
    if (type < 1 || type > 13 || (type === MARK && !(size === 1 && data[0] < 3))) throw new Error(`extension ${type}`);
    if (!NEXT_SEGMENT.includes(type)) return new Ext(type, data);
    if (size || used >= segments.length) throw new Error("a buffer that did not come");
    return new Ext(type, data, segments[used++]);
  };
  const array = (count, depth) => {
    const items = many(count, depth), isMark = (item) => item instanceof Ext && item.type === MARK;
    if (items.slice(1).some(isMark)) throw new Error("a mark that is not the first");
    return items.length && isMark(items[0]) ? new Collection(KINDS[items[0].data[0]], items.slice(1)) : items;
  };
  const map = (count, depth) => {
    const flat = many(2 * count, depth);
    if (flat.some((key, index) => index % 2 === 0 && (Array.isArray(key) || key instanceof Map))) throw new Error("a key that cannot be one");
    return new Map(Array.from({ length: count }, (_, index) => [flat[2 * index], flat[2 * index + 1]]));
  };
  function read(depth) {
    const code = take(1)[0], deeper = depth + 1;
    if (depth > 128 && ((code >= 0x80 && code < 0xa0) || (code >= 0xdc && code < 0xe0))) throw new Error("too deep");
    if (code < 0x80 || code >= 0xe0) return small(BigInt(code < 0x80 ? code : code - 256));
    if (code < 0x90) return map(code & 15, deeper);
    if (code < 0xa0) return array(code & 15, deeper);
    if (code < 0xc0) return text(code & 31);
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return take(uint(1 << (code - 0xc4)));
    if (code >= 0xc7 && code <= 0xc9) return extension(uint(1 << (code - 0xc7)));
    if (code === 0xca || code === 0xcb) { const value = code === 0xca ? take(4).readFloatBE() : take(8).readDoubleBE(); return exact ? new Float(value) : value; }
    if (code >= 0xcc && code <= 0xcf) return small(BigInt("0x" + take(1 << (code - 0xcc)).toString("hex")));
    if (code >= 0xd0 && code <= 0xd3) { const size = 1 << (code - 0xd0); return small(BigInt.asIntN(8 * size, BigInt("0x" + take(size).toString("hex")))); }
    if (code >= 0xd4 && code <= 0xd8) return extension(1 << (code - 0xd4));
    if (code >= 0xd9 && code <= 0xdb) return text(uint(1 << (code - 0xd9)));
    if (code === 0xdc || code === 0xdd) return array(uint(code === 0xdc ? 2 : 4), deeper);
    if (code === 0xde || code === 0xdf) return map(uint(code === 0xde ? 2 : 4), deeper);
    throw new Error("a byte that MessagePack never uses");
  }
  const value = read(1);
  if (at !== bytes.length || used !== segments.length || (value instanceof Ext && value.type === MARK)) throw new Error("left over");
  return value;
}
