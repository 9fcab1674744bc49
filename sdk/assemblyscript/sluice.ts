// SDK of sluice plugins in AssemblyScript, for ABI 2.1. Build with --runtime stub: nothing here allocates for a decision, and memory that a
// plugin allocates for one is never freed. sdk/ABI.md of sluice is the specification.

// Bits of sluice_needs. A host refuses a module that needs what it cannot give.
export const NEED_CONNECTIONS: u32 = 1;
export const NEED_OUTCOMES: u32 = 2;
export const NEED_NODES: u32 = 4;
export const NEED_POD_NAMES: u32 = 8;
export const NEED_ENDPOINT_STATE: u32 = 16;

// Bits of Endpoint.conditions.
export const READY: u32 = 1;
export const SERVING: u32 = 2;
export const TERMINATING: u32 = 4;
export const LOCAL: u32 = 8;
export const CHOSEN: u32 = 16;
export const HINTED_ZONE: u32 = 32;
export const HINTED_NODE: u32 = 64;
export const ELIGIBLE: u32 = 128; // may have capacity
export const HELD: u32 = 256; // eligible only because of the panic hold

// What a plugin decides: the role of a request, which is that of the module's manifest.
export const EXCLUDE: u32 = 1; // which endpoints get no connections at all, such as those that fail: sets capacities
export const REDUCE: u32 = 2; // how much of an endpoint there is: warming up, draining, or of another size: sets capacities
export const SHARE: u32 = 3; // parts of the connections for groups of endpoints: sets shares, like the following
export const LOCALITY: u32 = 4; // between zones, nodes or priorities, within each group
export const PICK: u32 = 5; // which of these endpoints this node uses, and how one is picked for a client
export const RESET: u32 = 6; // which established connections are reset: sets neither
export const ADJUST: u32 = 7; // corrections of the shares by what this node observes

// Error codes.
export const FAILED: i32 = -1;
export const BAD_REQUEST: i32 = -2;
export const NO_ROOM: i32 = -3;
export const NOT_CONFIGURED: i32 = -4;

export const NO_STRING: u32 = u32.MAX_VALUE; // string id of ""
export const ABSENT_STRING: u32 = u32.MAX_VALUE - 1; // string id of a value that the object does not have
export const NO_ZONE: u16 = u16.MAX_VALUE; // index of a zone that is not in the zone table
export const NO_SETTINGS: u32 = u32.MAX_VALUE; // settings handle
export const NO_INDEX: u32 = u32.MAX_VALUE; // nodeIndex: unknown
export const NO_AGE: u32 = u32.MAX_VALUE; // connectionsAgeMs: not counted
export const UNCOUNTED: u32 = u32.MAX_VALUE; // connections
export const NEVER: u32 = u32.MAX_VALUE; // resetAfterMs
export const NO_REASON: u16 = u16.MAX_VALUE; // reason

export const ONE: u32 = 1000000; // the capacity of an ordinary endpoint, and its share at first
export const MAX_GROUPS: u32 = 64;
export const MAX_STATE: u32 = 1024;
export const ENDPOINT_STATE: u32 = 32; // bytes of state of each endpoint
export const MAX_REASONS: u32 = 256;
export const MAX_REASON: u32 = 256;
export const MAX_REASON_BYTES: u32 = 4096;

// Algorithms for new connections. Mode nftables has random and source hash.
export const BALANCE_DEFAULT: u32 = 0;
export const BALANCE_RANDOM: u32 = 1;
export const BALANCE_ROUND_ROBIN: u32 = 2;
export const BALANCE_SOURCE_HASH: u32 = 3;
export const BALANCE_LEAST_CONNECTIONS: u32 = 4;

// Levels of log.
export const DEBUG: u32 = 0;
export const INFO: u32 = 1;
export const WARN: u32 = 2;
export const ERROR: u32 = 3;

const REQUEST_MAGIC: u32 = 0x51524c53;
const RESPONSE_MAGIC: u32 = 0x50524c53;
const REQUEST_HEADER: u32 = 200;
const LEAST_REQUEST: u32 = 184; // header of version 2.0
const ENDPOINT: u32 = 72;
const RESPONSE_HEADER: u32 = 80;
const RESULT: u32 = 16;
const REASON: u32 = 8;
const GROUP: u32 = 8;

let role: u32 = SHARE; // of the request that is being decided

// Bytes of a request.
export class View {
  at: usize = 0;
  length: u32 = 0;

