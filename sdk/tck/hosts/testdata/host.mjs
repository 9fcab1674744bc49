// A host of the plugin ABI in JavaScript, written from ABI.md, with its adapter for the conformance kit: node host.mjs. It needs nothing but
// Node.js. "node host.mjs responses FILE" reads golden responses. Each plugin has a process, which is killed when a call takes too long or fails.
// Where the ABI leaves a choice, this host makes another one than sluice: order and position of sections, and the numbers of ids.
import { fork } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";

const DECIDE_MS = 300, LOAD_MS = 1000, WALL_MS = 8000; // of CPU time; of wall time, for both
const MEMORY_PAGES = 1024; // of 64 KiB
const NONE = 0xffffffff, ABSENT = 0xfffffffe, NO_ZONE = 0xffff, NO_REASON = 0xffff;
const CHOSEN = 16, ELIGIBLE = 128;
const HEADER = 200, ENDPOINT = 72, ZONE = 32, OUTCOMES = 56, STRING = 16, GROUP = 8, RESPONSE = 80, LEAST_RESPONSE = 56, ENDPOINT_STATE = 32;
const READY = 1, HELD = 256, ONE = 1_000_000, REDUCE = 2, SHARE = 3, RESET = 6, ADJUST = 7;

const refuse = (text) => { throw new Error(text); };
const align = (n) => (n + 7) & ~7;

// ---- What is in a module: its function imports and its exports, with their types.

// cursor reads a module from its first section on.
function cursor(bytes) {
  const c = {
    at: 8,
    u8: () => bytes[c.at++],
    u32: () => {
      for (let n = 0, shift = 0; ; shift += 7) {
        const b = c.u8();
        n += (b & 0x7f) * 2 ** shift;
        if (b < 0x80) return n;
      }
    },
    list: (f) => { for (let n = c.u32(); n > 0; n--) f(); },
    name: () => { const n = c.u32(); c.at += n; return new TextDecoder().decode(bytes.subarray(c.at - n, c.at)); },
    types: () => { let s = ""; c.list(() => { s += { 0x7f: "i", 0x7e: "I", 0x7d: "f", 0x7c: "F" }[c.u8()] ?? "x"; }); return s; },
    limits: () => { const flags = c.u8(); return [c.u32(), flags & 1 ? c.u32() : Infinity]; },
  };
  return c;
}

function inspect(bytes) {
  const c = cursor(bytes), signatures = [], functions = [], imports = [], exports = new Map();
  const sections = {
    1: () => { c.u8(); const from = c.types(); signatures.push(from + ":" + c.types()); },
    2: () => {
      const module = c.name(), field = c.name(), kind = c.u8();
      if (kind === 0) functions.push(signatures[c.u32()]);
      else if (kind === 3) c.at += 2; // a global
      else { if (kind === 1) c.u8(); c.limits(); } // a table or a memory
      imports.push([module, field, kind === 0 ? functions.at(-1) : "not a function"]);
    },
    3: () => functions.push(signatures[c.u32()]),
    7: () => { const field = c.name(), kind = c.u8(), index = c.u32(); exports.set(field, kind === 0 ? functions[index] : ["", "table", "memory", "global"][kind]); },
  };
  while (c.at < bytes.length) {
    const id = c.u8(), end = c.u32() + c.at;
    if (sections[id]) c.list(sections[id]);
    c.at = end;
  }
  return { imports, exports };
}

// limitMemory returns the module with a maximum of its memory: the engine has none of its own.
function limitMemory(bytes) {
  const c = cursor(bytes), leb = (n) => (n > 0x7f ? [n % 128 | 0x80, ...leb(Math.floor(n / 128))] : [n]);
  while (c.at < bytes.length) {
    const start = c.at, id = c.u8(), end = c.u32() + c.at;
    if (id === 5 && c.u32() === 1) {
      const [least, most] = c.limits(), section = [1, 1, ...leb(least), ...leb(Math.min(most, MEMORY_PAGES))];
      if (least > MEMORY_PAGES) refuse(`a memory of ${least} pages`);
      return new Uint8Array([...bytes.subarray(0, start), 5, ...leb(section.length), ...section, ...bytes.subarray(end)]);
    }
    c.at = end;
  }
  return bytes;
}

