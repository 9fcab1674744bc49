//! Native tests of the SDK: rustc --edition 2021 --test -o tests tests.rs && ./tests
mod sluice;

use sluice::testing::{logged, ready, unready, Node, Sample};
use sluice::*;

/// Says what it sees, and does what its settings say.
#[derive(Clone, Copy)]
struct Probe {
    what: u32,
}

impl Plugin for Probe {
    const DEFAULT: Probe = Probe { what: 0 };

    fn configure(settings: &[u8]) -> Result<Probe, &'static str> {
        let mut p = Probe::DEFAULT;
        parse(settings, |name, value| {
            match name {
                b"what" => p.what = value.integer(0..=u32::MAX).ok_or("what: want an integer")?,
                _ => return Err("unknown field: want what"),
            }
            Ok(())
        })?;
        Ok(p)
    }

    fn needs(&self) -> u32 {
        self.what
    }

    fn keys(&self) -> &'static str {
        "label:tier\nservice-label:team\n"
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        match self.what {
            0 => {
                let reason = Text::<64>::new().push(req.text(req.zone_id())).push(" ").push_number(req.len() as u64);
                for i in 0..req.len() {
                    resp.set_reason(i, reason.as_bytes());
                }
                resp.set_share(0, u64::MAX);
                resp.requeue_after(70);
                resp.requeue_after(-5);
                resp.requeue_after(60);
                resp.set_state(&[req.state(), b"+"].concat());
            }
            1 => return Err("no decision"),
            2 => resp.set_state(&[0; MAX_STATE + 1]),
            3 => {
                for i in 0..req.len() {
                    resp.set_reason(i, &[b'a' + (i / 26 % 26) as u8, b'a' + (i % 26) as u8, 0, 0xC3, 0xBC].repeat(100));
                }
            }
            4 => {
                resp.add_group(ONE);
                let canary = resp.add_group(req.group_part(0) * 3);
                resp.set_group(req.len() - 1, canary);
            }
            5 => (0..=MAX_GROUPS).for_each(|_| drop(resp.add_group(1))),
            6 => resp.set_capacity(0, 1),
            7 => resp.set_share(req.len(), 1),
            8 => drop(req.endpoint(req.len() + 1)),
            _ => {}
        }
        Ok(())
    }
}

fn node(what: u32) -> Node<Probe> {
    Node::new(Role::Share, "zone-a", &format!("{{\"what\": {}}}", what)).unwrap()
}

#[test]
fn decision_has_shares_reasons_requeue_and_state() {
    let mut n = node(0);
    let first = n.decide(&[ready("zone-a"), ready("zone-b")]).unwrap();
    assert_eq!((first.values, first.requeue_ms, &first.state[..]), (vec![u32::MAX, ONE], 1, &b"+"[..]));
    assert_eq!(first.reasons, ["zone-a 2", "zone-a 2"]);
    assert_eq!(n.decide(&[unready("")]).unwrap().state, b"++");
}

#[test]
fn no_endpoints_no_state_and_errors() {
    let d = node(9).decide(&[]).unwrap();
    assert_eq!((d.values, d.reasons, d.requeue_ms, d.state), (vec![], vec![], 0, vec![]));
    assert_eq!(node(1).decide(&[ready("a")]).unwrap_err(), "no decision");
    assert_eq!(node(2).decide(&[ready("a")]).unwrap_err(), "the state is longer than 1024 bytes");
}

/// Parts of groups are relative to each other, whatever the endpoints in them; the next request has the weights that come of it.
#[test]
fn groups_have_parts() {
    let mut n = node(4);
    let (one, two) = (ready("a"), Sample { capacity: ONE / 2, ..ready("a") });
    let d = n.decide(&[one.clone(), two.clone(), one.clone()]).unwrap();
    assert_eq!((d.parts, d.groups, d.values), (vec![ONE, 3 * ONE], vec![0, 0, 1], vec![ONE; 3]));
    assert_eq!(n.prior_weights(), [166, 83, 750]);
    n.parts = vec![5, 6];
    assert_eq!(n.decide(&[one]).unwrap().parts, [ONE, 15]);
    assert_eq!(node(5).decide(&[ready("a")]).unwrap_err(), "there are more than 64 groups");
}

/// A plugin sets what its role sets.
#[test]
fn roles_are_kept() {
    assert_eq!(node(6).decide(&[ready("a")]).unwrap_err(), "set_capacity is for the roles Exclude and Reduce");
    let mut r = Node::<Reduce>::new(Role::Reduce, "a", "").unwrap();
    let half = Sample { capacity: ONE / 2, share: 7, ..ready("a") };
    assert_eq!(r.decide(&[half.clone(), half.clone(), half]).unwrap().values, [ONE / 2, 3, ONE / 2]);
    assert_eq!(r.decide(&[ready("a")]).unwrap_err(), "set_share is for the roles Share, Locality, Pick and Adjust");
}

