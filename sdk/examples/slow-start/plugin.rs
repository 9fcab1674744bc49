//! slow-start: an endpoint that this node has not seen before gets its share of new connections in steps. The state has when each of those
//! was seen first: a version and a number, 4 bytes each, then a hash of the address and the time, 8 bytes each.
#![cfg_attr(not(test), no_std)]

#[path = "../../rust/sluice.rs"]
mod sluice;

use sluice::{Endpoint, Plugin, Request, Response, Text, ELIGIBLE};

#[derive(Clone, Copy)]
struct SlowStart {
    steps: i64,
    step_ms: i64,
}

sluice::register!(SlowStart);

const VERSION: u32 = 1;
const HEADER: usize = 8;
const START: usize = 16;
const MAX_STARTS: usize = 63;

impl Plugin for SlowStart {
    const DEFAULT: SlowStart = SlowStart { steps: 4, step_ms: 10_000 };

    fn configure(settings: &[u8]) -> Result<SlowStart, &'static str> {
        let mut p = SlowStart::DEFAULT;
        sluice::parse(settings, |name, value| {
            match name {
                b"steps" => p.steps = value.integer(2..=9).ok_or("steps: want an integer from 2 to 9")? as i64,
                b"stepDuration" => p.step_ms = value.duration(1000..=600_000).ok_or("stepDuration: want a duration from 1s to 10m")? as i64,
                _ => return Err("unknown field: want steps, stepDuration"),
            }
            Ok(())
        })?;
        Ok(p)
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        let (now, step) = (req.now_ms(), self.step_ms);
        let before = starts(req.state());
        let mut after = [0; HEADER + MAX_STARTS * START];
        let mut count = 0;
        for (i, e) in req.endpoints().enumerate() {
            if !e.is(ELIGIBLE) || e.capacity == 0 {
                continue;
            }
            let hash = hash_of(&e);
            let known = before.and_then(|b| b.chunks_exact(START).find(|s| u64_at(s, 0) == hash)).map(|s| u64_at(s, 8) as i64);
            let since = known.unwrap_or(now).min(now);
            let steps = (now - since) / step + 1;
            let was_there = known.is_none() && (before.is_none() || e.prior_weight.is_some());
            if was_there || steps >= self.steps || count == MAX_STARTS {
                continue; // keeps its capacity
            }
            resp.set_capacity(i, e.capacity as u64 * steps as u64 / self.steps as u64);
            let reason = Text::<32>::new().push("step ").push_number(steps as u64).push(" of ").push_number(self.steps as u64);
            resp.set_reason(i, reason.as_bytes());
            resp.requeue_after(since + steps * step - now);
            let start = &mut after[HEADER + count * START..][..START];
            start[..8].copy_from_slice(&hash.to_le_bytes());
            start[8..].copy_from_slice(&since.to_le_bytes());
            count += 1;
        }
        after[..4].copy_from_slice(&VERSION.to_le_bytes());
        after[4..8].copy_from_slice(&(count as u32).to_le_bytes());
        resp.set_state(&after[..HEADER + count * START]);
        Ok(())
    }
}

/// Returns the starts in a state. None if it has none: at the first decision, all endpoints have been there.
fn starts(state: &[u8]) -> Option<&[u8]> {
    if state.len() < HEADER || u64_at(state, 0) as u32 != VERSION {
        return None;
    }
    let count = (u64_at(state, 0) >> 32) as usize;
    if count > MAX_STARTS || state.len() != HEADER + count * START {
        return None;
    }
    Some(&state[HEADER..])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Returns FNV-1a of the address and the port.
fn hash_of(e: &Endpoint) -> u64 {
    e.address.iter().chain(&e.port.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |h, c| (h ^ *c as u64).wrapping_mul(0x100_0000_01b3))
}