const REQUIRED = { memory: "memory", sluice_abi_version: ":i", sluice_alloc: "i:i", sluice_decide: "iiii:I" };
const OPTIONAL = { sluice_configure: "ii:i", sluice_needs: "i:i", sluice_keys: "iii:i", _initialize: ":" };
const WASI = {
  args_get: "ii:i", args_sizes_get: "ii:i", clock_res_get: "ii:i", clock_time_get: "iIi:i", environ_get: "ii:i", environ_sizes_get: "ii:i", fd_close: "i:i",
  fd_fdstat_get: "ii:i", fd_fdstat_set_flags: "ii:i", fd_prestat_dir_name: "iii:i", fd_prestat_get: "ii:i", fd_read: "iiii:i", fd_seek: "iIii:i", fd_write: "iiii:i",
  poll_oneoff: "iiii:i", proc_exit: "i:", random_get: "ii:i", sched_yield: ":i",
};

function checkModule(bytes) {
  if (!WebAssembly.validate(bytes)) refuse("the module is not valid");
  const { imports, exports } = inspect(bytes);
  for (const [module, field, type] of imports) {
    const want = module === "sluice" ? { log: "iii:" }[field] : module === "wasi_snapshot_preview1" ? WASI[field] : undefined;
    if (type !== want) refuse(`import ${module}.${field} has type ${type}, want ${want}`);
  }
  if (exports.has("_start") && !exports.has("_initialize")) refuse("it is a command");
  for (const [field, type] of Object.entries(REQUIRED)) if (exports.get(field) !== type) refuse(`export ${field} is ${exports.get(field)}, want ${type}`);
  for (const [field, type] of Object.entries(OPTIONAL)) if (exports.has(field) && exports.get(field) !== type) refuse(`export ${field} is ${exports.get(field)}, want ${type}`);
  return exports;
}

const ROLES = ["exclude", "reduce", "share", "locality", "pick", "reset", "adjust"];

// What version 2.1 has added: inputs, and counters.
const SINCE_1 = ["endpointState", "nodeLabels", "namespaceLabels", "endpointLoad", "counters"];

// manifest returns the role in the custom section "sluice" of a module of a minor version. Of the rest it checks what has no schema.
function manifest(bytes, minor) {
  const sections = WebAssembly.Module.customSections(new WebAssembly.Module(bytes), "sluice");
  if (sections.length !== 1 || sections[0].byteLength > 65536) refuse(`${sections.length} manifests`);
  const text = new TextDecoder("utf-8", { fatal: true }).decode(sections[0]), m = JSON.parse(text);
  if (m.manifest !== 1) refuse(`version ${m.manifest} of the manifest`);
  if (JSON.stringify(m) !== text) refuse("a manifest that is not in canonical form");
  const later = [...(m.needs ?? []), ...(m.counters ? ["counters"] : [])].filter((name) => minor < 1 && SINCE_1.includes(name));
  if (later.length) refuse(`ABI version 2.${minor} does not have ${later.join(", ")}`);
  for (const key of Object.keys(m)) if (!["manifest", "title", "version", "licence", "role", "needs", "counters", "settings"].includes(key)) refuse(`unknown field ${key}`);
  checkSettings(m.settings ?? [], 6);
  const role = ROLES.indexOf(m.role) + 1;
  return role || refuse(`an unknown role, ${m.role}`);
}

function checkSettings(fields, depth) {
  if (!depth) refuse("settings nested too deeply");
  for (const f of fields) {
    if (f.name !== undefined && !/^[A-Za-z][-A-Za-z0-9_]{0,62}$/.test(f.name)) refuse(`the name ${f.name}`);
    const [min, max, value] = [f.min, f.max, f.default].map((v) => (typeof v === "number" ? v : NaN)); // not of durations
    if (min > max || value < min || value > max) refuse(`the range of ${f.name}`);
    checkSettings(f.fields ?? [], depth - 1);
    checkSettings(f.items ? [f.items] : [], depth - 1);
  }
}

// ---- An instance.

