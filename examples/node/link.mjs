// A client of `lodeq serve` for Node, written after docs/link.md. It needs no packages.

import { randomBytes } from "node:crypto";
import net from "node:net";
import { pack, unpack } from "./msgpack.mjs";

const VERSION = 1;
const FRAME_MAX = 8 << 20, OWN_FRAME = 256 << 10; // bytes
const ENTRIES_MAX = 4096, HANDLES_MAX = 1024, OPEN_MAX = 4096; // open: without an answer
const Op = { queue: 0, enqueue: 1, enqueueMany: 2, claim: 3, complete: 4, end: 6, heartbeat: 7, call: 8, cancel: 9, enqueueWith: 10, enqueueManyWith: 11 };
const Status = { done: 0, part: 1, problem: 2, goodbye: 3 };

/** The server did not do it. `kind` is the error's name, as "lease-lost". */
export class Problem extends Error {
  constructor(document) {
    super(document.detail);
    Object.assign(this, document, { kind: document.type.replace("urn:lodeq:problem:", "") });
  }
}

/** The connection is lost. If `begun` is false the request was certainly not begun. */
export class Lost extends Error {
  constructor(text, begun) { super(text), (this.begun = begun); }
}

const usage = (detail) => new Problem({ type: "urn:lodeq:problem:usage", status: 422, detail });
const receipt = (found) => {
  const [id, duplicate, replaced] = Buffer.isBuffer(found) ? [found, false, null] : found;
  return { id, duplicate, replaced };
};
const packed = (value) => (value instanceof Uint8Array ? [0, value] : [1, pack(value)]);

export class Link {
  nonce = randomBytes(8); // with a request's id it names a claim
  #socket; #onWelcome; #operations;
  #chunks = []; #size = 0; #need = 4; // what was read
  #ready = []; #cancels = []; #isFlushDue = false; #isFull = false; // what is to be written
  #requests = new Map(); #lastId = 0; #open = 0; #handles = new Map();
  #refusal = null; #isLost = false;

