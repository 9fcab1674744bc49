// tiers: endpoints whose Pods have one of some tiers get another share than the others.
import {
  begin, fail, newText, parse, same, textOf, writeKeys, Request, Response, View, ELIGIBLE, FAILED, NO_SETTINGS, notConfigured, ONE,
} from "../../assemblyscript/sluice";

export { sluice_alloc, sluice_abi_version } from "../../assemblyscript/sluice";

class Policy {
  factor: u64 = 2 * ONE;
  only: bool = false;
  note: View = textOf("tier");
  tiers: View[] = [textOf("gold")];

  has(tier: View): bool {
    for (let i = 0; i < this.tiers.length; i++) {
      if (same(this.tiers[i], tier)) return true;
    }
    return false;
  }
}

const defaults = new Policy();
const MAX_SETTINGS = 16384;
const configured: Policy[] = [];

export function sluice_configure(json: usize, length: u32): i32 {
  const p = new Policy(), s = parse(json, length), tiers = "tiers: want 1 to 4 texts of 1 to 63 bytes";
  while (s.next()) {
    if (s.is("factor")) p.factor = s.fraction(ONE / 100, 100 * ONE, "factor: want a number from 0.01 to 100");
    else if (s.is("only")) p.only = s.boolean("only: want true or false");
    else if (s.is("note")) p.note = s.text(1, 100, "note: want a text of 1 to 100 bytes");
    else if (s.is("tiers")) {
      p.tiers = [];
      while (s.item(tiers)) p.tiers.push(s.text(1, 63, tiers));
      if (p.tiers.length < 1 || p.tiers.length > 4) s.fail(tiers);
    } else s.fail("unknown field: want factor, only, note, tiers");
  }
  if (s.failed) return FAILED;
  if (configured.length == MAX_SETTINGS) return fail("too many settings");
  return configured.push(p) - 1;
}

export function sluice_keys(handle: u32, keys: usize, room: u32): i32 {
  if (handle != NO_SETTINGS && handle >= u32(configured.length)) return notConfigured();
  return writeKeys("label:tier", keys, room);
}

export function sluice_decide(req: Request, length: u32, resp: Response, room: u32): i64 {
  const code = begin(req, length, resp, room);
  if (code < 0) return code;
  if (req.settings != NO_SETTINGS && req.settings >= u32(configured.length)) return notConfigured();
  const p = req.settings == NO_SETTINGS ? defaults : configured[req.settings];
  let found = false;
  for (let i: u32 = 0; i < req.endpointsCount; i++) {
    const e = req.endpoint(i), tier = req.text(req.podValue(i, 0));
    if (!tier.length || !p.has(tier)) continue;
    const share = u64(e.share) * p.factor / ONE;
    found = found || (share > 0 && e.capacity > 0 && (e.conditions & ELIGIBLE) != 0);
    resp.setShare(i, share);
    resp.setReasonText(i, newText().pushView(p.note));
  }
  for (let i: u32 = 0; p.only && found && i < req.endpointsCount; i++) {
    if (!p.has(req.text(req.podValue(i, 0)))) resp.setShare(i, 0);
  }
  return resp.finish();
}
