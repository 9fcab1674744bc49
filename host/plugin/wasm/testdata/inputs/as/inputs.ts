// The plugin of inputs.go in AssemblyScript.
import {
  begin, writeKeys, Request, Response, ABSENT_STRING, ENDPOINT_STATE, NEED_CONNECTIONS, NEED_ENDPOINT_STATE, NEED_NODES, NEED_OUTCOMES, NEED_POD_NAMES, NO_AGE, UNCOUNTED,
} from "../../../../../../sdk/assemblyscript/sluice";

export { sluice_alloc, sluice_abi_version } from "../../../../../../sdk/assemblyscript/sluice";

const next = memory.data(32, 8); // a state of an endpoint

function number(h: u64, n: u64): u64 {
  return (h ^ n) * 0x100000001b3;
}

function text(h: u64, req: Request, id: u32): u64 {
  if (id == ABSENT_STRING) return number(h, 0xffff);
  const v = req.text(id);
  h = number(h, v.length);
  for (let i: u32 = 0; i < v.length; i++) h = number(h, load<u8>(v.at + i));
  return h;
}

export function sluice_needs(settings: u32): i32 {
  return NEED_CONNECTIONS | NEED_OUTCOMES | NEED_NODES | NEED_POD_NAMES | NEED_ENDPOINT_STATE;
}

export function sluice_keys(settings: u32, keys: usize, room: u32): i32 {
  return writeKeys("service-label:team\nlabel:track\nannotation:example.com/stage\nrequest:cpu\nservice-annotation:example.com/tier\nlabel:version\nnode-label:example.com/pool\nnamespace-label:env\nload:rps_fractional\n", keys, room);
}

export function sluice_decide(req: Request, length: u32, resp: Response, room: u32): i64 {
  const code = begin(req, length, resp, room);
  if (code < 0) return code;
  let h: u64 = 0xcbf29ce484222325;
  h = number(h, req.nodeCount ? req.nodeIndex : 0);
  h = number(h, req.nodeCount);
  if (req.connectionsAgeMs != NO_AGE) h = number(h, req.connectionsAgeMs);
  h = number(h, req.outcomesWindowMs);
  for (let key: u32 = 0; key < 3; key++) h = text(h, req, req.serviceValue(key));
  for (let i: u32 = 0; i < req.zonesCount; i++) {
    const z = req.zone(i);
    h = text(h, req, z.zoneId);
    h = number(number(number(number(number(h, z.nodes), z.ready), z.serving), z.total), z.millicores);
  }
  resp.count(0, 1);
  resp.addGroup(1);
  resp.addGroup(2);
  for (let i: u32 = 0; i < req.endpointsCount; i++) {
    const e = req.endpoint(i), o = req.outcomes(i);
    let g = number(number(number(h, e.conditions), e.readySinceMs), e.terminatingSinceMs);
    g = number(number(number(g, e.capacity), e.share), req.groupPart(e.group));
    if (e.connections != UNCOUNTED) g = number(g, e.connections);
    g = text(g, req, e.podId);
    if (o) {
      g = number(number(number(number(g, o.attempts), o.answered), o.refused), o.unanswered);
      g = number(number(number(number(g, o.totalAttempts), o.totalAnswered), o.totalRefused), o.totalUnanswered);
      g = number(g, o.sinceMs);
    } else {
      for (let k = 0; k < 9; k++) g = number(g, 0);
    }
    for (let key: u32 = 0; key < 5; key++) g = text(g, req, req.podValue(i, key));
    const state = req.endpointState(i);
    g = number(g, ENDPOINT_STATE);
    for (let k: u32 = 0; k < ENDPOINT_STATE; k++) g = number(g, load<u8>(state + k));
    if (i % 3 > 0 && g % 4 > 0) {
      memory.copy(next, state + 1, ENDPOINT_STATE - 1);
      store<u8>(next + ENDPOINT_STATE - 1, u8(g));
      resp.setEndpointState(i, next);
    }
    resp.count(1, u32((g >> 33) & 1) << 30);
    resp.setShare(i, 1 + (g % 60000));
    resp.result(i).group = u16(i % 2);
    resp.result(i).shedPermille = u16((g >> 20) % 1001);
  }
  return resp.finish();
}