  // Reports whether the bytes are those of a text.
  is(text: string): bool {
    if (u32(text.length) != this.length) return false;
    for (let i: u32 = 0; i < this.length; i++) {
      if (load<u8>(this.at + i) != text.charCodeAt(i)) return false;
    }
    return true;
  }
}

const view = new View();

// Reports whether two texts are the same.
export function same(a: View, b: View): bool {
  return a.length == b.length && memory.compare(a.at, b.at, a.length) == 0;
}

// Returns a text with memory of its own.
export function textOf(text: string): View {
  const v = new View();
  v.length = u32(text.length);
  v.at = heap.alloc(v.length);
  for (let i: u32 = 0; i < v.length; i++) store<u8>(v.at + i, u8(text.charCodeAt(i)));
  return v;
}

// Positions of the strings of a request by their ids: open addressing. A slot has the number of the request and the position, 4 bytes each;
// one whose request is another is free. begin begins it, and the first text fills it.
const INDEX: u32 = 1 << 14;
const INDEXED: u32 = INDEX / 4 * 3;
const slots = memory.data(131072, 8);
let requestNumber: u32 = 0;
let indexFilled = false;

// Returns the address of the first slot of an id.
function firstSlot(id: u32): usize {
  return slots + ((id * 0x9e3779b1) >> 18) * 8;
}

function nextSlot(at: usize): usize {
  return at + 8 == slots + INDEX * 8 ? slots : at + 8;
}

// A request. It is read where the host has written it; begin checks that its sections are within it.
@unmanaged
export class Request {
  magic: u32;
  major: u16;
  minor: u16;
  total: u32;
  headerLength: u32;
  nowMs: i64; // Unix milliseconds, a multiple of 1000; setting the wall clock does not change it
  generation: u64; // increases with each change of the input
  namespaceId: u32; // string ids, see text
  serviceId: u32;
  portNameId: u32;
  nodeId: u32;
  zoneId: u32; // this node's zone, or NO_STRING
  port: u16; // number of the Service port
  protocol: u8; // IANA number: 6 TCP, 17 UDP, 132 SCTP
  family: u8; // 4 or 6
  pool: u8; // 0: every endpoint; 1: those on this node, for traffic policy Local
  policy: u8; // bit 0: internalTrafficPolicy Local; bit 1: externalTrafficPolicy Local
  zoneIndex: u16; // row of this node's zone, or NO_ZONE
  settings: u32; // handle that sluice_configure returned, or NO_SETTINGS
  affinityMs: i64; // timeout of session affinity; 0: none
  endpointsOffset: u32;
  endpointsCount: u32;
  endpointsStride: u32;
  zonesOffset: u32;
  zonesCount: u32;
  zonesStride: u32;
  stringsOffset: u32;
  stringsCount: u32;
  stringsStride: u32;
  stateOffset: u32;
  stateLength: u32;
  nodeIndex: u32; // with NEED_NODES, position among the sorted names of the Nodes that are ready; NO_INDEX: unknown
  nodeCount: u32; // with NEED_NODES, Nodes that are ready; 0: unknown
  connectionsAgeMs: u32; // with NEED_CONNECTIONS, how long ago they were counted; NO_AGE: not
  outcomesWindowMs: u32; // with NEED_OUTCOMES, length of the last window; 0: not counted
  outcomesOffset: u32;
  outcomesCount: u32;
  outcomesStride: u32;
  valuesOffset: u32;
  valuesCount: u32;
  valuesStride: u32;
  podKeys: u32; // declared keys of Pods, Nodes and load
  serviceValuesOffset: u32;
  serviceValuesCount: u32; // declared keys of Services and namespaces
  groupsOffset: u32;
  groupsCount: u32; // 0: one group has all connections
  groupsStride: u32;
  role: u32; // EXCLUDE … ADJUST
  statesOffset: u32; // of endpoints; hosts of version 2.0 have none of it
  statesCount: u32;
  statesStride: u32;
  zero: u32;

  // Returns endpoint i. An index that is out of range ends the call, here and below, and the error names it.
  endpoint(i: u32): Endpoint {
    return changetype<Endpoint>(changetype<usize>(this) + this.endpointsOffset + index("endpoint", i, this.endpointsCount) * this.endpointsStride);
  }

  // Returns the part of the connections that a group of endpoints gets, relative to the other groups; ONE without groups.
  groupPart(group: u32): u32 {
    if (group >= this.groupsCount) return this.groupsCount == 0 ? ONE : 0;
    return load<u32>(changetype<usize>(this) + this.groupsOffset + group * this.groupsStride);
  }

