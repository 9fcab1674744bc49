// zone-weight: ready endpoints in the zone of the node get more weight than the others, as long as they are not busy.
import {
  begin, fail, newText, parse, Request, Response, FAILED, NEED_CONNECTIONS, NO_SETTINGS, NO_STRING, notConfigured, READY,
  UNCOUNTED,
} from "../../assemblyscript/sluice";

export { sluice_alloc, sluice_abi_version } from "../../assemblyscript/sluice";

class Policy {
  factor: u32 = 3;
  busy: u32 = 0;
}

const defaults = new Policy();
const MAX_SETTINGS = 16384;
const configured: Policy[] = [];

export function sluice_configure(json: usize, length: u32): i32 {
  const p = new Policy(), s = parse(json, length);
  while (s.next()) {
    if (s.is("factor")) p.factor = s.integer(1, 100, "factor: want an integer from 1 to 100");
    else if (s.is("busyConnections")) p.busy = s.integer(0, 100000, "busyConnections: want an integer from 0 to 100000");
    else s.fail("unknown field: want factor, busyConnections");
  }
  if (s.failed) return FAILED;
  if (configured.length == MAX_SETTINGS) return fail("too many settings");
  return configured.push(p) - 1;
}

function settingsOf(handle: u32): Policy | null {
  if (handle == NO_SETTINGS) return defaults;
  return handle < u32(configured.length) ? configured[handle] : null;
}

export function sluice_needs(handle: u32): i32 {
  const p = settingsOf(handle);
  if (!p) return notConfigured();
  return p.busy ? NEED_CONNECTIONS : 0;
}

export function sluice_decide(req: Request, length: u32, resp: Response, room: u32): i64 {
  const code = begin(req, length, resp, room);
  if (code < 0) return code;
  const p = settingsOf(req.settings);
  if (!p) return notConfigured();
  for (let i: u32 = 0; i < req.endpointsCount; i++) {
    const e = req.endpoint(i);
    if (!(e.conditions & READY) || e.zoneId != req.zoneId || e.zoneId == NO_STRING) continue; // keeps its share
    if (p.busy && e.connections != UNCOUNTED && e.connections >= p.busy) {
      resp.setReason(i, "busy");
      continue;
    }
    resp.setShare(i, u64(e.share) * p.factor);
    resp.setReasonText(i, newText().push("in zone ").pushView(req.text(e.zoneId)));
  }
  return resp.finish();
}