class Instance {
  constructor(bytes, exported) {
    this.exported = exported;
    this.handles = new Map(); // by text of the settings
    this.ids = new Map(); // of strings
    this.buffers = {};
    this.error = "";
    const instance = new WebAssembly.Instance(new WebAssembly.Module(limitMemory(bytes)), { sluice: { log: this.log.bind(this) }, wasi_snapshot_preview1: this.wasi() });
    this.exports = instance.exports;
    this.exports._initialize?.();
    const version = this.exports.sluice_abi_version();
    if (version >>> 16 !== 2) refuse(`ABI version ${version >>> 16}.${version & 0xffff}: want 2.0 or a later minor version`);
    this.role = manifest(bytes, version & 0xffff);
  }

  view() { return new DataView(this.exports.memory.buffer); }

  bytes(at, n) {
    const memory = this.exports.memory.buffer;
    at >>>= 0;
    n >>>= 0;
    if (at + n > memory.byteLength) refuse(`${n} bytes at ${at} are outside of the memory`);
    return new Uint8Array(memory, at, n);
  }

  log(level, at, n) {
    const text = new TextDecoder().decode(this.bytes(at, Math.min(n >>> 0, 1024)));
    if (level === 3 && !this.error) this.error = text;
  }

  wasi() {
    const none = (count, size) => { this.view().setUint32(count, 0, true); this.view().setUint32(size, 0, true); return 0; };
    return {
      args_get: () => 0, args_sizes_get: none, environ_get: () => 0, environ_sizes_get: none, sched_yield: () => 0,
      clock_res_get: (_, at) => { this.view().setBigUint64(at, 1n, true); return 0; },
      clock_time_get: (_, precision, at) => { this.view().setBigUint64(at, 1_000_000_000n, true); return 0; },
      fd_close: () => 8, fd_fdstat_get: (fd, at) => { if (fd >>> 0 > 2) return 8; this.bytes(at, 24).fill(0)[0] = 2; return 0; }, fd_fdstat_set_flags: () => 8, fd_prestat_dir_name: () => 8,
      fd_prestat_get: () => 8, fd_read: () => 8, fd_seek: () => 8,
      fd_write: (fd, vectors, n, to) => {
        let total = 0;
        for (let i = 0; i < n; i++) {
          const v = this.bytes(vectors + 8 * i, 8), d = new DataView(v.buffer, v.byteOffset);
          this.bytes(d.getUint32(0, true), d.getUint32(4, true));
          total += d.getUint32(4, true);
        }
        this.view().setUint32(to, total, true);
        return 0;
      },
      poll_oneoff: (from, to, n, count) => {
        for (let i = 0; i < n; i++) this.bytes(to + 32 * i, 32).fill(0).set(this.bytes(from + 48 * i, 8));
        this.view().setUint32(count, n, true);
        return 0;
      },
      proc_exit: (code) => refuse(`proc_exit(${code})`),
      random_get: (at, n) => { const b = this.bytes(at, n); for (let i = 0; i < b.length; i++) b[i] = (this.random = (this.random * 1103515245 + 12345) & 0x7fffffff) >>> 16; return 0; },
    };
  }

  call(name, ...args) {
    this.error = "";
    this.random = 1;
    try {
      return this.exports[name](...args);
    } catch (e) {
      return refuse(`${name}: ${e.message}${this.error && ": " + this.error}`);
    }
  }

  code(name, value) { return value < 0 ? refuse(`${name}: error code ${value}${this.error && ": " + this.error}`) : value; }

  // buffer returns the address of a buffer of at least n bytes.
  buffer(name, n) {
    const known = this.buffers[name];
    if (known && known.size >= n) return known.at;
    const at = this.call("sluice_alloc", n) >>> 0;
    if (at === 0 || at % 8 !== 0) refuse(`sluice_alloc returned ${at}`);
    this.bytes(at, n);
    this.buffers[name] = { at, size: n };
    return at;
  }