  // Returns zone i. Zones are sorted by name.
  zone(i: u32): Zone {
    return changetype<Zone>(changetype<usize>(this) + this.zonesOffset + index("zone", i, this.zonesCount) * this.zonesStride);
  }

  // Returns the outcomes of endpoint i, null if they are not counted.
  outcomes(i: u32): Outcomes | null {
    index("endpoint", i, this.endpointsCount);
    if (!this.outcomesCount) return null;
    return changetype<Outcomes>(changetype<usize>(this) + this.outcomesOffset + i * this.outcomesStride);
  }

  // Returns the string id of a value of the Pod or Node of endpoint i, or ABSENT_STRING. key counts the declared keys of both.
  podValue(i: u32, key: u32): u32 {
    index("endpoint", i, this.endpointsCount);
    if (!this.valuesCount || key >= this.podKeys) return ABSENT_STRING;
    return load<u32>(changetype<usize>(this) + this.valuesOffset + i * this.valuesStride + key * 4);
  }

  // Returns the string id of a value of the Service or its namespace, or ABSENT_STRING. key counts the declared keys of both.
  serviceValue(key: u32): u32 {
    if (key >= this.serviceValuesCount) return ABSENT_STRING;
    return load<u32>(changetype<usize>(this) + this.serviceValuesOffset + key * 4);
  }

  // Returns the text of a string id, until the next call: any bytes. It is empty for NO_STRING, ABSENT_STRING and unknown ids.
  text(id: u32): View {
    view.length = 0;
    const at = this.find(id);
    if (!at) return view;
    const offset = load<u32>(at, 4), length = load<u32>(at, 8);
    if (u64(offset) + length <= this.total) {
      view.at = changetype<usize>(this) + offset;
      view.length = length;
    }
    return view;
  }

  // Returns the address of the record of a string, 0 if there is none.
  private find(id: u32): usize {
    if (!indexFilled) this.fillIndex();
    for (let slot = firstSlot(id); load<u32>(slot) == requestNumber; slot = nextSlot(slot)) {
      const at = this.stringAt(load<u32>(slot, 4));
      if (load<u32>(at) == id) return at;
    }
    for (let i = INDEXED; i < this.stringsCount; i++) {
      if (load<u32>(this.stringAt(i)) == id) return this.stringAt(i);
    }
    return 0;
  }

  private stringAt(i: u32): usize {
    return changetype<usize>(this) + this.stringsOffset + i * this.stringsStride;
  }

  private fillIndex(): void {
    for (let i: u32 = 0; i < this.stringsCount && i < INDEXED; i++) {
      let slot = firstSlot(load<u32>(this.stringAt(i)));
      while (load<u32>(slot) == requestNumber) slot = nextSlot(slot);
      store<u32>(slot, requestNumber);
      store<u32>(slot, i, 4);
    }
    indexFilled = true;
  }

  // Returns the address of the ENDPOINT_STATE bytes that this plugin last set for endpoint i, all 0 at first and without NEED_ENDPOINT_STATE.
  endpointState(i: u32): usize {
    index("endpoint", i, this.endpointsCount);
    if (this.headerLength < REQUEST_HEADER || !this.statesCount) return noState;
    return changetype<usize>(this) + this.statesOffset + i * this.statesStride;
  }

  // Returns the address of the state that this plugin last set for this Service port and pool: stateLength bytes, 0 at first.
  state(): usize {
    return changetype<usize>(this) + this.stateOffset;
  }
}

// An endpoint of the Service port.
@unmanaged
export class Endpoint {
  addressHigh: u64; // IPv4 as ::ffff:a.b.c.d
  addressLow: u64;
  port: u16;
  zoneIndex: u16; // row of its zone, or NO_ZONE
  conditions: u32;
  nodeId: u32;
  zoneId: u32;
  capacity: u32; // how much of an ordinary endpoint there is, in millionths: ONE. From the previous plugin of the chain, or the default rules,
  share: u32; // like what each unit of capacity gets of the connections of the group, relative to the other endpoints
  readySinceMs: i64; // Unix milliseconds; 0: not
  terminatingSinceMs: i64;
  connections: u32; // with NEED_CONNECTIONS, those from this node; UNCOUNTED
  podId: u32; // with NEED_POD_NAMES
  priorWeight: i32; // of the chain's last answer, in the data plane; -1: none
  group: u16; // see groupPart
  zero: u16;
}

// A zone. nodes and millicores are 0 without NEED_NODES.
@unmanaged
export class Zone {
  zoneId: u32;
  nodes: u32;
  ready: u32; // endpoints of this Service port
  serving: u32;
  total: u32;
  zero: u32;
  millicores: u64; // allocatable CPU of the Nodes
}

