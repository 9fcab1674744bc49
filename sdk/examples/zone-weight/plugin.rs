//! zone-weight: ready endpoints in the zone of the node get more weight than the others, as long as they are not busy.
#![cfg_attr(not(test), no_std)]

#[path = "../../rust/sluice.rs"]
mod sluice;

use sluice::{Plugin, Request, Response, Text, MAX_REASON, NEED_CONNECTIONS, NO_STRING, READY};

#[derive(Clone, Copy)]
struct ZoneWeight {
    factor: u32,
    busy: u32,
}

sluice::register!(ZoneWeight);

impl Plugin for ZoneWeight {
    const DEFAULT: ZoneWeight = ZoneWeight { factor: 3, busy: 0 };

    fn configure(settings: &[u8]) -> Result<ZoneWeight, &'static str> {
        let mut p = ZoneWeight::DEFAULT;
        sluice::parse(settings, |name, value| {
            match name {
                b"factor" => p.factor = value.integer(1..=100).ok_or("factor: want an integer from 1 to 100")?,
                b"busyConnections" => p.busy = value.integer(0..=100_000).ok_or("busyConnections: want an integer from 0 to 100000")?,
                _ => return Err("unknown field: want factor, busyConnections"),
            }
            Ok(())
        })?;
        Ok(p)
    }

    fn needs(&self) -> u32 {
        if self.busy > 0 {
            NEED_CONNECTIONS
        } else {
            0
        }
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        for (i, e) in req.endpoints().enumerate() {
            if !e.is(READY) || e.zone_id != req.zone_id() || e.zone_id == NO_STRING {
                continue; // keeps its share
            }
            if self.busy > 0 && e.connections.map_or(false, |n| n >= self.busy) {
                resp.set_reason(i, b"busy");
                continue;
            }
            resp.set_share(i, e.share as u64 * self.factor as u64);
            resp.set_reason(i, Text::<MAX_REASON>::new().push("in zone ").push(req.text(e.zone_id)).as_bytes());
        }
        Ok(())
    }
}