  // configure returns what is known of settings.
  configure(text) {
    const known = this.handles.get(text ?? null);
    if (known) return known;
    let handle = NONE;
    if (text !== undefined) {
      JSON.parse(text);
      if (!this.exported.has("sluice_configure")) refuse("the plugin accepts no settings");
      const b = new TextEncoder().encode(text), at = this.buffer("settings", b.length);
      this.bytes(at, b.length).set(b);
      handle = this.code("sluice_configure", this.call("sluice_configure", at, b.length));
      for (const h of this.handles.values()) if (h.handle === handle) refuse(`the handle ${handle} is returned twice`);
    }
    const needs = this.exported.has("sluice_needs") ? this.code("sluice_needs", this.call("sluice_needs", handle | 0)) : 0;
    if (needs & ~31) refuse(`unknown needs ${needs}`);
    let keys = [];
    if (this.exported.has("sluice_keys")) {
      const at = this.buffer("keys", 5392);
      this.bytes(at, 5392).fill(0);
      const n = this.code("sluice_keys", this.call("sluice_keys", handle | 0, at, 5392));
      if (n > 5392) refuse(`sluice_keys wrote ${n} bytes`);
      keys = parseKeys(new TextDecoder("utf-8", { fatal: true }).decode(this.bytes(at, n)));
    }
    const out = { handle, needs, keys };
    this.handles.set(text ?? null, out);
    return out;
  }

  id(text) {
    if (text === "") return NONE;
    if (!this.ids.has(text)) this.ids.set(text, 1_000_000 - 7 * this.ids.size);
    return this.ids.get(text);
  }

  decide(request, settings) {
    const view = this.configure(settings), n = request.endpoints.length;
    const wire = encode(request, view, this.role, (text) => this.id(text)), room = RESPONSE + (16 + ENDPOINT_STATE) * n + 1024 + 256 * 8 + 4096 + 64 * GROUP;
    const to = this.buffer("response", room), from = this.buffer("request", wire.length);
    this.bytes(to, room).fill(0);
    this.bytes(from, wire.length).set(wire);
    const length = this.call("sluice_decide", from, wire.length, to, room);
    this.code("sluice_decide", length);
    if (length > BigInt(room)) refuse(`a response of ${length} bytes for a buffer of ${room}`);
    return decode(this.bytes(to, Number(length)).slice(), request, this.role);
  }
}

const NAME = /^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;
const isEndpointKey = (key) => !key.startsWith("service-") && !key.startsWith("namespace-");

function parseKeys(text) {
  const keys = text.replace(/\n$/, "").split("\n");
  if (text === "") return [];
  if (keys.length > 16 || new Set(keys).size < keys.length) refuse("too many keys, or one twice");
  for (const key of keys) {
    const name = /^(?:label|annotation|node-label|service-label|service-annotation|namespace-label):([^]*)$/.exec(key)?.[1];
    if (key !== "request:cpu" && !(name && NAME.test(name) && name.split("/").pop().length <= 63)) refuse(`unknown key ${JSON.stringify(key)}`);
  }
  return keys;
}

// ---- Requests: header, texts, string table, state, groups, Service values, values, outcomes, zones, endpoints, with gaps.