// What became of the connections that this node has sent to an endpoint: in the last window, and since sinceMs.
@unmanaged
export class Outcomes {
  attempts: u32;
  answered: u32;
  refused: u32;
  unanswered: u32;
  totalAttempts: u64;
  totalAnswered: u64;
  totalRefused: u64;
  totalUnanswered: u64;
  sinceMs: i64;
}

// What is decided about an endpoint.
@unmanaged
export class Result {
  value: u32; // capacity or share, by the role
  flags: u16; // bit 0: keep it as a draining endpoint
  shedPermille: u16; // this part of its connections is reset over the next minute, when the value changes
  resetAfterMs: u32; // its connections that are still established then are reset; NEVER
  reason: u16;
  group: u16;
}

// The reasons, the state and the groups of the response that is being made, which follow its results.
const reasonEnds = memory.data(1024, 8); // 4 bytes each
const reasonText = memory.data(4096, 8);
const newState = memory.data(1024, 8);
let reasonCount: u32 = 0;
let reasonBytes: u32 = 0;
let hasState = false;
let stateBytes: u32 = 0;
const parts = memory.data(256, 8); // MAX_GROUPS of 4 bytes
let groupCount: u32 = 0;
let problem: string = "";
const noState = memory.data(32, 8);
let statesFailed = false; // there is no room for states of endpoints
let space: u32 = 0; // of the response's buffer

// A response, at first one in which each endpoint keeps its capacity and share and no connection is reset.
@unmanaged
export class Response {
  magic: u32;
  total: u32;
  headerLength: u32;
  resultsOffset: u32;
  resultsCount: u32;
  resultsStride: u32;
  requeueMs: u32;
  balance: u32;
  stateOffset: u32;
  stateLength: u32;
  reasonsOffset: u32;
  reasonsCount: u32;
  groupsOffset: u32;
  groupsCount: u32;
  statesOffset: u32;
  statesCount: u32;
  counter0: u32; // see count
  counter1: u32;
  counter2: u32;
  counter3: u32;

  // Adds to a counter of the plugin, by its number in the manifest: the metric sluice_plugin_counter_total. It is for what the decision begins,
  // such as an ejection.
  count(counter: u32, n: u32): void {
    if (counter > 3) return;
    const at = changetype<usize>(this) + 64 + counter * 4, old = load<u32>(at);
    store<u32>(at, n < u32.MAX_VALUE - old ? old + n : u32.MAX_VALUE);
  }

  // Returns what is decided about endpoint i of the request.
  result(i: u32): Result {
    return changetype<Result>(changetype<usize>(this) + RESPONSE_HEADER + index("endpoint", i, this.resultsCount) * RESULT);
  }

  // Sets the capacity of endpoint i in millionths (ONE), 0 for no new connections. For plugins of the roles EXCLUDE and REDUCE.
  setCapacity(i: u32, capacity: u64): void {
    if (role > REDUCE) problem = "setCapacity is for the roles EXCLUDE and REDUCE";
    this.set(i, capacity);
  }

  // Sets what each unit of the capacity of endpoint i gets of the new connections of its group, relative to the other endpoints. For plugins of
  // the roles SHARE, LOCALITY, PICK and ADJUST.
  setShare(i: u32, share: u64): void {
    if (role <= REDUCE || role == RESET) problem = "setShare is for the roles SHARE, LOCALITY, PICK and ADJUST";
    this.set(i, share);
  }

  private set(i: u32, value: u64): void {
    this.result(i).value = value < u32.MAX_VALUE ? u32(value) : u32.MAX_VALUE;
  }

  // Appends a group that gets a part of the connections, relative to the other groups, whatever the endpoints that it has. Returns its number,
  // for result(i).group; every endpoint is in group 0 at first. For plugins of the role SHARE. More than MAX_GROUPS make the decision fail.
  addGroup(part: u32): u16 {
    if (role != SHARE) problem = "addGroup is for the role SHARE";
    if (groupCount < MAX_GROUPS) store<u32>(parts + groupCount * 4, part);
    return u16(groupCount++);
  }

  // Says why endpoint i gets what it gets. Characters that are not printable ASCII become "?". A text is cut to MAX_REASON bytes; when there
  // are too many, it is left out.
  setReason(i: u32, text: string): void {
    this.result(i).reason = addReason(builder.clear().push(text));
  }

  setReasonText(i: u32, text: Text): void {
    this.result(i).reason = addReason(text);
  }