  /** Connect to `{ path }` or `{ host, port }`, with the server's token where it needs one. */
  static connect(address, { token = null, agent = "node" } = {}) {
    const link = new Link();
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => link.#lose(new Lost("no welcome came", false)), 10_000);
      link.#onWelcome = (error) => (clearTimeout(late), error ? reject(error) : resolve(link));
      const hello = frame(Buffer.of(VERSION), pack([token, link.nonce, agent]));
      link.#socket = net.connect({ ...address, noDelay: true }, () => link.#socket.write(hello));
      link.#socket.on("data", (data) => link.#read(data));
      link.#socket.on("drain", () => link.#flush((link.#isFull = false)));
      link.#socket.on("error", (error) => link.#lose(new Lost(error.message, true)));
      link.#socket.on("close", () => link.#lose(new Lost("the connection was closed", true)));
    });
  }

  /** A queue. `options` are those of HTTP: tenant, all_tenants, policy, boost_after. */
  queue(name, options = {}) {
    return new Queue(this, { queue: name, ...options });
  }

  /** Any request of HTTP: its path without `/v1`, its body as an object. */
  async call(method, path, { query = {}, body, seconds = null, signal } = {}) {
    const args = [method, path, query, body === undefined ? null : pack(body), seconds];
    return unpack(await this.request(Op.call, args, { signal }));
  }

  /** Make leases end `seconds` from now. Returns a Date for each; null: it is a lease no more. */
  async heartbeat(leases, seconds = null) {
    const found = await this.request(Op.heartbeat, [leases.map((one) => one.proof), seconds]);
    return found.map((one) => (typeof one === "string" ? null : new Date(one / 1000)));
  }

  /** Close the connection. Requests without an answer are rejected. */
  close() { this.#lose(new Lost("closed", true)); }

  /** Send a request, and return the value of its answer. `queue`: the document of its handle. */
  request(operation, args, { queue, signal, waits = false } = {}) {
    return new Promise((resolve, reject) => {
      if (this.#refusal) throw new Lost(this.#refusal.message, false);
      if (!this.#operations.has(operation)) throw usage(`the server takes no operation ${operation}`);
      signal?.throwIfAborted();
      const id = this.#lastId + 1;
      const entry = pack([operation, id, ...(queue ? [this.#handleOf(queue)] : []), ...args]);
      if (entry.length > FRAME_MAX - 3) throw usage("the request is larger than a frame, 8 MiB");
      const request = { id: (this.#lastId = id), entry, resolve, reject, waits, parts: [] };
      this.#requests.set(id, request);
      this.#ready.push(request);
      signal?.addEventListener("abort", () => this.#cancel(request, signal.reason), { once: true });
      this.#flushSoon();
    });
  }

  #cancel(request, reason) {
    if (!this.#requests.has(request.id)) return; // it is answered
    if (request.isSent) this.#cancels.push({ entry: pack([Op.cancel, request.id]) });
    this.#settle(request).reject(reason);
    this.#flushSoon();
  }

  #settle(request) {
    this.#requests.delete(request.id);
    if (request.isSent && !request.waits) this.#open--;
    request.entry = null;
    return request;
  }

  // A handle that is given anew names another queue only for the requests behind it.
  #handleOf(document) {
    const key = JSON.stringify(document);
    if (!this.#handles.has(key)) {
      if (this.#handles.size === HANDLES_MAX) this.#handles.clear();
      this.#handles.set(key, this.#handles.size);
      this.#ready.push({ entry: pack([Op.queue, this.#handles.get(key), pack(document)]) });
    }
    return this.#handles.get(key);
  }

  // All that one turn of the loop has to send leaves in one write.
  #flushSoon() {
    if (!this.#isFlushDue) setImmediate(() => this.#flush((this.#isFlushDue = false)));
    this.#isFlushDue = true;
  }

  #flush() {
    if (this.#isLost || this.#isFull) return;
    let frames = [], entries = [], size = 0, total = 0, n = 0;
    const seal = () => {
      if (entries.length) frames.push(frame(Buffer.of(0xdc, entries.length >> 8, entries.length), ...entries));
      [entries, size] = [[], 0];
    };
    const add = (request) => {
      if (request.entry === null) return; // cancelled before it was sent
      if (entries.length === ENTRIES_MAX || size + request.entry.length > OWN_FRAME) seal();
      entries.push(request.entry);
      size += request.entry.length;
      total += request.entry.length;
      Object.assign(request, { entry: null, isSent: true });
      if (request.id && !request.waits) this.#open++;
    };
    this.#cancels.splice(0).forEach(add);
    while (n < this.#ready.length && this.#open < OPEN_MAX && total < FRAME_MAX) add(this.#ready[n++]);
    this.#ready.splice(0, n);
    seal();
    if (frames.length) this.#isFull = !this.#socket.write(Buffer.concat(frames));
  }

  #read(data) {
    this.#chunks.push(data);
    this.#size += data.length;
    try {
      while (this.#size >= this.#need && !this.#isLost) {
        const all = Buffer.concat(this.#chunks);
        const n = all.readUInt32BE();
        if (n < 1 || n > FRAME_MAX) throw new RangeError("a frame has 1 byte to 8 MiB");
        const isWhole = all.length >= 4 + n;
        this.#chunks = [isWhole ? all.subarray(4 + n) : all];
        this.#size = this.#chunks[0].length;
        this.#need = isWhole ? 4 : 4 + n;
        if (isWhole) this.#take(all.subarray(4, 4 + n));
      }
    } catch (error) {
      this.#lose(error instanceof Problem ? error : new Lost(`cannot be read: ${error.message}`, true));
    }
  }

  #take(body) {
    if (!this.#operations) return this.#welcome(body);
    for (const [id, status, value] of unpack(body)) {
      const request = this.#requests.get(id);
      if (id === 0 && status === Status.goodbye) this.#refuseAfter(value);
      else if (id === 0) throw new Problem(value);
      else if (!request) continue; // it was cancelled
      else if (status === Status.part) request.parts.push(value);
      else if (status === Status.problem) this.#settle(request).reject(new Problem(value));
      else if (status !== Status.done) throw new RangeError(`status ${status}`);
      else this.#settle(request).resolve(request.parts.length ? Buffer.concat([...request.parts, value]) : value);
    }
    if (this.#ready.length) this.#flushSoon();
  }

  #welcome(body) {
    if (body[0] > VERSION) throw new RangeError(`version ${body[0]}`);
    const [isTaken, found] = unpack(body.subarray(1));
    if (!isTaken) throw new Problem(found);
    this.#operations = new Set(found);
    this.#onWelcome();
  }

  #refuseAfter(lastId) {
    this.#refusal = new Lost("the server takes no more requests on this connection", false);
    for (const one of this.#requests.values()) if (one.id > lastId) this.#settle(one).reject(this.#refusal);
  }

  #lose(error) {
    this.#isLost = true;
    this.#refusal ??= error;
    this.#socket.destroy();
    this.#onWelcome(error);
    for (const one of this.#requests.values()) {
      this.#settle(one).reject(one.isSent ? error : new Lost(error.message, false));
    }
  }
}

class Queue {
  constructor(link, document) { Object.assign(this, { link, document }); }

  /** Enqueue bytes as they are, or what msgpack can pack. Returns the task's id. */
  enqueue(payload) {
    return this.link.request(Op.enqueue, packed(payload), { queue: this.document });
  }

  /** The same with options as HTTP has them: `dedup_key`, `delay`, … Returns a receipt. */
  async enqueueWith(options, payload) {
    const args = [...packed(payload), pack(options)];
    return receipt(await this.link.request(Op.enqueueWith, args, { queue: this.document }));
  }

  /** Enqueue up to 4,096 tasks, each `[options, payload]`. Returns their receipts. */
  async enqueueManyWith(tasks) {
    const args = [tasks.map(([options, payload]) => [...packed(payload), pack(options)])];
    const found = await this.link.request(Op.enqueueManyWith, args, { queue: this.document });
    if (!Buffer.isBuffer(found)) return found.map(receipt);
    return tasks.map((_, n) => receipt(found.subarray(16 * n, 16 * n + 16)));
  }

  /** Enqueue up to 4,096 payloads. Returns their ids. */
  async enqueueMany(payloads) {
    const isBytes = payloads.every((one) => one instanceof Uint8Array);
    const args = isBytes ? [0, payloads] : [1, payloads.map(pack)];
    const ids = await this.link.request(Op.enqueueMany, args, { queue: this.document });
    return payloads.map((_, n) => ids.subarray(16 * n, 16 * n + 16));
  }

  /** Claim up to `limit` tasks for `lease` seconds, and wait up to `wait` seconds for the first. */
  async claim({ limit = 1, lease = null, wait = 0, worker = "node", signal } = {}) {
    const options = { queue: this.document, signal, waits: wait > 0 };
    const found = await this.link.request(Op.claim, [limit, lease, wait, worker], options);
    return found.map((fields) => new Lease(this.link, fields));
  }
}

class Lease {
  constructor(link, [id, epoch, token, priority, attempt, , deadline, , , kind, payload, headers, tenant]) {
    Object.assign(this, { link, id, proof: [id, epoch, token], priority, attempt, tenant });
    this.deadline = new Date(deadline / 1000);
    this.payload = kind === 1 ? unpack(payload) : payload;
    this.headers = headers === null ? {} : unpack(headers);
  }

  /** End the task. A result is kept; with one it is safe to repeat. */
  complete(result) {
    const args = result === undefined ? [null, null, false] : [...packed(result), true];
    return this.link.request(Op.complete, [...this.proof, ...args]);
  }

  /** End the lease otherwise: `verb` is nack, release, bury or cancel; `delay` is in seconds. */
  end(verb, { delay = null, reason = "" } = {}) {
    return this.link.request(Op.end, [...this.proof, verb, delay, reason]);
  }

  /** Make it end `seconds` from now; `deadline` is null if it had ended otherwise. */
  async extend(seconds = null) {
    [this.deadline] = await this.link.heartbeat([this], seconds);
  }
}

function frame(...parts) {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(parts.reduce((n, part) => n + part.length, 0));
  return Buffer.concat([head, ...parts]);
}