function encode(q, { handle, needs, keys }, role, idOf) {
  const used = new Map(); // id → bytes of the text
  const id = (text) => { const n = idOf(text); if (n !== NONE) used.set(n, new TextEncoder().encode(text)); return n; };
  const has = (bit, value, unknown) => (needs & bit ? value : unknown);
  const known = { pod: q.keys.filter(isEndpointKey), service: q.keys.filter((k) => !isEndpointKey(k)) };
  const value = (list, all, key) => { const v = list[all.indexOf(key)]; return v?.present ? id(v.text) : ABSENT; };
  const podKeys = keys.filter(isEndpointKey), serviceKeys = keys.filter((k) => !isEndpointKey(k));
  const records = (list, size, write) => {
    const b = new Uint8Array(list.length * size), d = new DataView(b.buffer);
    list.forEach((x, i) => write(x, i * size, d, b));
    return b;
  };
  const row = (zone) => { const i = zone === "" ? -1 : q.zones.findIndex((z) => z.name === zone); return i < 0 ? NO_ZONE : i; };
  const stride = align(4 * podKeys.length);
  const zones = records(q.zones, ZONE, (z, at, d) => {
    [id(z.name), has(4, z.nodes, 0), z.ready, z.serving, z.total].forEach((v, i) => d.setUint32(at + 4 * i, v, true));
    d.setBigUint64(at + 24, BigInt(has(4, z.milliCPU, 0)), true);
  });
  const endpoints = records(q.endpoints, ENDPOINT, (e, at, d, b) => {
    const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(e.addr);
    b.set(address(host), at);
    d.setUint16(at + 16, Number(port), true);
    d.setUint16(at + 18, row(e.zone), true);
    [e.conditions, id(e.node), id(e.zone), e.capacity, e.share].forEach((v, i) => d.setUint32(at + 20 + 4 * i, v, true));
    d.setBigUint64(at + 40, BigInt(e.readySince), true);
    d.setBigUint64(at + 48, BigInt(e.terminatingSince), true);
    d.setUint32(at + 56, has(1, e.connections, NONE), true);
    d.setUint32(at + 60, needs & 8 ? id(e.pod) : NONE, true);
    d.setUint32(at + 64, e.priorWeight, true);
    d.setUint16(at + 68, e.group ?? 0, true);
  });
  const watched = needs & 2 && q.outcomesWindowMS !== 0;
  const outcomes = records(watched ? q.endpoints : [], OUTCOMES, ({ outcomes: o }, at, d) => {
    [o.attempts, o.answered, o.refused, o.unanswered].forEach((v, i) => d.setUint32(at + 4 * i, v, true));
    [o.totalAttempts, o.totalAnswered, o.totalRefused, o.totalUnanswered, o.since].forEach((v, i) => d.setBigUint64(at + 16 + 8 * i, BigInt(v), true));
  });
  const values = records(podKeys.length ? q.endpoints : [], stride, (e, at, d) => podKeys.forEach((k, i) => d.setUint32(at + 4 * i, value(e.values ?? [], known.pod, k), true)));
  const services = records(serviceKeys, 4, (k, at, d) => d.setUint32(at, value(q.serviceValues ?? [], known.service, k), true));
  const groups = records(q.groups ?? [], GROUP, (part, at, d) => d.setUint32(at, part, true));
  const state = Buffer.from(q.state ?? "", "base64");
  const states = Buffer.from(has(16, q.endpointStates ?? "", ""), "base64");
  const header = [id(q.namespace), id(q.service), id(q.port), id(q.node), id(q.zone)];

  const table = new Map(), parts = [new Uint8Array(HEADER)];
  let size = HEADER;
  const place = (b) => { const at = size; parts.push(b, new Uint8Array(align(b.length) - b.length + 8)); size += align(b.length) + 8; return at; };
  for (const [n, text] of used) table.set(n, [place(text), text.length]);
  const strings = place(records([...table].reverse(), STRING, ([n, [offset, length]], at, d) => [n, offset, length].forEach((v, i) => d.setUint32(at + 4 * i, v, true))));
  const at = { state: place(state), groups: place(groups), states: place(states), services: place(services), values: place(values), outcomes: place(outcomes), zones: place(zones), endpoints: place(endpoints) };

  const wire = new Uint8Array(Buffer.concat(parts)), d = new DataView(wire.buffer);
  const u32 = (offset, ...list) => list.forEach((v, i) => d.setUint32(offset + 4 * i, v, true));
  u32(0, 0x51524c53, 2 | 1 << 16, wire.length, HEADER);
  d.setBigUint64(16, BigInt(q.now), true);
  d.setBigUint64(24, BigInt(q.generation), true);
  u32(32, ...header);
  d.setUint16(52, q.portNumber, true);
  wire.set([q.protocol, q.family, q.pool, (q.internalPolicyLocal ? 1 : 0) | (q.externalPolicyLocal ? 2 : 0)], 54);
  d.setUint16(58, row(q.zone), true);
  u32(60, handle);
  d.setBigUint64(64, BigInt(q.sessionAffinityMS), true);
  u32(72, at.endpoints, q.endpoints.length, ENDPOINT, at.zones, q.zones.length, ZONE, strings, table.size, STRING, at.state, state.length);
  u32(116, has(4, q.nodeIndex, NONE), has(4, q.nodeCount, 0), has(1, q.connectionsAgeMS, NONE), has(2, q.outcomesWindowMS, 0));
  u32(132, at.outcomes, outcomes.length / OUTCOMES, OUTCOMES, at.values, podKeys.length ? q.endpoints.length : 0, stride, podKeys.length, at.services, serviceKeys.length);
  u32(168, at.groups, groups.length / GROUP, GROUP, role);
  u32(184, at.states, states.length / ENDPOINT_STATE, ENDPOINT_STATE);
  return wire;
}

