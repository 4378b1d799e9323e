// A client of reachmesh in plain JavaScript: frames, ZMTP (NULL mechanism) and calls, after reachmesh/wire/SPEC.md. No dependencies.
// It calls and reads streams; it serves nothing, so it joins as an observer.
import net from "node:net";
import { randomBytes } from "node:crypto";
import { number, pack, unpack } from "./msgpack.mjs";

// ---- Frames and batches (SPEC sections 2 and 3).
export const TYPE = { REQUEST: 1, RESPONSE: 2, STREAM: 3, CONTROL: 4 };
export const FLAG = { MORE: 1, WANTS_STREAM: 2, ERROR: 2, ITEMS: 2, CREDIT: 8, CANCEL: 16, TO_CALLER: 128 };
const legal = (type, flags) =>
  type === TYPE.REQUEST ? flags < 32 : type === TYPE.RESPONSE ? flags < 4 : type === TYPE.STREAM && [0, 1, 2, 4, 8, 16, 32].includes(flags & 127);

export function encodeFrame({ frame_type, flags = 0, payload_format = 2, priority = 100, depth = 0, call_id = 0n, trace_id = Buffer.alloc(16), span_id = Buffer.alloc(8),
  remaining_ms = 0xffffffff, meta = Buffer.alloc(0), body = Buffer.alloc(0), parts = 0 }) {
  const start = Buffer.from([0x52, 0x4d, 1, frame_type, flags, payload_format, priority, depth]);
  if (frame_type === TYPE.CONTROL) return Buffer.concat([start.fill(0, 5), body]);
  return Buffer.concat([start, number(8, 64, BigInt(call_id)), trace_id, span_id, number(4, 32, BigInt(remaining_ms)), number(2, 16, BigInt(meta.length)), number(2, 16, BigInt(parts)), meta, body]);
}
export const joinBatch = (frames) => Buffer.concat(frames.flatMap((frame) => [number(4, 32, BigInt(frame.length)), frame]));

export function splitBatch(batch, parts = []) {
  const frames = [];
  let at = 0, given = 0;
  const fault = (text) => ({ frames, fault: text });
  while (at < batch.length) {
    if (at + 12 > batch.length || at + 4 + batch.readUInt32BE(at) > batch.length) return fault("truncated");
    const raw = batch.subarray(at + 4, at + 4 + batch.readUInt32BE(at)), [, , version, frame_type, flags, payload_format, priority, depth] = raw;
    if (raw.length < 8 || raw.toString("latin1", 0, 2) !== "RM" || version !== 1) return fault("not a frame of version 1");
    at += 4 + raw.length;
    if (frame_type === TYPE.CONTROL) {
      if (payload_format || priority || depth) return fault("malformed control frame");
      frames.push({ frame_type, flags, payload_format, priority, depth, call_id: 0n, trace_id: Buffer.alloc(16), span_id: Buffer.alloc(8), remaining_ms: 0, meta: Buffer.alloc(0), body: raw.subarray(8), parts: [] });
      continue;
    }
    if (raw.length < 48 || !legal(frame_type, flags) || payload_format > 2 || 48 + raw.readUInt16BE(44) > raw.length) return fault("malformed frame");
    const end = 48 + raw.readUInt16BE(44), count = raw.readUInt16BE(46);
    if ((given += count) > parts.length) return fault("parts missing");
    frames.push({ frame_type, flags, payload_format, priority, depth, call_id: raw.readBigUInt64BE(8), trace_id: raw.subarray(16, 32), span_id: raw.subarray(32, 40),
      remaining_ms: raw.readUInt32BE(40), meta: raw.subarray(48, end), body: raw.subarray(end), parts: parts.slice(given - count, given) });
  }
  return given === parts.length ? { frames, fault: null } : fault("parts left over");
}

export function splitPayload(sequence) { // SPEC section 7
  let at = 4 + 8 * sequence.readUInt32BE(0);
  const segments = Array.from({ length: sequence.readUInt32BE(0) }, (_, index) => { const size = Number(sequence.readBigUInt64BE(4 + 8 * index)); return sequence.subarray(at, (at += size)); });
  if (at !== sequence.length || segments.length === 0) throw new Error("a payload that does not fit its table");
  return segments;
}
const segmentsOf = (frame) => (frame.body.length || !frame.parts.length ? [frame.body, ...frame.parts] : frame.parts);

// ---- One connection: ZMTP 3.0 with the NULL mechanism, the handshake, calls and streams (SPEC sections 1, 4, 5 and 6).
export class ReachError extends Error { constructor(fields) { super(`${fields.type ? fields.type + ": " : ""}${fields.message}`); Object.assign(this, fields, { message: this.message }); } }
const short = (text) => Buffer.concat([Buffer.from([text.length]), Buffer.from(text)]);
const READY = Buffer.concat([short("READY"), short("Socket-Type"), number(4, 32, 6n), Buffer.from("DEALER")]);