  // Asks to be called again after some milliseconds. The shortest of several calls wins; 0 or less counts as 1.
  requeueAfter(ms: i64): void {
    const n: u32 = ms < 1 ? 1 : ms < i64(u32.MAX_VALUE) - 1 ? u32(ms) : u32.MAX_VALUE - 1;
    if (!this.requeueMs || n < this.requeueMs) this.requeueMs = n;
  }

  // Stores a state for the next request about this Service port and pool. More than MAX_STATE bytes make the decision fail.
  setState(at: usize, length: u32): void {
    hasState = true;
    stateBytes = length;
    if (length <= MAX_STATE) memory.copy(newState, at, length);
  }

  // Stores ENDPOINT_STATE bytes of state of endpoint i for the next request that has it. Endpoints for which a decision stores none have none
  // afterwards. For plugins with NEED_ENDPOINT_STATE.
  setEndpointState(i: u32, at: usize): void {
    index("endpoint", i, this.resultsCount);
    if (!this.statesCount) {
      const size = this.resultsCount * ENDPOINT_STATE;
      if (statesFailed || size > space - this.total) {
        statesFailed = true;
        return;
      }
      this.statesOffset = this.total;
      this.statesCount = this.resultsCount;
      memory.fill(changetype<usize>(this) + this.total, 0, size);
      this.total += size;
    }
    memory.copy(changetype<usize>(this) + this.statesOffset + i * ENDPOINT_STATE, at, ENDPOINT_STATE);
  }

  // Appends the reasons, the state and the groups. Returns the length of the response, which sluice_decide returns in turn, or an error code.
  finish(): i64 {
    if (problem.length) return fail(problem);
    if (statesFailed) return noRoom();
    if (groupCount > MAX_GROUPS) return fail("there are more than 64 groups");
    if (stateBytes > MAX_STATE) return fail("the state is longer than 1024 bytes");
    if (!this.statesCount && !reasonCount && !hasState && !groupCount && !this.requeueMs && !this.balance) return this.total;
    const table = this.total, text = table + reasonCount * REASON;
    const state = (text + reasonBytes + 7) & ~7, groups = (state + stateBytes + 7) & ~7;
    const end = groups + groupCount * GROUP;
    if (end > space) return noRoom();
    const base = changetype<usize>(this);
    memory.fill(base + table, 0, end - table);
    for (let i: u32 = 0, begin: u32 = 0; i < reasonCount; i++) {
      const stop = load<u32>(reasonEnds + i * 4);
      store<u32>(base + table + i * REASON, text + begin);
      store<u32>(base + table + i * REASON, stop - begin, 4);
      begin = stop;
    }
    memory.copy(base + text, reasonText, reasonBytes);
    memory.copy(base + state, newState, stateBytes);
    for (let i: u32 = 0; i < groupCount; i++) store<u32>(base + groups + i * GROUP, load<u32>(parts + i * 4));
    this.stateOffset = state;
    this.stateLength = stateBytes;
    this.reasonsOffset = table;
    this.reasonsCount = reasonCount;
    this.groupsOffset = groups;
    this.groupsCount = groupCount;
    this.total = end;
    return end;
  }
}

// Returns the number of a reason. Equal texts are sent once.
function addReason(text: Text): u16 {
  const length = text.length < MAX_REASON ? text.length : MAX_REASON;
  const to = reasonText + reasonBytes;
  if (length > MAX_REASON_BYTES - reasonBytes) return NO_REASON;
  for (let i: u32 = 0; i < length; i++) {
    const c = load<u8>(textBytes + i);
    store<u8>(to + i, c >= 0x20 && c <= 0x7e ? c : 0x3f);
  }
  for (let j: u32 = 0, begin: u32 = 0; j < reasonCount; j++) {
    const end = load<u32>(reasonEnds + j * 4);
    if (end - begin == length && memory.compare(reasonText + begin, to, length) == 0) return u16(j);
    begin = end;
  }
  if (reasonCount == MAX_REASONS) return NO_REASON;
  reasonBytes += length;
  store<u32>(reasonEnds + reasonCount * 4, reasonBytes);
  return u16(reasonCount++);
}

const textBytes = memory.data(1024);

// A text of at most 1024 bytes that is put together without allocating. What is beyond is cut. There is one: newText() returns it, empty.
export class Text {
  length: u32 = 0;

  clear(): Text {
    this.length = 0;
    return this;
  }

  pushByte(c: u32): Text {
    if (this.length < 1024) store<u8>(textBytes + this.length++, u8(c));
    return this;
  }

