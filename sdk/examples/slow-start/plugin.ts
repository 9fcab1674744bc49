// slow-start: an endpoint that this node has not seen before gets its share of new connections in steps. The state has when each of those
// was seen first: a version and a number, 4 bytes each, then a hash of the address and the time, 8 bytes each.
import {
  begin, fail, newText, parse, Endpoint, Request, Response, ELIGIBLE, FAILED, NO_SETTINGS, notConfigured,
} from "../../assemblyscript/sluice";

export { sluice_alloc, sluice_abi_version } from "../../assemblyscript/sluice";

class Policy {
  steps: u32 = 4;
  stepMs: u32 = 10000;
}

const defaults = new Policy();
const MAX_SETTINGS = 16384;
const configured: Policy[] = [];

const VERSION: u32 = 1;
const HEADER: u32 = 8;
const START: u32 = 16;
const MAX_STARTS: u32 = 63;
const after = memory.data(1016, 8); // HEADER + MAX_STARTS * START

export function sluice_configure(json: usize, length: u32): i32 {
  const p = new Policy(), s = parse(json, length);
  while (s.next()) {
    if (s.is("steps")) p.steps = s.integer(2, 9, "steps: want an integer from 2 to 9");
    else if (s.is("stepDuration")) p.stepMs = s.duration(1000, 600000, "stepDuration: want a duration from 1s to 10m");
    else s.fail("unknown field: want steps, stepDuration");
  }
  if (s.failed) return FAILED;
  if (configured.length == MAX_SETTINGS) return fail("too many settings");
  return configured.push(p) - 1;
}

// Returns FNV-1a of the address and the port.
function hashOf(e: Endpoint): u64 {
  let h: u64 = 0xcbf29ce484222325;
  for (let i: usize = 0; i < 18; i++) h = (h ^ load<u8>(changetype<usize>(e) + i)) * 0x100000001b3;
  return h;
}

// Reports whether a state has starts. If not, it is the first decision: all endpoints have been there.
function hasStarts(at: usize, length: u32): bool {
  return length >= HEADER && load<u32>(at) == VERSION && load<u32>(at, 4) <= MAX_STARTS && length == HEADER + load<u32>(at, 4) * START;
}

export function sluice_decide(req: Request, length: u32, resp: Response, room: u32): i64 {
  const code = begin(req, length, resp, room);
  if (code < 0) return code;
  if (req.settings != NO_SETTINGS && req.settings >= u32(configured.length)) return notConfigured();
  const p = req.settings == NO_SETTINGS ? defaults : configured[req.settings];
  const step = i64(p.stepMs), now = req.nowMs;
  const before = req.state(), seenBefore = hasStarts(before, req.stateLength);
  const known = seenBefore ? load<u32>(before, 4) : 0;
  let count: u32 = 0;
  for (let i: u32 = 0; i < req.endpointsCount; i++) {
    const e = req.endpoint(i);
    if (!(e.conditions & ELIGIBLE) || !e.capacity) continue;
    const hash = hashOf(e);
    let since = now, isKnown = false;
    for (let j: u32 = 0; j < known; j++) {
      const at = before + HEADER + j * START;
      if (load<u64>(at) != hash) continue;
      since = min(load<i64>(at, 8), now);
      isKnown = true;
      break;
    }
    const steps = (now - since) / step + 1;
    if ((!isKnown && (!seenBefore || e.priorWeight >= 0)) || steps >= i64(p.steps) || count == MAX_STARTS) {
      continue; // keeps its capacity
    }
    resp.setCapacity(i, (u64(e.capacity) * steps) / p.steps);
    resp.setReasonText(i, newText().push("step ").pushNumber(steps).push(" of ").pushNumber(p.steps));
    resp.requeueAfter(since + steps * step - now);
    store<u64>(after + HEADER + count * START, hash);
    store<i64>(after + HEADER + count * START, since, 8);
    count++;
  }
  store<u32>(after, VERSION);
  store<u32>(after, count, 4);
  resp.setState(after, HEADER + count * START);
  return resp.finish();
}