export class Client {
  static async connect(host, port, { mesh = "default", name = "node-client" } = {}) {
    const client = new Client();
    Object.assign(client, { calls: new Map(), lastId: 0n, buffer: Buffer.alloc(0), message: [], greeted: false, socket: net.connect(port, host) });
    client.socket.setNoDelay(true).write(Buffer.concat([Buffer.from("ff00000000000000007f0300", "hex"), Buffer.from("NULL".padEnd(20, "\0")), Buffer.alloc(32)]));
    const hello = { lo: 1, hi: 1, mesh, boot: randomBytes(8), instance: `${name}-${process.pid}`, name, observer: true, target: null, inc: 0 };
    client.opening = Promise.withResolvers?.() ?? (() => { const made = {}; made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject })); return made; })();
    client.socket.on("data", (chunk) => { try { client.#receive(chunk, hello); } catch (error) { client.#fail(error); } });
    for (const event of ["error", "close"]) client.socket.on(event, (error) => client.#fail(error || new Error("the connection is gone")));
    client.boot = await client.opening.promise;
    return client;
  }
  close() { this.socket.destroy(); }
  #fail(error) { this.opening.reject(error); for (const call of this.calls.values()) call.done(error); this.calls.clear(); this.socket.destroy(); }

  #receive(chunk, hello) {
    this.buffer = Buffer.concat([this.buffer, chunk]);
    if (!this.greeted) {
      if (this.buffer.length < 64) return;
      this.buffer = this.buffer.subarray(64);
      this.greeted = true;
      this.#write([READY], 4);
    }
    for (;;) {
      const long = this.buffer.length && this.buffer[0] & 2, start = long ? 9 : 2;
      if (this.buffer.length < start) return;
      const flags = this.buffer[0], size = long ? Number(this.buffer.readBigUInt64BE(1)) : this.buffer[1];
      if (this.buffer.length < start + size) return;
      const body = this.buffer.subarray(start, start + size);
      this.buffer = this.buffer.subarray(start + size);
      if (flags & 4) { if (body.toString("latin1", 1, 6) === "READY") this.#send({ frame_type: TYPE.CONTROL, flags: 1, body: pack(hello) }); continue; }
      this.message.push(body);
      if (flags & 1) continue;
      const [batch, ...parts] = this.message.splice(0);
      for (const frame of splitBatch(batch, parts).frames) this.#handle(frame);
    }
  }
  #write(parts, command = 0) {
    parts.forEach((part, index) => this.socket.write(Buffer.concat([Buffer.from([(index < parts.length - 1 ? 1 : 0) | 2 | command]), number(8, 64, BigInt(part.length)), part])));
  }
  #send(frame) { this.#write([joinBatch([encodeFrame(frame)])]); }

  #handle(frame) {
    if (frame.frame_type === TYPE.CONTROL) {
      if (frame.flags === 2) this.opening.resolve(unpack([frame.body]).get("boot"));
      if (frame.flags === 3) this.#fail(new ReachError(Object.fromEntries(unpack([frame.body]))));
      return;
    }
    const call = this.calls.get(frame.call_id), { MORE, ERROR, ITEMS, CREDIT, TO_CALLER } = FLAG;
    if (!call || (frame.frame_type === TYPE.STREAM && !(frame.flags & TO_CALLER)) || frame.frame_type === TYPE.REQUEST) return;
    let segments = segmentsOf(frame);
    if (frame.frame_type === TYPE.RESPONSE) {
      call.answer = frame;
      if (frame.flags & MORE) return;
    } else {
      if (frame.flags & CREDIT) return;
      const size = segments.reduce((sum, segment) => sum + segment.length, 0), chunked = frame.flags & MORE || !(frame.flags & ITEMS) || call.chunks.length;
      if (chunked) call.chunks.push(...segments);
      if (chunked && frame.flags & MORE) return this.#credit(frame, 0, size);
      if (chunked) segments = splitPayload(Buffer.concat(call.chunks.splice(0)));
      if (frame.flags & ITEMS) { const items = unpack(segments); this.#credit(frame, items.length, size); return call.items(items); }
    }
    this.calls.delete(frame.call_id);
    if (call.answer.flags & ERROR) return call.done(new ReachError(Object.fromEntries(unpack([Buffer.concat(segments)]))));
    const { payload_format } = call.answer;
    if (segments.every((segment) => !segment.length) && payload_format === 2) return call.done(null, undefined);
    call.done(null, payload_format === 2 ? unpack(segments) : payload_format === 1 ? JSON.parse(segments[0]) : segments[0]);
  }
  #credit(frame, items, size) {
    this.#send({ frame_type: TYPE.STREAM, flags: FLAG.CREDIT, call_id: frame.call_id, trace_id: frame.trace_id, body: Buffer.concat([number(4, 32, BigInt(items)), number(4, 32, BigInt(size))]) });
  }
  #request(capability, kwargs, args, flags, remaining_ms, call) {
    const call_id = ++this.lastId, trace_id = randomBytes(16);
    this.calls.set(call_id, Object.assign(call, { chunks: [] }));
    this.#send({ frame_type: TYPE.REQUEST, flags, call_id, trace_id, span_id: randomBytes(8), remaining_ms, meta: pack([this.boot, capability, null]), body: pack([args, kwargs]) });
    return { frame_type: TYPE.STREAM, flags: FLAG.CANCEL, call_id, trace_id };
  }
  call(capability, kwargs = {}, { args = [], timeout = 3000 } = {}) {
    return new Promise((resolve, reject) => this.#request(capability, kwargs, args, 0, timeout, { done: (error, value) => (error ? reject(error) : resolve(value)) }));
  }
  async *stream(capability, kwargs = {}, { args = [] } = {}) {
    const queue = [];
    let wake = () => {}, over = null;
    const call = { items: (items) => { queue.push(...items); wake(); }, done: (error) => { over = { error }; wake(); } };
    const cancel = this.#request(capability, kwargs, args, FLAG.WANTS_STREAM, 0xffffffff, call);
    try {
      for (;;) {
        while (queue.length) yield queue.shift();
        if (over) break;
        await new Promise((resolve) => (wake = resolve));
      }
      if (over.error) throw over.error;
    } finally {
      if (this.calls.delete(cancel.call_id)) this.#send(cancel);
    }
  }
}