// address returns the 16 bytes of an address.
function address(text) {
  if (!text.includes(":")) return [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, ...text.split(".").map(Number)];
  const [head, tail] = text.split("::").map((part) => part.split(":").filter(Boolean));
  const groups = tail ? [...head, ...Array(8 - head.length - tail.length).fill("0"), ...tail] : head;
  return groups.flatMap((g) => [parseInt(g, 16) >> 8, parseInt(g, 16) & 255]);
}

// ---- Responses.

function decode(b, q, role) {
  if (b.length < LEAST_RESPONSE) refuse("shorter than the header");
  const d = new DataView(b.buffer, b.byteOffset, b.length), u32 = (at) => d.getUint32(at, true), n = q.endpoints.length;
  const [magic, total, header, results, count, stride, requeueMS, balance, stateAt, stateLength, reasonsAt, reasonsCount, groupsAt, groupsCount] = Array.from({ length: 14 }, (_, i) => u32(4 * i));
  const within = (name, at, size) => size === 0 || at >= header && at + size <= total || refuse(`${name} is outside of the response`);
  if (magic !== 0x50524c53) refuse("magic");
  if (total !== b.length) refuse("total");
  if (header < LEAST_RESPONSE || header % 8 || header > total) refuse("header_length");
  if (count !== n) refuse("results.count");
  if (stride < 16 || stride % 8) refuse("results.stride");
  if (balance > 4) refuse("balance");
  if (stateLength > 1024) refuse("state");
  if (reasonsCount > 256) refuse("reasons");
  const [statesAt, statesCount] = header < 64 ? [0, 0] : [u32(56), u32(60)];
  if (statesCount !== 0 && statesCount !== n) refuse("endpoint_states");
  within("endpoint_states", statesAt, statesCount * ENDPOINT_STATE);
  if (groupsCount > 64 || groupsCount > 0 && role !== SHARE) refuse("groups");
  within("results", results, count * stride);
  within("state", stateAt, stateLength);
  within("reasons", reasonsAt, reasonsCount * 8);
  within("groups", groupsAt, groupsCount * GROUP);
  const groups = Array.from({ length: groupsCount }, (_, i) => u32(groupsAt + GROUP * i));
  let sum = 0;
  const reasons = Array.from({ length: reasonsCount }, (_, i) => {
    const at = u32(reasonsAt + 8 * i), length = u32(reasonsAt + 8 * i + 4);
    if (length > 256 || (sum += length) > 4096) refuse("a reason is too long");
    within("a reason", at, length);
    const text = length ? new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(b.subarray(at, at + length)) : "";
    return /^[\p{L}\p{M}\p{N}\p{P}\p{S} ]*$/u.test(text) ? text : refuse("a reason is not printable");
  });
  const list = q.endpoints.map((e, i) => {
    const at = results + i * stride, reason = d.getUint16(at + 12, true), group = groups.length ? d.getUint16(at + 14, true) : 0;
    if (groups.length && group >= groups.length) refuse(`results[${i}].group`);
    if (reason !== NO_REASON && reason >= reasons.length) refuse(`results[${i}].reason`);
    return {
      value: u32(at), group, keepDraining: (b[at + 4] & 1) === 1, shedPermille: Math.min(d.getUint16(at + 6, true), 1000),
      resetAfterMS: u32(at + 8), reason: reason === NO_REASON ? "" : reasons[reason],
    };
  });
  const left = (e, i) => e.conditions & ELIGIBLE && list[i].value && (role <= REDUCE ? e.share : e.capacity);
  if (role !== RESET && q.endpoints.some((e) => e.conditions & CHOSEN) && !q.endpoints.some(left)) refuse("no endpoint is left with capacity and a share");
  const endpointStates = statesCount ? { endpointStates: Buffer.from(b.subarray(statesAt, statesAt + statesCount * ENDPOINT_STATE)).toString("base64") } : {};
  const counters = [64, 68, 72, 76].map((at) => (header < at + 4 ? 0 : u32(at)));
  return { requeueMS, balance, groups, counters, ...endpointStates, state: stateLength ? Buffer.from(b.subarray(stateAt, stateAt + stateLength)).toString("base64") : "", results: list };
}

// ---- What is in force.