  // Appends ASCII; other characters become "?".
  push(text: string): Text {
    for (let i = 0; i < text.length; i++) {
      const c = text.charCodeAt(i);
      this.pushByte(c < 0x80 ? c : 0x3f);
    }
    return this;
  }

  pushView(v: View): Text {
    for (let i: u32 = 0; i < v.length; i++) this.pushByte(load<u8>(v.at + i));
    return this;
  }

  // Appends a number in decimal.
  pushNumber(n: u64): Text {
    let divisor: u64 = 1;
    while (n / divisor >= 10) divisor *= 10;
    for (; divisor > 0; divisor /= 10) this.pushByte(0x30 + u32((n / divisor) % 10));
    return this;
  }
}

const builder = new Text();

export function newText(): Text {
  return builder.clear();
}

// Reports whether an area of the header is within the request, with records of at least some bytes.
function within(req: Request, area: usize, record: u32): bool {
  const at = changetype<usize>(req) + area;
  const count = load<u32>(at, 4), stride = load<u32>(at, 8);
  return count == 0 || (stride >= record && load<u32>(at) + u64(count) * stride <= req.total);
}

function malformed(req: Request, length: u32): bool {
  if (length < LEAST_REQUEST || req.magic != REQUEST_MAGIC || req.major != 2 || req.total > length || req.total < LEAST_REQUEST) return true;
  if (req.headerLength >= REQUEST_HEADER && (req.total < REQUEST_HEADER || !within(req, 184, ENDPOINT_STATE))) return true;
  if (!within(req, 72, ENDPOINT) || !within(req, 84, 32) || !within(req, 96, 16) || !within(req, 132, 56) || !within(req, 168, GROUP)) return true;
  if (req.podKeys > 16 || !within(req, 144, req.podKeys * 4)) return true;
  if (req.serviceValuesCount && req.serviceValuesOffset + u64(req.serviceValuesCount) * 4 > req.total) return true;
  return req.stateLength > 0 && req.stateOffset + u64(req.stateLength) > req.total;
}

// Checks a request and starts its response. Returns 0, or a negative error code, which sluice_decide returns in turn.
export function begin(req: Request, length: u32, resp: Response, room: u32): i64 {
  if (malformed(req, length)) return error(BAD_REQUEST, "malformed request");
  const count = req.endpointsCount;
  role = req.role;
  const total = u64(RESPONSE_HEADER) + u64(count) * RESULT;
  if (total > room) return noRoom();
  memory.fill(changetype<usize>(resp), 0, RESPONSE_HEADER);
  resp.magic = RESPONSE_MAGIC;
  resp.total = u32(total);
  resp.headerLength = RESPONSE_HEADER;
  resp.resultsOffset = RESPONSE_HEADER;
  resp.resultsCount = count;
  resp.resultsStride = RESULT;
  for (let i: u32 = 0; i < count; i++) {
    const r = resp.result(i), e = req.endpoint(i);
    r.value = role <= REDUCE ? e.capacity : e.share;
    r.flags = 0;
    r.shedPermille = 0;
    r.resetAfterMs = NEVER;
    r.reason = NO_REASON;
    r.group = 0;
  }
  requestNumber++; // an instance does not live for 2^32 requests
  indexFilled = false;
  reasonCount = 0;
  reasonBytes = 0;
  hasState = false;
  stateBytes = 0;
  groupCount = 0;
  problem = "";
  statesFailed = false;
  space = room;
  return 0;
}

// @ts-ignore: a decorator of AssemblyScript
@external("sluice", "log")
declare function hostLog(level: u32, text: usize, length: u32): void;

// Writes a line to the host's log.
export function log(level: u32, text: string): void {
  builder.clear().push(text);
  hostLog(level, textBytes, builder.length);
}

// Writes the message of an error, and returns its code.
export function error(code: i32, text: string): i32 {
  log(ERROR, text);
  return code;
}

export function fail(text: string): i32 {
  return error(FAILED, text);
}

// Returns the error code of a settings handle that sluice_configure has not returned.
export function notConfigured(): i32 {
  return error(NOT_CONFIGURED, "unknown settings handle");
}

// Returns index i, which must be less than n, or ends the call. The host's error has the line of the log.
// @ts-ignore: a decorator of AssemblyScript
@inline
function index(what: string, i: u32, n: u32): u32 {
  if (i >= n) outOfRange(what, i, n);
  return i;
}

