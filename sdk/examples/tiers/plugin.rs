//! tiers: endpoints whose Pods have one of some tiers get another share than the others.
#![cfg_attr(not(test), no_std)]

#[path = "../../rust/sluice.rs"]
mod sluice;

use sluice::{Plugin, Request, Response, Text, ELIGIBLE, ONE};

const MAX_TIERS: usize = 4;
const MAX_TIER: usize = 63;
const MAX_NOTE: usize = 100;

#[derive(Clone, Copy)]
struct Tiers {
    factor: u64,
    only: bool,
    note: Text<MAX_NOTE>,
    tiers: [Text<MAX_TIER>; MAX_TIERS],
    count: usize,
}

sluice::register!(Tiers);

impl Plugin for Tiers {
    const DEFAULT: Tiers = Tiers {
        factor: 2 * ONE as u64,
        only: false,
        note: Text::of(b"tier"),
        tiers: [Text::of(b"gold"), Text::of(b""), Text::of(b""), Text::of(b"")],
        count: 1,
    };

    fn configure(settings: &[u8]) -> Result<Tiers, &'static str> {
        let mut p = Tiers::DEFAULT;
        sluice::parse(settings, |name, value| {
            match name {
                b"factor" => p.factor = value.fraction(ONE as u64 / 100..=100 * ONE as u64).ok_or("factor: want a number from 0.01 to 100")?,
                b"only" => p.only = value.boolean().ok_or("only: want true or false")?,
                b"note" => p.note = value.text(1).ok_or("note: want a text of 1 to 100 bytes")?,
                b"tiers" => p.read_tiers(&value).ok_or("tiers: want 1 to 4 texts of 1 to 63 bytes")?,
                _ => return Err("unknown field: want factor, only, note, tiers"),
            }
            Ok(())
        })?;
        Ok(p)
    }

    fn keys(&self) -> &'static str {
        "label:tier"
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        let has = |i: usize| req.pod_value(i, 0).map_or(false, |tier| self.tiers[..self.count].iter().any(|t| t.as_bytes() == tier));
        let mut found = false;
        for (i, e) in req.endpoints().enumerate().filter(|(i, _)| has(*i)) {
            let share = e.share as u64 * self.factor / ONE as u64;
            found = found || share > 0 && e.capacity > 0 && e.is(ELIGIBLE);
            resp.set_share(i, share);
            resp.set_reason(i, self.note.as_bytes());
        }
        if self.only && found {
            (0..req.len()).filter(|i| !has(*i)).for_each(|i| resp.set_share(i, 0));
        }
        Ok(())
    }
}

impl Tiers {
    fn read_tiers(&mut self, value: &sluice::Value) -> Option<()> {
        self.count = 0;
        for item in value.list()? {
            *self.tiers.get_mut(self.count)? = item.text(1)?;
            self.count += 1;
        }
        Some(()).filter(|_| self.count > 0)
    }
}