// begin returns a request for the first plugin of a chain.
function begin(q) {
  const ready = (e) => e.conditions & (READY | HELD), hinted = (e) => e.conditions & 96, chosen = (e) => e.conditions & CHOSEN;
  const hints = q.endpoints.some((e) => ready(e) && !chosen(e));
  const endpoints = q.endpoints.map((e) => ({
    ...e, group: 0, capacity: ready(e) || chosen(e) ? ONE : 0,
    share: hints && !chosen(e) && (ready(e) || !q.endpoints.some((x) => chosen(x) && hinted(x) === hinted(e))) ? 0 : ONE,
  }));
  return { ...q, endpoints, groups: [] };
}

// combine returns the weights of a chain of one plugin.
function combine(q, { results, groups, balance }, role) {
  const load = q.endpoints.map((e, i) => (role === RESET ? e.capacity * e.share : role <= REDUCE ? (e.conditions & ELIGIBLE ? results[i].value : 0) * e.share : e.capacity * results[i].value));
  const parts = groups.length ? groups : [1], sums = parts.map((_, g) => load.reduce((sum, l, i) => sum + (results[i].group === g ? l : 0), 0));
  let total = parts.reduce((sum, p, g) => sum + (sums[g] ? p : 0), 0), share = parts;
  if (!total) [share, total] = [sums, sums.reduce((a, b) => a + b, 0)];
  return round(load.map((l, i) => (l ? (share[results[i].group] / total) * (l / sums[results[i].group]) : 0)), balance === 3 ? 100 : 1000);
}

// round returns the smallest weights that keep the ratios to a hundredth, with a sum of at most most.
function round(parts, most) {
  const top = Math.max(...parts);
  let best = [], least = Infinity;
  for (let n = 1; n <= most && least > 0.01; n++) {
    const weights = parts.map((p) => (p ? Math.max(1, Math.round((n * p) / top)) : 0)), sum = weights.reduce((a, b) => a + b, 0);
    if (n > 1 && sum > most) break;
    const off = Math.max(...parts.map((p, i) => (p ? Math.abs(weights[i] / (sum * p) - 1) : 0)));
    if (off < least) [best, least] = [weights, off];
  }
  return best;
}

// ---- The self-test.

function sample(n, keys) {
  const service = keys.filter((k) => !isEndpointKey(k)).map(() => ({ text: "x", present: true })), pod = keys.filter(isEndpointKey).map((_, i) => ({ text: "1", present: i % 2 === 0 }));
  return {
    now: 1700000000000, namespace: "shop", service: "web", port: "", portNumber: 80, protocol: 6, family: 4, pool: 0, sessionAffinityMS: 0, node: "n0", nodeIndex: NONE, nodeCount: 0,
    zone: "a", zones: [{ name: "a", nodes: 0, ready: n, serving: n, total: n, milliCPU: 0 }], connectionsAgeMS: NONE, outcomesWindowMS: 0, keys, serviceValues: service, generation: n, state: "",
    endpoints: Array.from({ length: n }, (_, i) => ({
      addr: `10.0.${i >> 8}.${i & 255}:80`, conditions: 147, node: `n${i % 3}`, zone: i % 2 ? "a" : "b", pod: `web-${i}`, capacity: ONE, share: ONE, group: 0, priorWeight: -1, readySince: 1699999000000,
      terminatingSince: 0, connections: NONE, values: pod, outcomes: {},
    })),
  };
}

function selfTest(instances, settings) {
  const answers = new Map();
  for (const n of [3, 3, 0, 1, 100, 3, 1]) {
    for (const instance of instances) {
      const { needs, keys } = instance.configure(settings), first = instances[0].configure(settings);
      if (needs !== first.needs || keys.join() !== first.keys.join()) refuse("two instances ask for different inputs");
      const answer = JSON.stringify(instance.decide(sample(n, keys), settings));
      if ((answers.get(n) ?? answer) !== answer) refuse("a sample request has two answers");
      answers.set(n, answer);
    }
  }
}

// ---- Processes and the protocol.

// sandbox is the process of a plugin.
function sandbox() {
  let module, exported, instance;
  process.on("disconnect", () => process.exit());
  process.on("message", ({ bytes, load, request, settings }) => {
    try {
      if (bytes) {
        module = bytes;
        exported = checkModule(module);
      }
      instance ??= new Instance(module, exported);
      if (load) selfTest([instance, new Instance(module, exported)], settings);
      process.send({ response: request && instance.decide(request, settings), role: instance.role });
    } catch (e) {
      process.send({ error: e.message || "error" });
    }
  });
  process.send("ready");
}