function outOfRange(what: string, i: u32, n: u32): void {
  builder.clear().push("sdk: index out of range: ").push(what).push(" ").pushNumber(i).push(" of ").pushNumber(n);
  hostLog(ERROR, textBytes, builder.length);
  unreachable();
}

function noRoom(): i32 {
  return error(NO_ROOM, "the result does not fit the buffer");
}

// Writes declared keys, one a line, for sluice_keys. Returns their length, or an error code.
export function writeKeys(keys: string, at: usize, room: u32): i32 {
  if (u32(keys.length) > room) return noRoom();
  for (let i = 0; i < keys.length; i++) store<u8>(at + i, u8(keys.charCodeAt(i)));
  return keys.length;
}

// Settings: a JSON object. See parse.
export class Settings {
  at: usize = 0;
  end: usize = 0;
  name: View = new View();
  begun: bool = false;
  inList: bool = false;
  failed: bool = false; // with a message in the log

  private space(): void {
    while (this.at < this.end) {
      const c = load<u8>(this.at);
      if (c != 0x20 && c != 0x0a && c != 0x0d && c != 0x09) break;
      this.at++;
    }
  }

  // Skips a character, and white space before it. Reports whether it was there.
  private skip(want: u8): bool {
    this.space();
    if (this.at == this.end || load<u8>(this.at) != want) return false;
    this.at++;
    return true;
  }

  // Refuses the settings, with a message.
  fail(text: string): bool {
    if (!this.failed) fail(text);
    this.failed = true;
    return false;
  }

  // Goes to the next field, whose name is() compares. Reports whether there is one, and nothing has failed.
  next(): bool {
    if (this.failed) return false;
    if (!this.begun) {
      this.begun = true;
      if (!this.skip(0x7b)) return this.fail("settings must be a JSON object"); // {
      if (this.skip(0x7d)) return this.finish(); // }
    } else {
      if (this.skip(0x7d)) return this.finish();
      if (!this.skip(0x2c)) return this.fail("settings: want , or } after a value"); // ,
    }
    if (!this.skip(0x22)) return this.fail("settings: want the name of a field"); // "
    this.name.at = this.at;
    while (this.at < this.end && load<u8>(this.at) != 0x22) this.at++;
    this.name.length = u32(this.at - this.name.at);
    if (!this.skip(0x22)) return this.fail("settings: want the name of a field");
    return this.skip(0x3a) || this.fail("settings: want : after the name of a field"); // :
  }

  // Goes to the next item of the field's list, which the methods below read. Reports whether there is one.
  item(problem: string): bool {
    if (this.failed) return false;
    if (!this.inList) {
      if (!this.skip(0x5b)) return this.fail(problem); // [
      this.inList = true;
      if (!this.skip(0x5d)) return true; // ]
    } else {
      if (this.skip(0x2c)) return true;
      if (!this.skip(0x5d)) return this.fail(problem);
    }
    return (this.inList = false);
  }

  private finish(): bool {
    this.space();
    if (this.at != this.end) this.fail("settings: unexpected text after the JSON object");
    return false;
  }

  // Reports whether the field has a name. Names do not have escapes.
  is(name: string): bool {
    return this.name.is(name);
  }

  // Returns the field's value, an integer of at most nine digits. Any other is refused with a message.
  integer(least: u32, most: u32, problem: string): u32 {
    let n: u32 = 0, digits = 0, zero = false;
    this.space();
    for (; this.at < this.end && digits < 10; this.at++, digits++) {
      const c = u32(load<u8>(this.at)) - 0x30;
      if (c > 9) break;
      if (digits == 0) zero = c == 0;
      n = n * 10 + c;
    }
    if (digits == 0 || digits == 10 || (zero && digits > 1) || n < least || n > most) this.fail(problem);
    return n;
  }

  // Returns the field's value in milliseconds, a duration: a text such as "30s", "1m30s" or "500ms", one to four integers of at most five
  // digits, each with the unit h, m, s or ms, as in the Gateway API (GEP-2257). Any other is refused with a message.
  duration(least: u32, most: u32, problem: string): u32 {
    let sum: u64 = 0, parts = 0, ok = this.skip(0x22);
    for (; ok && this.peek() != 0x22; parts++) {
      let n: u64 = 0, digits = 0;
      for (; digits < 5 && this.peek() >= 0x30 && this.peek() <= 0x39; this.at++, digits++) n = n * 10 + (this.peek() - 0x30);
      const unit = this.peek();
      this.at++;
      if (unit == 0x6d && this.peek() == 0x73) this.at++; // ms
      else if (unit == 0x68) n *= 3600000; // h
      else if (unit == 0x6d) n *= 60000; // m
      else if (unit == 0x73) n *= 1000; // s
      else ok = false;
      ok = ok && digits > 0;
      sum += n;
    }
    this.at++;
    if (!ok || parts == 0 || parts > 4 || sum < least || sum > most) this.fail(problem);
    return u32(sum);
  }