#[derive(Clone, Copy)]
struct Reduce;

impl Plugin for Reduce {
    const DEFAULT: Reduce = Reduce;

    fn configure(_: &[u8]) -> Result<Reduce, &'static str> {
        Ok(Reduce)
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        match req.len() {
            1 => resp.set_share(0, 1),
            _ => resp.set_capacity(1, 3),
        }
        Ok(())
    }
}

/// The texts of reasons have bounds, each and all together.
#[test]
fn reasons_are_cut() {
    let d = node(3).decide(&vec![ready("a"); 30]).unwrap();
    for (i, r) in d.reasons.iter().enumerate() {
        if i < MAX_REASON_BYTES / MAX_REASON {
            assert!(r.len() == MAX_REASON && &r[2..5] == "???", "{} {}", i, r);
        } else {
            assert_eq!(r, "");
        }
    }
}

#[test]
fn settings() {
    for (text, want) in [
        ("{}", Ok(0)),
        (" { \"what\" : 4294967295 } \n", Ok(u32::MAX)),
        ("{\"what\":1,\"what\":7}", Ok(7)),
        ("{\"what\":4294967296}", Err("what: want an integer")),
        ("{\"what\":-1}", Err("what: want an integer")),
        ("{\"what\":01}", Err("what: want an integer")),
        ("{\"what\":1.5}", Err("what: want an integer")),
        ("{\"what\"}", Err("settings: want : after the name of a field")),
        ("{\"what\":}", Err("settings: want a value")),
        ("{\"what\":1 2}", Err("settings: want , or } after a value")),
        ("{\"what\":1", Err("settings: want , or } after a value")),
        ("{\"what\":1,}", Err("settings: want the name of a field")),
        ("{\"what", Err("settings: want the name of a field")),
        ("{\"w\":1}", Err("unknown field: want what")),
        ("{\"what\":\"1s\"}", Err("what: want an integer")),
        ("{} x", Err("settings: unexpected text after the JSON object")),
        ("", Err("settings must be a JSON object")),
        ("[]", Err("settings must be a JSON object")),
    ] {
        assert_eq!(Probe::configure(text.as_bytes()).map(|p| p.what), want, "{}", text);
    }
}

#[test]
fn durations() {
    for (text, want) in [
        ("0s", Some(0)),
        ("30s", Some(30_000)),
        ("1m30s", Some(90_000)),
        ("500ms", Some(500)),
        ("99999h99999h99999h99999h", Some(4 * 99_999 * 3_600_000)),
        ("1s1s1s1s1s", None),
        ("", None),
        ("30", None),
        ("s", None),
        ("100000s", None),
        ("-1s", None),
        ("1.5s", None),
        ("1d", None),
        ("1sm", None),
        (" 1s", None),
    ] {
        let mut got = None;
        parse(format!("{{\"d\":\"{}\"}}", text).as_bytes(), |_, value| Ok(got = value.duration(0..=u64::MAX))).unwrap();
        assert_eq!(got, want, "{}", text);
    }
}

