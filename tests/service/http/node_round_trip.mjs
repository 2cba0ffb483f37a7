// One client of examples/node through all it can do; test_node_client.py serves the store.

import assert from "node:assert/strict";
import { Link, Lost, Problem } from "../../../examples/node/link.mjs";
import { pack, unpack } from "../../../examples/node/msgpack.mjs";

const [address, token] = process.argv.slice(2);
const [host, port] = address.split(":");
const place = port ? { host, port: Number(port) } : { path: address };
const link = await Link.connect(place, { token });

// msgpack, both ways
const values = [0, 127, 128, 65536, 2 ** 32, 2 ** 53 - 1, 2n ** 64n - 1n, -1, -33, -(2n ** 63n), 0.5, "é", "x".repeat(70000),
  true, false, null, Buffer.alloc(300, 7), [], Array(20).fill("y"), [[[]]]];
for (const one of values) assert.deepEqual(unpack(pack(one)), one);
assert.deepEqual({ ...unpack(pack(new Map([["a", 1], ["b", null]]))) }, { a: 1, b: null });
assert.throws(() => unpack(Buffer.from("ddffffffff", "hex")), RangeError);
assert.throws(() => unpack(Buffer.alloc(1000, 0x91)), RangeError);

// enqueue, claim, extend, complete
const mail = link.queue("mail");
const id = await mail.enqueue({ to: "a@example.org", n: 2n ** 60n });
assert.equal(id.length, 16);
let [lease] = await mail.claim({ wait: 5, lease: 30 });
assert.deepEqual(lease.id, id);
assert.deepEqual({ ...lease.payload }, { to: "a@example.org", n: 2n ** 60n });
assert.equal(lease.attempt, 1);
const before = lease.deadline;
await lease.extend(300);
assert.ok(lease.deadline - before > 200_000);
await lease.complete({ ok: true });
await lease.complete({ ok: true }); // twice is as once
const uuid = id.toString("hex").replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
const found = await link.call("GET", `/tasks/${uuid}/result`);
assert.equal(found.status, "completed");
await lease.extend(30);
assert.equal(lease.deadline, null);

// options
const first = await mail.enqueueWith({ dedup_key: "order-7", priority: 9 }, { n: 1 });
assert.equal(first.duplicate, false);
assert.deepEqual(await mail.enqueueWith({ dedup_key: "order-7" }, { n: 2 }), { ...first, duplicate: true });
const other = await mail.enqueueWith({ dedup_key: "order-7", on_conflict: "replace" }, { n: 3 });
assert.deepEqual([other.duplicate, other.replaced], [false, first.id]);
await assert.rejects(mail.enqueueWith({ priority: 10 }, 1), { kind: "usage" });
const same = { id: other.id, duplicate: true, replaced: null };
assert.deepEqual(await mail.enqueueManyWith([[{ dedup_key: "order-7" }, 1]]), [same]);
[lease] = await mail.claim();
assert.deepEqual([lease.id, { ...lease.payload }], [other.id, { n: 3 }]);
await lease.complete();
const mixed = await mail.enqueueManyWith([[{}, Buffer.from("a")], [{ priority: 9 }, { n: 4 }]]);
assert.deepEqual(mixed.map((one) => [one.id.length, one.duplicate, one.replaced]), [[16, false, null], [16, false, null]]);
const found2 = await mail.claim({ limit: 2 });
assert.deepEqual(found2.map((one) => one.id), [mixed[1].id, mixed[0].id]);
for (const one of found2) await one.complete();

// many, bytes as they are, nack with a reason, a lease that had ended
const ids = await mail.enqueueMany([Buffer.from("a"), Buffer.from("b"), Buffer.from("c")]);
assert.equal(ids.length, 3);
const leases = await mail.claim({ limit: 10, worker: "w" });
assert.deepEqual(leases.map((one) => one.payload.toString()), ["a", "b", "c"]);
await leases[0].end("nack", { delay: 0, reason: "later" });
await assert.rejects(leases[0].complete(), (error) => error instanceof Problem && error.kind === "lease-lost" && error.status === 409);
[lease] = await mail.claim();
assert.equal(lease.attempt, 2);
for (const one of [lease, leases[1], leases[2]]) await one.complete();

// errors, each that of its own request
await assert.rejects(link.queue("").enqueue(1), { kind: "invalid-name", status: 422 });
await assert.rejects(link.call("GET", "/nothing"), { status: 404 });
await assert.rejects(mail.claim({ lease: -1 }), { kind: "usage" });
await assert.rejects(mail.enqueue(Buffer.alloc(9 << 20)), { kind: "usage" });
const most = Buffer.alloc(3 << 20, 2); // of what is one value: a string of as many bytes has a head, too
await assert.rejects(mail.enqueue(most.toString("latin1")), { kind: "payload-too-large", status: 413 });
await mail.enqueue(most);
[lease] = await mail.claim();
assert.deepEqual(lease.payload, most);
await lease.complete();
assert.throws(() => pack(Symbol("s")), TypeError);

// out of order: a claim that waits is overtaken, and gets what comes
const poll = link.queue("later").claim({ wait: 30 });
assert.equal((await link.call("GET", "/queues/later/stats")).ready, 0);
await link.queue("later").enqueue("here");
[lease] = await poll;
assert.equal(lease.payload, "here");
await lease.complete();

// taken back: while it waits, and before it was sent
const stop = new AbortController();
const given = link.queue("later").claim({ wait: 30, signal: stop.signal });
await link.call("GET", "/health");
stop.abort();
await assert.rejects(given, { name: "AbortError" });
await assert.rejects(mail.claim({ signal: stop.signal }), { name: "AbortError" });
const early = new AbortController();
const unsent = link.queue("later").claim({ signal: early.signal });
early.abort();
await assert.rejects(unsent, { name: "AbortError" });

// more at once than the server takes without an answer, and more queues than there are handles
await Promise.all(Array.from({ length: 10_000 }, (_, n) => link.queue(`n${n % 1500}`).enqueue(n)));
assert.equal((await link.call("GET", "/stats")).ready, 10_000);

// an answer in parts, and frames in many reads
const large = Buffer.alloc(1 << 20, 1);
await Promise.all([1, 2, 3].map(() => link.queue("large").enqueue(large)));
const page = await link.call("GET", "/queues/large/tasks", { query: { limit: "3" } });
assert.equal(page.tasks.length, 3);
assert.deepEqual(page.tasks[0].payload, large);
const all = await link.queue("large").claim({ limit: 3 });
assert.equal(all.length, 3);
await assert.rejects(Promise.all([link.call("POST", "/leases/release", { body: {} })]), { kind: "usage" });

// the wrong token, another protocol, and the end
if (token) await assert.rejects(Link.connect(place, { token: "wrong" }), { kind: "access-denied", status: 401 });
const last = link.queue("later2").claim({ wait: 30 });
link.close();
await assert.rejects(last, Lost);
await assert.rejects(mail.enqueue(1), { begun: false });
console.log("done");