  // Returns the field's value in millionths, a number of at most nine digits and six decimals: ONE is 1. Any other is refused with a message.
  fraction(least: u64, most: u64, problem: string): u64 {
    let n: u64 = 0, unit: u64 = ONE, digits = 0;
    this.space();
    const zero = this.peek() == 0x30;
    for (; digits < 9 && this.digit(); this.at++, digits++) n = n * 10 + (this.peek() - 0x30);
    n *= ONE;
    let ok = digits == 1 || (digits > 1 && !zero);
    if (this.peek() == 0x2e) { // .
      for (this.at++; unit > 1 && this.digit(); this.at++) n += u64(this.peek() - 0x30) * (unit /= 10);
      ok = ok && unit < ONE;
    }
    if (!ok || n < least || n > most) this.fail(problem);
    return n;
  }

  // Returns the field's value, true or false. Any other is refused with a message.
  boolean(problem: string): bool {
    this.space();
    const yes = this.word("true");
    if (!yes && !this.word("false")) this.fail(problem);
    return yes;
  }

  private word(text: string): bool {
    for (let i = 0; i < text.length; i++) {
      if (this.at + i >= this.end || load<u8>(this.at + i) != text.charCodeAt(i)) return false;
    }
    this.at += text.length;
    return true;
  }

  // Returns the field's value, a text of least to most bytes, in memory of its own. Any other is refused with a message.
  text(least: u32, most: u32, problem: string): View {
    const v = new View();
    v.at = heap.alloc(most + 4);
    let ok = this.skip(0x22);
    while (ok && this.peek() != 0x22) {
      let c: i32 = this.peek(), n: u32 = 1;
      ok = c >= 0x20; // 0 is the end
      this.at++;
      const escaped = c == 0x5c;
      if (escaped) {
        c = this.escape();
        ok = ok && c >= 0;
        n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
      }
      ok = ok && v.length + n <= most;
      if (!ok) break;
      for (let i = n; escaped && i-- > 1; c >>= 6) store<u8>(v.at + v.length + i, 0x80 | (c & 0x3f));
      store<u8>(v.at + v.length, n == 1 ? c : (0xf00 >> n & 0xff) | c);
      v.length += n;
    }
    this.at++;
    if (!ok || v.length < least) this.fail(problem);
    return v;
  }

  // Reads the character of an escape, after its backslash. A surrogate without its other half is U+FFFD. -1: it is none.
  private escape(): i32 {
    const c = this.peek();
    this.at++;
    if (c == 0x22 || c == 0x5c || c == 0x2f) return c;
    if (c == 0x62) return 8; // b
    if (c == 0x66) return 12; // f
    if (c == 0x6e) return 10; // n
    if (c == 0x72) return 13; // r
    if (c == 0x74) return 9; // t
    const high = c == 0x75 ? this.unit() : -1; // u
    if (high < 0xd800 || high > 0xdfff) return high;
    const before = this.at;
    if (high < 0xdc00 && this.word("\\u")) {
      const low = this.unit();
      if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    this.at = before;
    return 0xfffd;
  }

  // Reads the four digits of an escape. -1: they are none.
  private unit(): i32 {
    let n = 0;
    for (let i = 0; i < 4; i++, this.at++) {
      const c = this.peek(), lower = c | 0x20;
      if (this.digit()) n = (n << 4) | (c - 0x30);
      else if (lower >= 0x61 && lower <= 0x66) n = (n << 4) | (lower - 0x57);
      else return -1;
    }
    return n;
  }

  private digit(): bool {
    return this.peek() >= 0x30 && this.peek() <= 0x39;
  }

  // Returns the next character, 0 at the end.
  private peek(): u32 {
    return this.at < this.end ? load<u8>(this.at) : 0;
  }
}

const settings = new Settings();

// Begins to parse settings. There is one parser, so finish with it before the next.
export function parse(json: usize, length: u32): Settings {
  settings.at = json;
  settings.end = json + length;
  settings.begun = false;
  settings.inList = false;
  settings.failed = false;
  return settings;
}

// Memory for the host, which never frees it.
export function sluice_alloc(size: u32): usize {
  return heap.alloc(size);
}

export function sluice_abi_version(): u32 {
  return (2 << 16) | 1;
}
