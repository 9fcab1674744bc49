//! The plugin of inputs.go in Rust.
#![cfg_attr(not(test), no_std)]

#[path = "../../../../../../sdk/rust/sluice.rs"]
mod sluice;

use sluice::{Plugin, Request, Response, ENDPOINT_STATE, NEED_CONNECTIONS, NEED_ENDPOINT_STATE, NEED_NODES, NEED_OUTCOMES, NEED_POD_NAMES};

#[derive(Clone, Copy)]
struct Inputs;

sluice::register!(Inputs);

fn number(h: u64, n: u64) -> u64 {
    (h ^ n).wrapping_mul(0x100_0000_01B3)
}

fn text(h: u64, text: Option<&[u8]>) -> u64 {
    match text {
        None => number(h, 0xFFFF),
        Some(t) => t.iter().fold(number(h, t.len() as u64), |h, c| number(h, *c as u64)),
    }
}

impl Plugin for Inputs {
    const DEFAULT: Inputs = Inputs;

    fn configure(_: &[u8]) -> Result<Inputs, &'static str> {
        Ok(Inputs)
    }

    fn needs(&self) -> u32 {
        NEED_CONNECTIONS | NEED_OUTCOMES | NEED_NODES | NEED_POD_NAMES | NEED_ENDPOINT_STATE
    }

    fn keys(&self) -> &'static str {
        "service-label:team\nlabel:track\nannotation:example.com/stage\nrequest:cpu\nservice-annotation:example.com/tier\nlabel:version\nnode-label:example.com/pool\nnamespace-label:env\nload:rps_fractional\n"
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        let mut h = 0xCBF2_9CE4_8422_2325;
        h = number(h, if req.node_count() > 0 { req.node_index().map_or(u32::MAX as u64, |n| n as u64) } else { 0 });
        h = number(h, req.node_count() as u64);
        if let Some(age) = req.connections_age_ms() {
            h = number(h, age as u64);
        }
        h = number(h, req.outcomes_window_ms() as u64);
        for key in 0..3 {
            h = text(h, req.service_value(key));
        }
        for z in req.zones() {
            h = text(h, Some(req.text(z.zone_id)));
            for n in [z.nodes, z.ready, z.serving, z.total] {
                h = number(h, n as u64);
            }
            h = number(h, z.millicores);
        }
        resp.count(0, 1);
        resp.add_group(1);
        resp.add_group(2);
        for (i, e) in req.endpoints().enumerate() {
            let mut g = number(number(number(h, e.conditions as u64), e.ready_since_ms as u64), e.terminating_since_ms as u64);
            for n in [e.capacity, e.share, req.group_part(e.group as usize)] {
                g = number(g, n as u64);
            }
            if let Some(n) = e.connections {
                g = number(g, n as u64);
            }
            g = text(g, Some(req.text(e.pod_id)));
            let counted = req.outcomes(i).map_or([0; 9], |o| {
                let now = [o.attempts as u64, o.answered as u64, o.refused as u64, o.unanswered as u64];
                [now[0], now[1], now[2], now[3], o.total_attempts, o.total_answered, o.total_refused, o.total_unanswered, o.since_ms as u64]
            });
            g = counted.iter().fold(g, |g, n| number(g, *n));
            for key in 0..5 {
                g = text(g, req.pod_value(i, key));
            }
            let mut state = req.endpoint_state(i);
            g = text(g, Some(&state));
            if i % 3 > 0 && g % 4 > 0 {
                state.rotate_left(1);
                state[ENDPOINT_STATE - 1] = g as u8;
                resp.set_endpoint_state(i, &state);
            }
            resp.count(1, ((g >> 33 & 1) as u32) << 30);
            resp.set_share(i, 1 + g % 60_000);
            resp.set_group(i, i as u16 % 2);
            resp.shed(i, ((g >> 20) % 1001) as u16);
        }
        Ok(())
    }
}