#[test]
fn values_of_all_types() {
    let shown = |text: &str| {
        let text = format!(r#"{{"v": {} }}"#, text);
        let mut got = String::new();
        let result = parse(text.as_bytes(), |_, v| {
            let words = |v: Value| v.text::<8>(1).map(|t| String::from_utf8_lossy(t.as_bytes()).into_owned());
            let list = v.list().map(|l| l.map(|i| words(i).unwrap_or("?".into())).collect::<Vec<_>>().join(" "));
            let n = v.integer(1..=5_000_000).map(|n| n.to_string());
            let f = v.fraction(500_000..=10_000_000_000).map(|n| format!("{}e-6", n));
            got = [n, f, v.boolean().map(|b| b.to_string()), words(v), list].into_iter().flatten().collect::<Vec<_>>().join("; ");
            Ok(())
        });
        result.map(|_| got).unwrap_or_else(|e| e.to_string())
    };
    for (text, want) in [
        ("7", "7; 7000000e-6"),
        ("0.5", "500000e-6"),
        ("1.000001", "1000001e-6"),
        ("9999", "9999; 9999000000e-6"),
        ("0.4", ""),
        ("1.", ""),
        (".5", ""),
        ("01.5", ""),
        ("1.0000001", ""),
        ("-1", ""),
        ("1e3", ""),
        ("true", "true"),
        ("false", "false"),
        ("null", ""),
        (r#""abc""#, "abc"),
        (r#""""#, ""),
        (r#""12345678""#, "12345678"),
        (r#""123456789""#, ""),
        (r#""\u003c\"\\\n\/""#, "<\"\\\n/"),
        (r#""\u00e9\ud83d\ude00""#, "é😀"),
        (r#""\ud83d\u0041""#, "\u{FFFD}A"),
        (r#""\ude00""#, "\u{FFFD}"),
        (r#""\x""#, ""),
        (r#""\u12""#, ""),
        ("\"a\nb\"", ""),
        (r#"["a", "b,]" ,"c"]"#, "a b,] c"),
        ("[]", ""),
        (r#"["a" "b"]"#, ""),
        (r#"["a",]"#, ""),
        (r#"[1, ["x"]]"#, "? ?"),
        (r#"{"a": [1]}"#, ""),
        ("", "settings: want a value"),
        (r#""a"#, "settings: want a value"),
    ] {
        assert_eq!(shown(text), want, "{}", text);
    }
    let mut inner = 0;
    parse(br#"{"o": {"a": {"b": 3}}}"#, |_, v| v.object(|_, v| v.object(|_, v| v.integer(0..=9).map(|n| inner = n).ok_or("no"))).map(|_| ())).unwrap();
    assert_eq!(inner, 3);
}

#[test]
#[should_panic(expected = "sdk: index out of range: endpoint 1 of 1")]
fn shares_of_no_endpoint_panic() {
    let _ = node(7).decide(&[ready("a")]);
}

#[test]
#[should_panic(expected = "sdk: index out of range: endpoint 3 of 2")]
fn no_endpoint_panics() {
    let _ = node(8).decide(&[ready("a"), ready("a")]);
}

#[test]
fn handles_needs_and_keys() {
    let mut i = Box::new(Instance::<Probe>::new());
    assert_eq!((i.needs(u32::MAX), i.needs(0)), (0, -4));
    assert_eq!(logged(), ["unknown settings handle"]);
    for n in 0..MAX_SETTINGS {
        assert_eq!(i.configure(format!("{{\"what\":{}}}", n % 9).as_bytes()), n as i32);
    }
    assert_eq!(i.configure(b"{}"), -1);
    assert_eq!(logged(), ["too many settings"]);
    assert_eq!((i.needs(3), i.needs(MAX_SETTINGS as u32)), (3, -4));
    let mut room = [0; 40];
    assert_eq!((i.keys(0, &mut room), i.keys(u32::MAX, &mut room[..10]), i.keys(1 << 20, &mut room)), (30, -3, -4));
    assert!(room.starts_with(b"label:tier\nservice-label:team\n"));
}

/// Any bytes are answered or refused with a code: no panic, and nothing beyond the response.
#[test]
fn malformed_requests_are_refused() {
    let good = include_bytes!(env!("SLUICE_REQUEST"));
    let mut i = Box::new(Instance::<Everything>::new());
    let mut room = vec![0; 1 << 16];
    assert!(i.decide(good, &mut room) > 0);
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let mut refused = 0;
    for _ in 0..200_000 {
        let mut b = good.to_vec();
        for _ in 0..1 + next() % 3 {
            let at = next() % if next() % 4 > 0 { 184 } else { b.len() };
            b[at] = [0, 1, 255, 127, next() as u8][next() % 5];
        }
        b.truncate(b.len() - if next() % 8 == 0 { next() % b.len() } else { 0 });
        refused += (i.decide(&b, &mut room) < 0) as usize;
    }
    assert!(refused > 1000, "{} refused", refused);
    for n in 0..good.len() {
        assert_eq!(i.decide(&good[..n], &mut room), -2);
    }
}

/// Reads all that a request has.
#[derive(Clone, Copy)]
struct Everything;

impl Plugin for Everything {
    const DEFAULT: Everything = Everything;

    fn configure(_: &[u8]) -> Result<Everything, &'static str> {
        Ok(Everything)
    }

    fn decide(&self, req: &Request, resp: &mut Response) -> Result<(), &'static str> {
        let mut sum = req.namespace().len() + req.service().len() + req.port_name().len() + req.state().len();
        for (i, e) in req.endpoints().enumerate() {
            sum += req.text(e.node_id).len() + req.text(e.pod_id).len() + e.port as usize;
            sum += req.group_part(e.group as usize) as usize & 255;
            sum += req.outcomes(i).map_or(0, |o| o.total_attempts as usize & 255);
            for key in 0..20 {
                sum += req.pod_value(i, key).map_or(1, |v| v.len());
            }
            resp.set_reason(i, Text::<20>::new().push_number(sum as u64).as_bytes());
        }
        sum += req.zones().map(|z| z.total as usize).sum::<usize>();
        for key in 0..20 {
            sum += req.service_value(key).map_or(1, |v| v.len());
        }
        resp.set_state(&sum.to_le_bytes());
        Ok(())
    }
}