// cpu returns the CPU time of a process in milliseconds (Linux).
function cpu(child) {
  const fields = readFileSync(`/proc/${child.pid}/stat`, "latin1").replace(/^.*\) /, "").split(" ");
  return 10 * (Number(fields[11]) + Number(fields[12]));
}

// ask sends a message to a process and returns its answer, or an error after ms of its CPU time.
function ask(child, message, ms) {
  return new Promise((resolve) => {
    const begin = cpu(child), until = Date.now() + WALL_MS;
    const failed = () => done({ error: "the process of the plugin has ended" });
    const watch = setInterval(() => { if (cpu(child) - begin > ms || Date.now() > until) done({ error: `no answer within ${ms} ms of CPU time` }); }, 20);
    const done = (answer) => { clearInterval(watch); child.off("message", done).off("exit", failed); resolve(answer); };
    child.on("message", done).on("exit", failed);
    if (message) child.send(message);
  });
}

async function main() {
  const plugins = new Map();
  const end = (plugin) => { plugin?.child?.kill("SIGKILL"); if (plugin) plugin.child = undefined; };
  const call = async (plugin, message, ms) => {
    if (!plugin.child) {
      plugin.child = fork(fileURLToPath(import.meta.url), ["sandbox"], { serialization: "advanced" });
      await ask(plugin.child, undefined, WALL_MS); // ready
      message.bytes = plugin.bytes;
    }
    const answer = await ask(plugin.child, message, ms);
    if (answer.error) end(plugin);
    return answer;
  };
  const operations = {
    hello: () => ({ host: `JavaScript, Node.js ${process.version}`, enforces: true }),
    load: async (c) => {
      const plugin = { bytes: new Uint8Array(readFileSync(c.module)), settings: c.settings };
      const answer = await call(plugin, { load: true, settings: c.settings }, LOAD_MS);
      if (!answer.error) { end(plugins.get(c.plugin)); plugins.set(c.plugin, plugin); }
      return answer;
    },
    decide: (c) => { const plugin = plugins.get(c.plugin); return plugin ? call(plugin, { request: c.request, settings: c.settings ?? plugin.settings }, DECIDE_MS) : { error: "no such plugin" }; },
    enforce: async (c) => {
      const request = begin(c.request), { endpoints } = request;
      const plugin = plugins.get(c.plugin), { error, response, role } = await operations.decide({ ...c, request });
      if (response) plugin.lastGood = new Map(combine(request, response, role).map((w, i) => [endpoints[i].addr, w]));
      return { error, weights: endpoints.map((e) => plugin.lastGood?.get(e.addr) ?? (e.conditions & CHOSEN ? 1 : 0)) };
    },
    unload: (c) => { end(plugins.get(c.plugin)); plugins.delete(c.plugin); return {}; },
  };
  for await (const line of createInterface({ input: process.stdin })) {
    // JSON.parse makes floating-point numbers of all numbers: those that are too large become strings, which BigInt takes.
    const c = JSON.parse(line.replace(/([:[,])(-?\d{16,})(?=[,\]}])/g, '$1"$2"'));
    process.stdout.write(JSON.stringify(await (operations[c.op] ?? (() => ({ error: "unknown operation" })))(c)) + "\n");
  }
  for (const plugin of plugins.values()) end(plugin);
}

// responses reads the golden responses, and prints those that this host reads otherwise.
function responses(file) {
  for (const v of JSON.parse(readFileSync(file, "utf8"))) {
    let got, error;
    try {
      got = decode(new Uint8Array(Buffer.from(v.wire.join(""), "hex")), { endpoints: v.conditions.map((conditions) => ({ conditions, capacity: conditions & CHOSEN ? ONE : 0, share: ONE })) }, SHARE);
    } catch (e) {
      error = e.message;
    }
    if (v.want ? !isDeepStrictEqual(got, v.want) : !error) console.log(`${v.name}: ${error ?? JSON.stringify(got)}`);
  }
}

if (process.argv[2] === "sandbox") sandbox();
else if (process.argv[2] === "responses") responses(process.argv[3]);
else await main();
