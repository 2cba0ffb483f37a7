// The part of msgpack (https://msgpack.org) that the link needs.

/** Pack null, booleans, numbers, BigInts, text, bytes, arrays, Maps and plain objects. */
export function pack(value) {
  const parts = [];
  write(parts, value);
  return Buffer.concat(parts);
}

function head(type, bytes, n) {
  const made = Buffer.alloc(1 + bytes, type);
  if (bytes === 8) made.writeBigUInt64BE(BigInt.asUintN(64, BigInt(n)), 1);
  else if (bytes) made.writeUIntBE(n, 1, bytes);
  return made;
}

function sized(n, fix, fixMax, [of8, of16, of32]) {
  if (n < fixMax) return head(fix | n, 0);
  if (of8 && n < 0x100) return head(of8, 1, n);
  return n < 0x10000 ? head(of16, 2, n) : head(of32, 4, n);
}

function whole(n) {
  if (n < -(2n ** 63n) || n >= 2n ** 64n) throw new RangeError(`${n} is too large`);
  if (n < 0 || n >= 0x100000000) return head(n < 0 ? 0xd3 : 0xcf, 8, n);
  return n < 0x80 ? head(Number(n), 0) : head(0xce, 4, Number(n));
}

function write(parts, value) {
  if (value === null || value === undefined) parts.push(head(0xc0, 0));
  else if (typeof value === "boolean") parts.push(head(value ? 0xc3 : 0xc2, 0));
  else if (typeof value === "bigint" || Number.isSafeInteger(value)) parts.push(whole(value));
  else if (typeof value === "number") {
    parts.push(Buffer.alloc(9, 0xcb));
    parts.at(-1).writeDoubleBE(value, 1);
  } else if (typeof value === "string") {
    const text = Buffer.from(value);
    parts.push(sized(text.length, 0xa0, 32, [0xd9, 0xda, 0xdb]), text);
  } else if (value instanceof Uint8Array) parts.push(sized(value.length, 0, 0, [0xc4, 0xc5, 0xc6]), value);
  else if (Array.isArray(value)) {
    parts.push(sized(value.length, 0x90, 16, [0, 0xdc, 0xdd]));
    for (const one of value) write(parts, one);
  } else if (typeof value === "object") {
    const entries = value instanceof Map ? [...value] : Object.entries(value);
    parts.push(sized(entries.length, 0x80, 16, [0, 0xde, 0xdf]));
    for (const one of entries.flat(1)) write(parts, one);
  } else throw new TypeError(`msgpack has no ${typeof value}`);
}

/** Unpack one value: maps as objects without a prototype, whole numbers beyond 2^53 as BigInt. */
export function unpack(data) {
  let at = 0;
  const bytes = (n) => {
    if (n > data.length - at) throw new RangeError("msgpack is cut off");
    at += n;
    return data.subarray(at - n, at);
  };
  const number = (size, isSigned) => {
    const raw = bytes(size);
    if (size < 8) return isSigned ? raw.readIntBE(0, size) : raw.readUIntBE(0, size);
    const found = isSigned ? raw.readBigInt64BE(0) : raw.readBigUInt64BE(0);
    return Number.isSafeInteger(Number(found)) ? Number(found) : found;
  };
  const text = (n) => bytes(n).toString();
  const array = (n, depth, found = []) => {
    while (n--) found.push(read(depth + 1));
    return found;
  };
  const map = (n, depth, found = Object.create(null)) => {
    while (n--) found[read(depth + 1)] = read(depth + 1); // the key is read first
    return found;
  };
  const extension = (n) => ({ code: number(1, true), data: bytes(n) });
  const read = (depth) => {
    if (depth > 100) throw new RangeError("msgpack is too deep");
    const type = number(1);
    if (type < 0x80) return type;
    if (type < 0x90) return map(type & 0x0f, depth);
    if (type < 0xa0) return array(type & 0x0f, depth);
    if (type < 0xc0) return text(type & 0x1f);
    if (type < 0xc4) return [null, undefined, false, true][type - 0xc0];
    if (type < 0xc7) return bytes(number(1 << (type - 0xc4)));
    if (type < 0xca) return extension(number(1 << (type - 0xc7)));
    if (type < 0xcc) return type === 0xca ? bytes(4).readFloatBE() : bytes(8).readDoubleBE();
    if (type < 0xd0) return number(1 << (type - 0xcc));
    if (type < 0xd4) return number(1 << (type - 0xd0), true);
    if (type < 0xd9) return extension(1 << (type - 0xd4));
    if (type < 0xdc) return text(number(1 << (type - 0xd9)));
    if (type < 0xde) return array(number(2 << (type - 0xdc)), depth);
    return type < 0xe0 ? map(number(2 << (type - 0xde)), depth) : type - 0x100;
  };
  const value = read(0);
  if (at !== data.length) throw new RangeError("msgpack has more bytes than one value");
  return value;
}
