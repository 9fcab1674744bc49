//! SDK of sluice plugins in Rust, for ABI 2.1: without std, without crates, without a heap. A plugin is one type, its settings, which
//! implements [`Plugin`] and is registered with [`register!`]:
//!
//! ```text
//! rustc --edition 2021 --crate-type cdylib --target wasm32-unknown-unknown -C opt-level=s -C panic=abort -C strip=symbols \
//!     -o near.wasm src/lib.rs
//! ```
//!
//! sdk/ABI.md of sluice is the specification.
#![allow(dead_code, unused_imports, unused_macros, unknown_lints, unexpected_cfgs)]

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ops::RangeInclusive;

/// Bits of [`Plugin::needs`]. A host refuses a module that needs what it cannot give.
pub const NEED_CONNECTIONS: u32 = 1;
pub const NEED_OUTCOMES: u32 = 2;
pub const NEED_NODES: u32 = 4;
pub const NEED_POD_NAMES: u32 = 8;
pub const NEED_ENDPOINT_STATE: u32 = 16;

/// Bits of [`Endpoint::conditions`].
pub const READY: u32 = 1;
pub const SERVING: u32 = 2;
pub const TERMINATING: u32 = 4;
pub const LOCAL: u32 = 8;
pub const CHOSEN: u32 = 16;
pub const HINTED_ZONE: u32 = 32;
pub const HINTED_NODE: u32 = 64;
/// May have capacity.
pub const ELIGIBLE: u32 = 128;
/// Eligible only because of the panic hold.
pub const HELD: u32 = 256;

/// String id of "".
pub const NO_STRING: u32 = u32::MAX;
/// String id of a value that the object does not have.
pub const ABSENT_STRING: u32 = u32::MAX - 1;
/// Index of a zone that is not in the zone table.
pub const NO_ZONE: u16 = u16::MAX;

/// The capacity of an ordinary endpoint, and its share at first.
pub const ONE: u32 = 1_000_000;
pub const MAX_GROUPS: usize = 64;
pub const MAX_STATE: usize = 1024;
/// Bytes of state of each endpoint.
pub const ENDPOINT_STATE: usize = 32;
/// Counters of a plugin.
pub const MAX_COUNTERS: usize = 4;
pub const MAX_REASONS: usize = 256;
pub const MAX_REASON: usize = 256;
pub const MAX_REASON_BYTES: usize = 4096;
/// Settings texts of one instance. More are refused, and the host starts another instance.
pub const MAX_SETTINGS: usize = 16384;

const ABI: u32 = 2 << 16 | 1;
const REQUEST_MAGIC: u32 = 0x5152_4C53;
const RESPONSE_MAGIC: u32 = 0x5052_4C53;
const NONE: u32 = u32::MAX; // no settings, never reset, not counted
const NO_REASON: u16 = u16::MAX;
const REQUEST_SIZE: usize = 200;
const LEAST_REQUEST: usize = 184; // header of version 2.0
const ENDPOINT_SIZE: usize = 72;
const RESPONSE_SIZE: usize = 80;
const RESULT_SIZE: usize = 16;
const GROUP_SIZE: usize = 8;

const FAILED: i32 = -1;
const BAD_REQUEST: i32 = -2;
const NO_ROOM: i32 = -3;
const NOT_CONFIGURED: i32 = -4;

/// What a plugin decides. A chain is in the order of roles.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Role {
    /// Which endpoints get no connections at all, such as those that fail. Sets capacities.
    Exclude = 1,
    /// How much of an endpoint there is: warming up, draining, or of another size. Sets capacities.
    Reduce,
    /// Parts of the connections for groups of endpoints. Sets shares, like the following.
    Share,
    /// Between zones, nodes or priorities, within each group.
    Locality,
    /// Which of these endpoints this node uses, and how one is picked for a client.
    Pick,
    /// Which established connections are reset. Sets neither.
    Reset,
    /// Corrections of the shares by what this node observes.
    Adjust,
}

impl Role {
    fn of(n: u32) -> Option<Role> {
        [Role::Exclude, Role::Reduce, Role::Share, Role::Locality, Role::Pick, Role::Reset, Role::Adjust].into_iter().find(|r| *r as u32 == n)
    }

    fn writes_capacity(self) -> bool {
        matches!(self, Role::Exclude | Role::Reduce)
    }
}

/// A policy plugin with one settings text. It has no other memory: equal requests must get equal responses.
pub trait Plugin: Copy + 'static {
    /// The settings of a policy without settings.
    const DEFAULT: Self;

    /// Parses settings, a JSON text: see [`parse`]. An error is logged by the host and refuses them.
    fn configure(settings: &[u8]) -> Result<Self, &'static str>;

    /// Returns the bits of the inputs that a request has to have.
    fn needs(&self) -> u32 {
        0
    }

    /// Returns the declared labels, annotations and resource requests, one a line.
    fn keys(&self) -> &'static str {
        ""
    }

    /// Decides about a Service port when its input changes, and after [`Response::requeue_after`]. At an error, the last good decision
    /// stays in force.
    fn decide(&self, request: &Request, response: &mut Response) -> Result<(), &'static str>;
}

/// A request, whose sections are known to be within it.
pub struct Request<'a> {
    bytes: &'a [u8],
    endpoints: Area,
    zones: Area,
    strings: Area,
    outcomes: Area,
    values: Area,
    groups: Area,
    states: Area,
    index: &'a Index,
}

/// Positions of the strings of a request by their ids: open addressing. A slot has the number of the request and the position; those of
/// other requests are free. It is filled when a text is looked up for the first time.
struct Index {
    slots: [Cell<u64>; INDEX],
    request: Cell<u32>,
    filled: Cell<bool>,
}

const INDEX: usize = 1 << 14;

impl Index {
    const fn new() -> Index {
        // SAFETY: a Cell has the layout of its value.
        let slots = unsafe { core::mem::transmute::<[u64; INDEX], [Cell<u64>; INDEX]>([0; INDEX]) };
        Index { slots, request: Cell::new(0), filled: Cell::new(false) }
    }

    fn begin(&self) {
        self.filled.set(false);
        self.request.set(self.request.get().wrapping_add(1));
        if self.request.get() == 0 {
            self.slots.iter().for_each(|s| s.set(0));
            self.request.set(1);
        }
    }

    /// Returns the slots of an id from the first on, up to a free one.
    fn probe(&self, id: u32) -> impl Iterator<Item = (&Cell<u64>, Option<usize>)> {
        let first = (id.wrapping_mul(0x9E37_79B1) >> 18) as usize;
        (first..first + INDEX).map(move |at| {
            let slot = &self.slots[at % INDEX];
            let taken = (slot.get() >> 32) as u32 == self.request.get();
            (slot, if taken { Some(slot.get() as u32 as usize) } else { None })
        })
    }
}

#[derive(Clone, Copy)]
struct Area {
    offset: usize,
    count: usize,
    stride: usize,
}

impl Area {
    const NONE: Area = Area { offset: 0, count: 0, stride: 0 };

    /// Reads the area at an offset of a header. None if its records are shorter than they have to be or not within the message.
    fn read(bytes: &[u8], at: usize, record: usize) -> Option<Area> {
        let a = Area { offset: u32_at(bytes, at) as usize, count: u32_at(bytes, at + 4) as usize, stride: u32_at(bytes, at + 8) as usize };
        let end = a.offset as u64 + a.count as u64 * a.stride as u64;
        if a.count > 0 && (a.stride < record || end > bytes.len() as u64) {
            return None;
        }
        Some(a)
    }

    fn record<'a>(&self, bytes: &'a [u8], i: usize) -> Option<&'a [u8]> {
        if i >= self.count {
            return None;
        }
        bytes.get(self.offset + i * self.stride..)?.get(..self.stride)
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u32_at(b, at) as u64 | (u32_at(b, at + 4) as u64) << 32
}

/// An endpoint of the Service port. Times are Unix milliseconds, 0: not. `node_id`, `zone_id` and `pod_id` are string ids.
#[derive(Clone, Copy)]
pub struct Endpoint {
    /// IPv4 as ::ffff:a.b.c.d.
    pub address: [u8; 16],
    pub port: u16,
    /// Row of its zone in the zone table, or [`NO_ZONE`].
    pub zone_index: u16,
    pub conditions: u32,
    pub node_id: u32,
    pub zone_id: u32,
    /// How much of an ordinary endpoint there is, in millionths: [`ONE`]. From the previous plugin of the chain, or the default rules, like
    /// share and group.
    pub capacity: u32,
    /// What each unit of capacity gets of the connections of the group, relative to the other endpoints.
    pub share: u32,
    /// Its group, for [`Request::group_part`].
    pub group: u16,
    /// Of the chain's last answer, in the data plane.
    pub prior_weight: Option<u32>,
    pub ready_since_ms: i64,
    pub terminating_since_ms: i64,
    /// Established connections from this node, with [`NEED_CONNECTIONS`].
    pub connections: Option<u32>,
    pub pod_id: u32,
}

impl Endpoint {
    /// Reports whether all bits are among its conditions.
    pub fn is(&self, conditions: u32) -> bool {
        self.conditions & conditions == conditions
    }
}

/// A zone. Nodes and millicores are 0 without [`NEED_NODES`].
#[derive(Clone, Copy)]
pub struct Zone {
    pub zone_id: u32,
    pub nodes: u32,
    /// Endpoints of this Service port.
    pub ready: u32,
    pub serving: u32,
    pub total: u32,
    /// Allocatable CPU of the Nodes.
    pub millicores: u64,
}

/// What became of the connections that this node has sent to an endpoint: in the last window, and since `since_ms`.
#[derive(Clone, Copy)]
pub struct Outcomes {
    pub attempts: u32,
    pub answered: u32,
    pub refused: u32,
    pub unanswered: u32,
    pub total_attempts: u64,
    pub total_answered: u64,
    pub total_refused: u64,
    pub total_unanswered: u64,
    pub since_ms: i64,
}

impl<'a> Request<'a> {
    /// Checks a request. None if the ABI does not allow it.
    fn read(bytes: &'a [u8], index: &'a Index) -> Option<Request<'a>> {
        if bytes.len() < LEAST_REQUEST || u32_at(bytes, 0) != REQUEST_MAGIC || u16_at(bytes, 4) != 2 {
            return None;
        }
        let bytes = bytes.get(..u32_at(bytes, 8) as usize)?;
        if bytes.len() < LEAST_REQUEST {
            return None;
        }
        let complete = u32_at(bytes, 12) as usize >= REQUEST_SIZE && bytes.len() >= REQUEST_SIZE;
        let request = Request {
            bytes,
            endpoints: Area::read(bytes, 72, ENDPOINT_SIZE)?,
            zones: Area::read(bytes, 84, 32)?,
            strings: Area::read(bytes, 96, 16)?,
            outcomes: Area::read(bytes, 132, 56)?,
            values: Area::read(bytes, 144, 0)?,
            groups: Area::read(bytes, 168, GROUP_SIZE)?,
            states: if complete { Area::read(bytes, 184, ENDPOINT_STATE)? } else { Area::NONE },
            index,
        };
        let keys = u32_at(bytes, 156) as u64 * 4;
        let service_values = u32_at(bytes, 160) as u64 + u32_at(bytes, 164) as u64 * 4;
        if request.values.count > 0 && keys > request.values.stride as u64 || u32_at(bytes, 164) > 0 && service_values > bytes.len() as u64 {
            return None;
        }
        if u32_at(bytes, 112) > 0 && u32_at(bytes, 108) as u64 + u32_at(bytes, 112) as u64 > bytes.len() as u64 {
            return None;
        }
        Some(request)
    }

    /// What the plugin decides: the role in the manifest of its module.
    pub fn role(&self) -> Role {
        Role::of(u32_at(self.bytes, 180)).unwrap_or(Role::Share)
    }

    /// Unix milliseconds, a multiple of 1000. Setting the wall clock does not change it.
    pub fn now_ms(&self) -> i64 {
        u64_at(self.bytes, 16) as i64
    }

    /// Increases with each change of the input for this Service port and pool.
    pub fn generation(&self) -> u64 {
        u64_at(self.bytes, 24)
    }

    pub fn namespace(&self) -> &'a [u8] {
        self.text(u32_at(self.bytes, 32))
    }

    pub fn service(&self) -> &'a [u8] {
        self.text(u32_at(self.bytes, 36))
    }

    /// The name of the port, "" if it has none.
    pub fn port_name(&self) -> &'a [u8] {
        self.text(u32_at(self.bytes, 40))
    }

    /// String id of this node's name.
    pub fn node_id(&self) -> u32 {
        u32_at(self.bytes, 44)
    }

    /// String id of this node's zone, or [`NO_STRING`].
    pub fn zone_id(&self) -> u32 {
        u32_at(self.bytes, 48)
    }

    /// The number of the Service port.
    pub fn port(&self) -> u16 {
        u16_at(self.bytes, 52)
    }

    /// The IANA number: 6 TCP, 17 UDP, 132 SCTP.
    pub fn protocol(&self) -> u8 {
        self.bytes[54]
    }

    /// 4 or 6.
    pub fn family(&self) -> u8 {
        self.bytes[55]
    }

    /// Reports whether the endpoints are only those on this node, for traffic policy Local.
    pub fn is_local(&self) -> bool {
        self.bytes[56] == 1
    }

    pub fn internal_traffic_policy_local(&self) -> bool {
        self.bytes[57] & 1 != 0
    }

    pub fn external_traffic_policy_local(&self) -> bool {
        self.bytes[57] & 2 != 0
    }

    /// Row of this node's zone in the zone table, or [`NO_ZONE`].
    pub fn zone_index(&self) -> u16 {
        u16_at(self.bytes, 58)
    }

    /// Timeout of session affinity in milliseconds; 0: none.
    pub fn affinity_ms(&self) -> i64 {
        u64_at(self.bytes, 64) as i64
    }

    /// With [`NEED_NODES`], the position of this node among the sorted names of the Nodes that are ready.
    pub fn node_index(&self) -> Option<u32> {
        known(u32_at(self.bytes, 116))
    }

    /// With [`NEED_NODES`], the number of Nodes that are ready; 0: unknown.
    pub fn node_count(&self) -> u32 {
        u32_at(self.bytes, 120)
    }

    /// With [`NEED_CONNECTIONS`], how many milliseconds ago connections were counted.
    pub fn connections_age_ms(&self) -> Option<u32> {
        known(u32_at(self.bytes, 124))
    }

    /// With [`NEED_OUTCOMES`], the length of the last window in milliseconds; 0: not counted.
    pub fn outcomes_window_ms(&self) -> u32 {
        u32_at(self.bytes, 128)
    }

    /// Returns the number of endpoints.
    pub fn len(&self) -> usize {
        self.endpoints.count
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the endpoints, eligible or not, sorted by address.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        (0..self.len()).map(move |i| self.endpoint(i))
    }

    /// Returns endpoint i.
    ///
    /// # Panics
    /// If i is not less than [`Request::len`].
    pub fn endpoint(&self, i: usize) -> Endpoint {
        let b = match self.endpoints.record(self.bytes, i) {
            Some(b) => &b[..ENDPOINT_SIZE],
            None => out_of_range("endpoint", i, self.len()),
        };
        let mut address = [0; 16];
        address.copy_from_slice(&b[..16]);
        Endpoint {
            address,
            port: u16_at(b, 16),
            zone_index: u16_at(b, 18),
            conditions: u32_at(b, 20),
            node_id: u32_at(b, 24),
            zone_id: u32_at(b, 28),
            capacity: u32_at(b, 32),
            share: u32_at(b, 36),
            group: u16_at(b, 68),
            prior_weight: known(u32_at(b, 64)),
            ready_since_ms: u64_at(b, 40) as i64,
            terminating_since_ms: u64_at(b, 48) as i64,
            connections: known(u32_at(b, 56)),
            pod_id: u32_at(b, 60),
        }
    }

    /// Returns the number of groups of endpoints that share the connections, at least 1.
    pub fn groups(&self) -> usize {
        self.groups.count.max(1)
    }

    /// Returns the part of the connections that a group gets, relative to the other groups. 0 if there is no such group.
    pub fn group_part(&self, group: usize) -> u32 {
        match self.groups.record(self.bytes, group) {
            Some(b) => u32_at(b, 0),
            None if self.groups.count == 0 && group == 0 => ONE,
            None => 0,
        }
    }

    /// Returns the zones, sorted by name.
    pub fn zones(&self) -> impl Iterator<Item = Zone> + '_ {
        (0..self.zones.count).filter_map(move |i| {
            let b = self.zones.record(self.bytes, i)?;
            Some(Zone {
                zone_id: u32_at(b, 0),
                nodes: u32_at(b, 4),
                ready: u32_at(b, 8),
                serving: u32_at(b, 12),
                total: u32_at(b, 16),
                millicores: u64_at(b, 24),
            })
        })
    }

    /// Returns the outcomes of endpoint i. None if they are not counted.
    pub fn outcomes(&self, i: usize) -> Option<Outcomes> {
        let b = self.outcomes.record(self.bytes, i)?;
        Some(Outcomes {
            attempts: u32_at(b, 0),
            answered: u32_at(b, 4),
            refused: u32_at(b, 8),
            unanswered: u32_at(b, 12),
            total_attempts: u64_at(b, 16),
            total_answered: u64_at(b, 24),
            total_refused: u64_at(b, 32),
            total_unanswered: u64_at(b, 40),
            since_ms: u64_at(b, 48) as i64,
        })
    }

    /// Returns a value of the Pod or Node of endpoint i. None if that does not have it. key counts the declared keys of both.
    pub fn pod_value(&self, i: usize, key: usize) -> Option<&'a [u8]> {
        if key >= u32_at(self.bytes, 156) as usize {
            return None;
        }
        self.value(u32_at(self.values.record(self.bytes, i)?, 4 * key))
    }

    /// Returns a value of the Service or its namespace. None if that does not have it. key counts the declared keys of both.
    pub fn service_value(&self, key: usize) -> Option<&'a [u8]> {
        if key >= u32_at(self.bytes, 164) as usize {
            return None;
        }
        self.value(u32_at(self.bytes, u32_at(self.bytes, 160) as usize + 4 * key))
    }

    fn value(&self, id: u32) -> Option<&'a [u8]> {
        if id == ABSENT_STRING {
            return None;
        }
        Some(self.text(id))
    }

    /// Returns the text of a string id, any bytes. "" for [`NO_STRING`], [`ABSENT_STRING`] and unknown ids.
    pub fn text(&self, id: u32) -> &'a [u8] {
        self.string(id).unwrap_or(&[])
    }

    fn string(&self, id: u32) -> Option<&'a [u8]> {
        let record = |i| self.strings.record(self.bytes, i).filter(|b| u32_at(b, 0) == id);
        let indexed = self.strings.count.min(INDEX / 4 * 3);
        if !self.index.filled.replace(true) {
            for i in 0..indexed {
                let id = u32_at(self.strings.record(self.bytes, i)?, 0);
                let (slot, _) = self.index.probe(id).find(|(_, taken)| taken.is_none())?;
                slot.set((self.index.request.get() as u64) << 32 | i as u64);
            }
        }
        let found = self.index.probe(id).map_while(|(_, i)| i).find_map(record);
        let b = found.or_else(|| (indexed..self.strings.count).find_map(record))?;
        self.bytes.get(u32_at(b, 4) as usize..)?.get(..u32_at(b, 8) as usize)
    }

    /// Returns what this plugin last stored for endpoint i, all 0 at first and without [`NEED_ENDPOINT_STATE`].
    pub fn endpoint_state(&self, i: usize) -> [u8; ENDPOINT_STATE] {
        let mut state = [0; ENDPOINT_STATE];
        if let Some(b) = self.states.record(self.bytes, i) {
            state.copy_from_slice(&b[..ENDPOINT_STATE]);
        }
        state
    }

    /// Returns what this plugin last stored for this Service port and pool, "" at first.
    pub fn state(&self) -> &'a [u8] {
        match u32_at(self.bytes, 112) as usize {
            0 => &[],
            length => &self.bytes[u32_at(self.bytes, 108) as usize..][..length],
        }
    }
}

fn known(n: u32) -> Option<u32> {
    if n == NONE {
        None
    } else {
        Some(n)
    }
}

/// Algorithms of [`Response::set_balance`]. Mode nftables has random and source hash.
#[derive(Clone, Copy)]
pub enum Balance {
    Default,
    Random,
    RoundRobin,
    SourceHash,
    LeastConnections,
}

/// A response, at first one in which each endpoint keeps its capacity and share and no connection is reset.
pub struct Response<'a> {
    bytes: &'a mut [u8],
    endpoints: usize,
    role: Role,
    requeue_ms: u32,
    balance: Balance,
    tail: &'a mut Tail,
}

/// The reasons, the state and the groups of the response that is being made, which follow its results.
struct Tail {
    reasons: usize,
    reason_bytes: usize,
    ends: [u32; MAX_REASONS], // of the texts
    text: [u8; MAX_REASON_BYTES],
    has_state: bool,
    state_length: usize, // more than MAX_STATE: too much
    state: [u8; MAX_STATE],
    groups: usize, // more than MAX_GROUPS: too many
    states: bool,  // of endpoints: they follow the results
    no_room: bool, // for them
    counters: [u32; MAX_COUNTERS],
    parts: [u32; MAX_GROUPS],
    problem: Option<&'static str>,
}

impl<'a> Response<'a> {
    fn begin(request: &Request, bytes: &'a mut [u8], tail: &'a mut Tail) -> Option<Response<'a>> {
        let (endpoints, role) = (request.len(), request.role());
        if RESPONSE_SIZE as u64 + endpoints as u64 * RESULT_SIZE as u64 > bytes.len() as u64 {
            return None;
        }
        let results = bytes[RESPONSE_SIZE..].chunks_exact_mut(RESULT_SIZE);
        for (i, b) in results.take(endpoints).enumerate() {
            b.fill(0);
            let e = request.endpoint(i);
            let value = if role.writes_capacity() { e.capacity } else { e.share };
            b[..4].copy_from_slice(&value.to_le_bytes());
            b[8..14].fill(0xFF); // never reset, no reason
        }
        tail.reasons = 0;
        tail.reason_bytes = 0;
        tail.has_state = false;
        tail.state_length = 0;
        tail.groups = 0;
        tail.states = false;
        tail.no_room = false;
        tail.counters = [0; MAX_COUNTERS];
        tail.problem = None;
        Some(Response { bytes, endpoints, role, requeue_ms: 0, balance: Balance::Default, tail })
    }

    fn check(&self, i: usize) {
        if i >= self.endpoints {
            out_of_range("endpoint", i, self.endpoints)
        }
    }

    fn result(&mut self, i: usize) -> &mut [u8] {
        self.check(i);
        &mut self.bytes[RESPONSE_SIZE + i * RESULT_SIZE..][..RESULT_SIZE]
    }

    /// Returns the capacity or share of endpoint i so far. This and the methods below panic if there is no such endpoint.
    pub fn value(&mut self, i: usize) -> u32 {
        u32_at(self.result(i), 0)
    }

    /// Sets the capacity of endpoint i in millionths ([`ONE`]), 0 for no new connections. For plugins of the roles Exclude and Reduce.
    pub fn set_capacity(&mut self, i: usize, capacity: u64) {
        self.set(i, capacity, self.role.writes_capacity(), "set_capacity is for the roles Exclude and Reduce");
    }

    /// Sets what each unit of the capacity of endpoint i gets of the new connections of its group, relative to the other endpoints. For plugins
    /// of the roles Share, Locality, Pick and Adjust.
    pub fn set_share(&mut self, i: usize, share: u64) {
        let may = !self.role.writes_capacity() && self.role != Role::Reset;
        self.set(i, share, may, "set_share is for the roles Share, Locality, Pick and Adjust");
    }

    fn set(&mut self, i: usize, value: u64, may: bool, problem: &'static str) {
        let value = value.min(u32::MAX as u64) as u32;
        self.result(i)[..4].copy_from_slice(&value.to_le_bytes());
        if !may {
            self.tail.problem = Some(problem);
        }
    }

    /// Appends a group that gets a part of the connections, relative to the other groups, whatever the endpoints that it has. Returns its number
    /// for [`Response::set_group`]; every endpoint is in group 0 at first. For plugins of role Share. More than [`MAX_GROUPS`] make the decision
    /// fail.
    pub fn add_group(&mut self, part: u32) -> u16 {
        if self.role != Role::Share {
            self.tail.problem = Some("add_group is for the role Share");
        }
        if let Some(to) = self.tail.parts.get_mut(self.tail.groups) {
            *to = part;
        }
        self.tail.groups += 1;
        (self.tail.groups - 1) as u16
    }

    /// Puts endpoint i into a group.
    pub fn set_group(&mut self, i: usize, group: u16) {
        self.result(i)[14..].copy_from_slice(&group.to_le_bytes());
    }

    /// Keeps endpoint i as a draining endpoint after it is gone from the Service.
    pub fn keep_draining(&mut self, i: usize) {
        self.result(i)[4] = 1;
    }

    /// Resets a part of the established connections of endpoint i over the next minute, when the value changes. At most 1000.
    pub fn shed(&mut self, i: usize, permille: u16) {
        self.result(i)[6..8].copy_from_slice(&permille.min(1000).to_le_bytes());
    }

    /// Resets the connections of endpoint i that are still established after some milliseconds.
    pub fn reset_after(&mut self, i: usize, ms: u32) {
        self.result(i)[8..12].copy_from_slice(&ms.min(NONE - 1).to_le_bytes());
    }

    /// Says why endpoint i gets what it gets. Bytes that are not printable ASCII become "?". A text is cut to [`MAX_REASON`] bytes; when there
    /// are too many, it is left out.
    pub fn set_reason(&mut self, i: usize, reason: &[u8]) {
        let id = self.tail.add_reason(reason);
        self.result(i)[12..14].copy_from_slice(&id.to_le_bytes());
    }

    /// Asks to be called again after some milliseconds. The shortest of several calls wins; 0 or less counts as 1.
    pub fn requeue_after(&mut self, ms: i64) {
        let ms = ms.clamp(1, NONE as i64 - 1) as u32;
        if self.requeue_ms == 0 || ms < self.requeue_ms {
            self.requeue_ms = ms;
        }
    }

    /// Chooses an algorithm for new connections.
    pub fn set_balance(&mut self, balance: Balance) {
        self.balance = balance;
    }

    /// Stores a state for the next request about this Service port and pool. More than [`MAX_STATE`] bytes make the decision fail.
    pub fn set_state(&mut self, state: &[u8]) {
        self.tail.has_state = true;
        self.tail.state_length = state.len();
        if let Some(to) = self.tail.state.get_mut(..state.len()) {
            to.copy_from_slice(state);
        }
    }

    /// Stores the state of endpoint i for the next request that has it. Endpoints for which a decision stores none have none afterwards. For
    /// plugins with [`NEED_ENDPOINT_STATE`].
    pub fn set_endpoint_state(&mut self, i: usize, state: &[u8; ENDPOINT_STATE]) {
        self.check(i);
        let table = RESPONSE_SIZE + self.endpoints * RESULT_SIZE;
        if !self.tail.states {
            match self.bytes.get_mut(table..table + self.endpoints * ENDPOINT_STATE) {
                Some(b) => b.fill(0),
                None => {
                    self.tail.no_room = true;
                    return;
                }
            }
            self.tail.states = true;
        }
        self.bytes[table + i * ENDPOINT_STATE..][..ENDPOINT_STATE].copy_from_slice(state);
    }

    /// Adds to a counter of the plugin, by its number in the manifest: the metric sluice_plugin_counter_total. It is for what the decision
    /// begins, such as an ejection.
    pub fn count(&mut self, counter: usize, n: u32) {
        if let Some(c) = self.tail.counters.get_mut(counter) {
            *c = c.saturating_add(n);
        }
    }

    /// Writes the header, the reasons, the state and the groups. Returns the length of the response, or an error code.
    fn finish(self) -> i64 {
        let (b, tail) = (self.bytes, self.tail);
        let results = RESPONSE_SIZE + self.endpoints * RESULT_SIZE;
        let states = if tail.states { self.endpoints } else { 0 };
        let table = results + states * ENDPOINT_STATE;
        let (mut total, mut state, mut reasons, mut groups) = (table, 0, 0, 0);
        if tail.no_room {
            return no_room() as i64;
        }
        if let Some(problem) = tail.problem {
            return error(FAILED, problem) as i64;
        }
        if tail.state_length > MAX_STATE {
            return error(FAILED, "the state is longer than 1024 bytes") as i64;
        }
        if tail.groups > MAX_GROUPS {
            return error(FAILED, "there are more than 64 groups") as i64;
        }
        if states > 0 || tail.reasons > 0 || tail.has_state || tail.groups > 0 || self.requeue_ms > 0 || self.balance as u32 > 0 {
            let text = table + tail.reasons * 8;
            reasons = table;
            state = (text + tail.reason_bytes + 7) & !7;
            groups = (state + tail.state_length + 7) & !7;
            total = groups + tail.groups * GROUP_SIZE;
            if total > b.len() {
                return no_room() as i64;
            }
            b[table..total].fill(0);
            let mut begin = 0;
            for i in 0..tail.reasons {
                let end = tail.ends[i];
                b[table + i * 8..][..4].copy_from_slice(&(text as u32 + begin).to_le_bytes());
                b[table + i * 8 + 4..][..4].copy_from_slice(&(end - begin).to_le_bytes());
                begin = end;
            }
            b[text..][..tail.reason_bytes].copy_from_slice(&tail.text[..tail.reason_bytes]);
            b[state..][..tail.state_length].copy_from_slice(&tail.state[..tail.state_length]);
            for (i, part) in tail.parts[..tail.groups].iter().enumerate() {
                b[groups + i * GROUP_SIZE..][..4].copy_from_slice(&part.to_le_bytes());
            }
        }
        let header = [
            RESPONSE_MAGIC,
            total as u32,
            RESPONSE_SIZE as u32,
            RESPONSE_SIZE as u32,
            self.endpoints as u32,
            RESULT_SIZE as u32,
            self.requeue_ms,
            self.balance as u32,
            state as u32,
            tail.state_length as u32,
            reasons as u32,
            tail.reasons as u32,
            groups as u32,
            tail.groups as u32,
            if states > 0 { results as u32 } else { 0 },
            states as u32,
            tail.counters[0],
            tail.counters[1],
            tail.counters[2],
            tail.counters[3],
        ];
        for (i, word) in header.iter().enumerate() {
            b[i * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        total as i64
    }
}

impl Tail {
    const fn new() -> Tail {
        Tail {
            reasons: 0,
            reason_bytes: 0,
            ends: [0; MAX_REASONS],
            text: [0; MAX_REASON_BYTES],
            has_state: false,
            state_length: 0,
            state: [0; MAX_STATE],
            groups: 0,
            states: false,
            no_room: false,
            counters: [0; MAX_COUNTERS],
            parts: [0; MAX_GROUPS],
            problem: None,
        }
    }

    /// Returns the number of a reason. Equal texts are sent once.
    fn add_reason(&mut self, reason: &[u8]) -> u16 {
        let reason = &reason[..reason.len().min(MAX_REASON)];
        let (known, free) = self.text.split_at_mut(self.reason_bytes);
        let to = match free.get_mut(..reason.len()) {
            Some(to) => to,
            None => return NO_REASON,
        };
        for (to, c) in to.iter_mut().zip(reason) {
            *to = if (b' '..=b'~').contains(c) { *c } else { b'?' };
        }
        let mut begin = 0;
        for (i, end) in self.ends[..self.reasons].iter().enumerate() {
            if known.get(begin..*end as usize) == Some(to) {
                return i as u16;
            }
            begin = *end as usize;
        }
        if self.reasons == MAX_REASONS {
            return NO_REASON;
        }
        self.reason_bytes += reason.len();
        self.ends[self.reasons] = self.reason_bytes as u32;
        self.reasons += 1;
        self.reasons as u16 - 1
    }
}

/// A short text that is put together without a heap. What is beyond `N` bytes is cut.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Text<N> {
    pub fn new() -> Self {
        Self::default()
    }

    /// A text for constants. More than `N` bytes do not compile there.
    pub const fn of(text: &[u8]) -> Self {
        let mut bytes = [0; N];
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        Text { bytes, length: at }
    }

    pub fn push(mut self, text: impl AsRef<[u8]>) -> Self {
        for c in text.as_ref() {
            if self.length < N {
                self.bytes[self.length] = *c;
                self.length += 1;
            }
        }
        self
    }

    /// Appends a number in decimal.
    pub fn push_number(self, mut n: u64) -> Self {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return self.push(&digits[at..]);
            }
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Levels of [`log`].
#[derive(Clone, Copy)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Writes a line to the host's log.
pub fn log(level: Level, text: &str) {
    host::log(level as u32, text.as_bytes())
}

/// Writes the message of an error, and returns its code.
fn error(code: i32, text: &str) -> i32 {
    log(Level::Error, text);
    code
}

fn not_configured() -> i32 {
    error(NOT_CONFIGURED, "unknown settings handle")
}

/// Ends the call: index i of what there are n. In a host, the text is in its log.
#[cold]
fn out_of_range(what: &str, i: usize, n: usize) -> ! {
    let text = Text::<80>::new().push("sdk: index out of range: ").push(what).push(" ").push_number(i as u64).push(" of ").push_number(n as u64);
    host::end(text.as_bytes())
}

fn no_room() -> i32 {
    error(NO_ROOM, "the result does not fit the buffer")
}

/// A value in settings: JSON text. Its methods return None for any other value.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    text: &'a [u8],
}

impl<'a> Value<'a> {
    pub fn integer(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let n = whole(self.text)?;
        u32::try_from(n).ok().filter(|n| range.contains(n))
    }

    /// A number of at most six decimals, in millionths: [`ONE`] is 1.
    pub fn fraction(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let point = self.text.iter().position(|c| *c == b'.').unwrap_or(self.text.len());
        let decimals = self.text.get(point + 1..).unwrap_or(b"0");
        if decimals.is_empty() || decimals.len() > 6 || !decimals.iter().all(|c| c.is_ascii_digit()) {
            return None;
        }
        let below = (0..6).fold(0, |n, i| n * 10 + decimals.get(i).map_or(0, |c| (c - b'0') as u64));
        let n = whole(&self.text[..point])?.checked_mul(ONE as u64)?.checked_add(below)?;
        Some(n).filter(|n| range.contains(n))
    }

    /// Milliseconds of a text such as "30s", "1m30s" or "500ms": one to four integers of at most five digits, each with the unit h, m, s
    /// or ms, as in the Gateway API (GEP-2257).
    pub fn duration(&self, range: RangeInclusive<u64>) -> Option<u64> {
        match self.text {
            [b'"', text @ .., b'"'] => duration(text).filter(|n| range.contains(n)),
            _ => None,
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match self.text {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// A text of at least so many bytes, and at most `N`.
    pub fn text<const N: usize>(&self, least: usize) -> Option<Text<N>> {
        let mut s = match self.text {
            [b'"', text @ .., b'"'] => Scanner { rest: text },
            _ => return None,
        };
        let mut out = Text::new();
        while let Some(c) = s.rest.first() {
            let (mut utf8, mut bytes) = ([0; 4], &s.rest[..1]);
            s.rest = &s.rest[1..];
            if *c < b' ' {
                return None;
            }
            if *c == b'\\' {
                bytes = s.escape()?.encode_utf8(&mut utf8).as_bytes();
            }
            if out.length + bytes.len() > N {
                return None;
            }
            out = out.push(bytes);
        }
        Some(out).filter(|t| t.length >= least)
    }

    /// The items of a list.
    pub fn list(&self) -> Option<List<'a>> {
        let mut s = Scanner { rest: self.text };
        if !s.skip(b'[') {
            return None;
        }
        let mut check = List { rest: Scanner { rest: s.rest }, first: true };
        while check.next().is_some() {}
        if !check.rest.skip(b']') {
            return None;
        }
        Some(List { rest: s, first: true })
    }

    /// The fields of an object, as [`parse`] passes those of the settings.
    pub fn object(&self, field: impl FnMut(&[u8], Value<'a>) -> Result<(), &'static str>) -> Result<(), &'static str> {
        parse(self.text, field)
    }
}

/// The items of a list in settings.
pub struct List<'a> {
    rest: Scanner<'a>,
    first: bool,
}

impl<'a> Iterator for List<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if core::mem::take(&mut self.first) {
            self.rest.space();
            if self.rest.rest.first() == Some(&b']') {
                return None;
            }
        } else if !self.rest.skip(b',') {
            return None;
        }
        let value = self.rest.value();
        if value.is_none() {
            self.rest.rest = b""; // a comma that nothing follows
        }
        value
    }
}

/// Parses settings, a JSON object. `field` gets the name and the value of each field, and returns the message of an error. Names do not have
/// escapes.
pub fn parse<'a>(text: &'a [u8], mut field: impl FnMut(&[u8], Value<'a>) -> Result<(), &'static str>) -> Result<(), &'static str> {
    let mut s = Scanner { rest: text };
    if !s.skip(b'{') {
        return Err("settings must be a JSON object");
    }
    if !s.skip(b'}') {
        loop {
            let name = s.name().ok_or("settings: want the name of a field")?;
            if !s.skip(b':') {
                return Err("settings: want : after the name of a field");
            }
            field(name, s.value().ok_or("settings: want a value")?)?;
            if s.skip(b'}') {
                break;
            }
            if !s.skip(b',') {
                return Err("settings: want , or } after a value");
            }
        }
    }
    s.space();
    if s.rest.is_empty() {
        Ok(())
    } else {
        Err("settings: unexpected text after the JSON object")
    }
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn space(&mut self) {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Skips a character, and white space before it. Reports whether it was there.
    fn skip(&mut self, want: u8) -> bool {
        self.space();
        match self.rest {
            [c, rest @ ..] if *c == want => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        if !self.skip(b'"') {
            return None;
        }
        let end = self.rest.iter().position(|c| *c == b'"')?;
        let (name, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Some(name)
    }

    /// Takes a value: a text, a list or an object up to its end, anything else up to what cannot belong to it.
    fn value(&mut self) -> Option<Value<'a>> {
        self.space();
        let (mut depth, mut quoted, mut at) = (0, false, 0);
        loop {
            match self.rest.get(at) {
                None if depth > 0 || quoted => return None,
                None => break,
                Some(b'\\') if quoted => at += 1,
                Some(b'"') => quoted = !quoted,
                Some(_) if quoted => {}
                Some(b'[' | b'{') => depth += 1,
                Some(b']' | b'}') if depth > 0 => depth -= 1,
                Some(b']' | b'}' | b',' | b' ' | b'\n' | b'\r' | b'\t') if depth == 0 => break,
                Some(_) => {}
            }
            at += 1;
        }
        let (text, rest) = self.rest.split_at(at.min(self.rest.len()));
        self.rest = rest;
        Some(Value { text }).filter(|v| !v.text.is_empty())
    }

    /// Takes an escape, after its backslash. A surrogate without its other half is U+FFFD.
    fn escape(&mut self) -> Option<char> {
        let (c, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match c {
            b'"' | b'\\' | b'/' => *c as char,
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.unit()?;
                if let (0xD800..=0xDBFF, [b'\\', b'u', rest @ ..]) = (high, self.rest) {
                    let mut low = Scanner { rest };
                    if let Some(n @ 0xDC00..=0xDFFF) = low.unit() {
                        self.rest = low.rest;
                        return char::from_u32(0x10000 + ((high - 0xD800) << 10) + (n - 0xDC00));
                    }
                }
                char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        self.rest = &self.rest[4..];
        digits.iter().try_fold(0, |n, c| Some(n * 16 + (*c as char).to_digit(16)?))
    }
}

/// Returns an integer of at most ten digits.
fn whole(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 10 || digits[0] == b'0' && digits.len() > 1 || !digits.iter().all(|c| c.is_ascii_digit()) {
        return None;
    }
    Some(digits.iter().fold(0, |n, c| n * 10 + (c - b'0') as u64))
}

fn duration(mut text: &[u8]) -> Option<u64> {
    let mut sum = 0;
    for _ in 0..4 {
        let digits = text.iter().position(|c| !c.is_ascii_digit()).filter(|n| (1..=5).contains(n))?;
        let n = text[..digits].iter().fold(0, |n, c| n * 10 + (c - b'0') as u64);
        let (unit, rest) = match &text[digits..] {
            [b'm', b's', rest @ ..] => (1, rest),
            [b'h', rest @ ..] => (3_600_000, rest),
            [b'm', rest @ ..] => (60_000, rest),
            [b's', rest @ ..] => (1000, rest),
            _ => return None,
        };
        sum += n * unit;
        if rest.is_empty() {
            return Some(sum);
        }
        text = rest;
    }
    None
}

/// A plugin with the settings that it has got. [`register!`] makes one of a module; a native test makes its own.
pub struct Instance<P: Plugin> {
    settings: [MaybeUninit<P>; MAX_SETTINGS],
    count: usize,
    index: Index,
    tail: Tail,
}

impl<P: Plugin> Instance<P> {
    pub const fn new() -> Instance<P> {
        // SAFETY: an array of values that may be uninitialized needs no initialization.
        let settings = unsafe { MaybeUninit::<[MaybeUninit<P>; MAX_SETTINGS]>::uninit().assume_init() };
        Instance { settings, count: 0, index: Index::new(), tail: Tail::new() }
    }

    /// Returns the handle of settings, or an error code.
    pub fn configure(&mut self, settings: &[u8]) -> i32 {
        let parsed = P::configure(settings).and_then(|p| {
            *self.settings.get_mut(self.count).ok_or("too many settings")? = MaybeUninit::new(p);
            Ok(())
        });
        if let Err(text) = parsed {
            return error(FAILED, text);
        }
        self.count += 1;
        self.count as i32 - 1
    }

    fn settings(&self, handle: u32) -> Option<P> {
        if handle == NONE {
            return Some(P::DEFAULT);
        }
        let p = self.settings[..self.count].get(handle as usize)?;
        // SAFETY: the first `count` have been written.
        Some(unsafe { p.assume_init() })
    }

    /// Returns the bits of the inputs, or an error code.
    pub fn needs(&self, handle: u32) -> i32 {
        self.settings(handle).map_or_else(not_configured, |p| p.needs() as i32)
    }

    /// Writes the declared keys. Returns their length, or an error code.
    pub fn keys(&self, handle: u32, to: &mut [u8]) -> i32 {
        let keys = match self.settings(handle) {
            Some(p) => p.keys().as_bytes(),
            None => return not_configured(),
        };
        match to.get_mut(..keys.len()) {
            Some(to) => to.copy_from_slice(keys),
            None => return no_room(),
        }
        keys.len() as i32
    }

    /// Answers a request. Returns the length of the response, or an error code.
    pub fn decide(&mut self, request: &[u8], response: &mut [u8]) -> i64 {
        self.index.begin();
        let request = match Request::read(request, &self.index) {
            Some(r) => r,
            None => return error(BAD_REQUEST, "malformed request") as i64,
        };
        let p = match self.settings(u32_at(request.bytes, 60)) {
            Some(p) => p,
            None => return not_configured() as i64,
        };
        let mut response = match Response::begin(&request, response, &mut self.tail) {
            Some(r) => r,
            None => return no_room() as i64,
        };
        if let Err(text) = p.decide(&request, &mut response) {
            return error(FAILED, text) as i64;
        }
        response.finish()
    }
}

/// Makes the exports of a module for a type that implements [`Plugin`].
#[macro_export]
macro_rules! register {
    ($plugin:ty) => {
        // A native build has no exports, and would find the plugin to be unused.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() -> $plugin = || <$plugin as $crate::sluice::Plugin>::DEFAULT;

        #[cfg(target_arch = "wasm32")]
        mod sluice_exports {
            use super::*;
            use core::{ptr::addr_of_mut, slice};

            static mut INSTANCE: $crate::sluice::Instance<$plugin> = $crate::sluice::Instance::new();

            // SAFETY of all exports: the host passes buffers of sluice_alloc with their lengths, and does not call twice at the same time.

            #[no_mangle]
            unsafe extern "C" fn sluice_configure(settings: *const u8, length: u32) -> i32 {
                (*addr_of_mut!(INSTANCE)).configure(slice::from_raw_parts(settings, length as usize))
            }

            #[no_mangle]
            unsafe extern "C" fn sluice_needs(settings: u32) -> i32 {
                (*addr_of_mut!(INSTANCE)).needs(settings)
            }

            #[no_mangle]
            unsafe extern "C" fn sluice_keys(settings: u32, keys: *mut u8, room: u32) -> i32 {
                (*addr_of_mut!(INSTANCE)).keys(settings, slice::from_raw_parts_mut(keys, room as usize))
            }

            #[no_mangle]
            unsafe extern "C" fn sluice_decide(request: *const u8, length: u32, response: *mut u8, room: u32) -> i64 {
                let request = slice::from_raw_parts(request, length as usize);
                (*addr_of_mut!(INSTANCE)).decide(request, slice::from_raw_parts_mut(response, room as usize))
            }
        }
    };
}
pub(crate) use register;

#[cfg(target_arch = "wasm32")]
mod host {
    use core::ptr::{addr_of, addr_of_mut};

    mod import {
        #[link(wasm_import_module = "sluice")]
        extern "C" {
            pub fn log(level: u32, text: *const u8, length: u32);
        }
    }

    pub fn log(level: u32, text: &[u8]) {
        // SAFETY: the host reads the text only.
        unsafe { import::log(level, text.as_ptr(), text.len() as u32) }
    }

    pub fn end(text: &[u8]) -> ! {
        log(super::Level::Error as u32, text);
        core::arch::wasm32::unreachable()
    }

    extern "C" {
        static __heap_base: u8;
    }

    static mut TOP: usize = 0;

    /// Memory for the host, which never frees it.
    #[no_mangle]
    extern "C" fn sluice_alloc(size: u32) -> usize {
        const PAGE: usize = 1 << 16;
        // SAFETY: a module has one thread, and nothing else uses the memory behind the linked data.
        unsafe {
            let top = addr_of_mut!(TOP);
            if *top == 0 {
                *top = (addr_of!(__heap_base) as usize + 7) & !7;
            }
            let at = *top;
            let end = match at.checked_add(size as usize) {
                Some(end) if end <= usize::MAX - 7 => (end + 7) & !7,
                _ => return 0,
            };
            let have = core::arch::wasm32::memory_size(0) * PAGE;
            if end > have && core::arch::wasm32::memory_grow(0, (end - have + PAGE - 1) / PAGE) == usize::MAX {
                return 0;
            }
            *top = end;
            at
        }
    }

    #[no_mangle]
    extern "C" fn sluice_abi_version() -> u32 {
        super::ABI
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo) -> ! {
        core::arch::wasm32::unreachable()
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod host {
    pub fn log(_: u32, text: &[u8]) {
        #[cfg(any(test, feature = "testing"))]
        super::testing::LOGGED.with(|l| l.borrow_mut().push(String::from_utf8_lossy(text).into_owned()));
    }

    pub fn end(text: &[u8]) -> ! {
        panic!("{}", core::str::from_utf8(text).unwrap_or_default())
    }
}

/// For native tests of a plugin: requests as a host encodes them, and decisions as it reads them.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;
    use std::{boxed::Box, cell::RefCell, string::String, vec, vec::Vec};

    std::thread_local! {
        pub(super) static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Returns what the plugin has logged in this thread since the last call, and forgets it.
    pub fn logged() -> Vec<String> {
        LOGGED.with(|l| l.take())
    }

    /// An endpoint of a request. Zones are names.
    #[derive(Clone)]
    pub struct Sample {
        pub address: [u8; 16],
        pub port: u16,
        pub conditions: u32,
        pub zone: &'static str,
        pub capacity: u32,
        pub share: u32,
        pub group: u16,
        pub prior_weight: Option<u32>,
        pub ready_since_ms: i64,
        pub connections: Option<u32>,
    }

    /// Returns an endpoint in a zone that is ready since long ago and chosen by the default rules.
    pub fn ready(zone: &'static str) -> Sample {
        let conditions = READY | SERVING | CHOSEN | ELIGIBLE;
        Sample { address: [0; 16], port: 8080, conditions, zone, capacity: ONE, share: ONE, group: 0, prior_weight: None, ready_since_ms: 1, connections: None }
    }

    /// Returns an endpoint in a zone that is not ready.
    pub fn unready(zone: &'static str) -> Sample {
        Sample { conditions: 0, capacity: 0, ready_since_ms: 0, ..ready(zone) }
    }

    /// What a plugin has decided.
    #[derive(Debug, PartialEq)]
    pub struct Decision {
        /// Capacities or shares, by the role.
        pub values: Vec<u32>,
        /// Of the endpoints.
        pub groups: Vec<u16>,
        /// Of the groups; empty: they stay what they are.
        pub parts: Vec<u32>,
        pub reasons: Vec<String>,
        pub requeue_ms: u32,
        pub state: Vec<u8>,
    }

    /// A node that asks a plugin about one Service port, over time. It carries state and weights, in thousandths, from a decision to the next
    /// request, by the addresses of endpoints; those that have none get one by their position.
    pub struct Node<P: Plugin> {
        instance: Box<Instance<P>>,
        role: Role,
        settings: u32,
        zone: &'static str,
        pub now_ms: i64,
        /// Parts of the groups that a plugin before has set.
        pub parts: Vec<u32>,
        state: Vec<u8>,
        prior: Vec<([u8; 16], u16, u32)>,
    }

    impl<P: Plugin> Node<P> {
        /// Returns a node in a zone, for a plugin of a role with settings; "": none. An error is the text that the plugin has logged.
        pub fn new(role: Role, zone: &'static str, settings: &str) -> Result<Node<P>, String> {
            let mut instance = Box::new(Instance::new());
            let mut handle = NONE;
            if !settings.is_empty() {
                let n = instance.configure(settings.as_bytes());
                if n < 0 {
                    return Err(logged().pop().unwrap_or_default());
                }
                handle = n as u32;
            }
            Ok(Node { instance, role, settings: handle, zone, now_ms: 1_000_000, parts: vec![], state: vec![], prior: vec![] })
        }

        /// Returns the weights of the last decision, in thousandths.
        pub fn prior_weights(&self) -> Vec<u32> {
            self.prior.iter().map(|p| p.2).collect()
        }

        /// Asks for a decision. An error is what the plugin has logged, or the code.
        pub fn decide(&mut self, endpoints: &[Sample]) -> Result<Decision, String> {
            let mut endpoints = endpoints.to_vec();
            for (i, e) in endpoints.iter_mut().enumerate() {
                if e.address == [0; 16] {
                    e.address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, (i >> 8) as u8, i as u8];
                }
                if let Some(p) = self.prior.iter().find(|p| p.0 == e.address && p.1 == e.port) {
                    e.prior_weight = Some(p.2);
                }
            }
            let request = self.encode(&endpoints);
            let mut response = vec![0; RESPONSE_SIZE + endpoints.len() * RESULT_SIZE + MAX_STATE + MAX_REASONS * 8 + MAX_REASON_BYTES + MAX_GROUPS * GROUP_SIZE];
            let n = self.instance.decide(&request, &mut response);
            if n < 0 {
                return Err(logged().pop().unwrap_or_else(|| std::format!("code {}", n)));
            }
            let b = &response[..n as usize];
            let text = |at: usize| b[u32_at(b, at) as usize..][..u32_at(b, at + 4) as usize].to_vec();
            let result = |i: usize| RESPONSE_SIZE + i * RESULT_SIZE;
            let reason = |i: usize| match u16_at(b, result(i) + 12) {
                NO_REASON => String::new(),
                id => String::from_utf8(text(u32_at(b, 40) as usize + id as usize * 8)).expect("a reason in UTF-8"),
            };
            let decision = Decision {
                values: (0..endpoints.len()).map(|i| u32_at(b, result(i))).collect(),
                groups: (0..endpoints.len()).map(|i| u16_at(b, result(i) + 14)).collect(),
                parts: (0..u32_at(b, 52) as usize).map(|g| u32_at(b, u32_at(b, 48) as usize + g * GROUP_SIZE)).collect(),
                reasons: (0..endpoints.len()).map(reason).collect(),
                requeue_ms: u32_at(b, 24),
                state: text(32),
            };
            self.state = decision.state.clone();
            let weights = self.weights(&endpoints, &decision);
            self.prior = endpoints.iter().zip(weights).map(|(e, w)| (e.address, e.port, w)).collect();
            Ok(decision)
        }

        /// Returns the weights of a decision in thousandths, if no other plugin follows.
        fn weights(&self, endpoints: &[Sample], d: &Decision) -> Vec<u32> {
            let parts = if d.parts.is_empty() { &self.parts } else { &d.parts };
            let load = |i: usize| match self.role {
                Role::Reset => endpoints[i].capacity as f64 * endpoints[i].share as f64,
                role if role.writes_capacity() => d.values[i] as f64 * endpoints[i].share as f64,
                _ => endpoints[i].capacity as f64 * d.values[i] as f64,
            };
            let group = |i: usize| if d.parts.is_empty() { endpoints[i].group } else { d.groups[i] };
            let mut loads = vec![0.0; parts.len().max(1)];
            (0..endpoints.len()).for_each(|i| loads[group(i) as usize] += load(i));
            let part = |g: usize| if loads[g] > 0.0 { *parts.get(g).unwrap_or(&1) as f64 } else { 0.0 };
            let total: f64 = (0..loads.len()).map(part).sum();
            let weight = |i: usize| match load(i) * part(group(i) as usize) {
                l if l > 0.0 => (l / loads[group(i) as usize] / total * 1000.0).max(1.0) as u32,
                _ => 0,
            };
            (0..endpoints.len()).map(weight).collect()
        }

        /// Encodes a request as a host does.
        fn encode(&self, endpoints: &[Sample]) -> Vec<u8> {
            let mut names: Vec<&str> = vec!["default", "web", "node-1"];
            let mut id = |name: &'static str| match names.iter().position(|n| *n == name) {
                _ if name.is_empty() => NO_STRING,
                Some(at) => at as u32,
                None => {
                    names.push(name);
                    names.len() as u32 - 1
                }
            };
            let mut b = vec![0; REQUEST_SIZE];
            let node_zone = id(self.zone);
            for e in endpoints {
                b.extend_from_slice(&e.address);
                b.extend_from_slice(&e.port.to_le_bytes());
                b.extend_from_slice(&NO_ZONE.to_le_bytes());
                for word in [e.conditions, 2, id(e.zone), e.capacity, e.share] {
                    b.extend_from_slice(&word.to_le_bytes());
                }
                b.extend_from_slice(&e.ready_since_ms.to_le_bytes());
                b.extend_from_slice(&0i64.to_le_bytes());
                b.extend_from_slice(&e.connections.unwrap_or(NONE).to_le_bytes());
                for word in [NO_STRING, e.prior_weight.unwrap_or(NONE), e.group as u32] {
                    b.extend_from_slice(&word.to_le_bytes());
                }
            }
            let groups = b.len();
            for part in &self.parts {
                b.extend_from_slice(&[*part, 0].map(u32::to_le_bytes).concat());
            }
            let strings = b.len();
            let mut at = strings + 16 * names.len();
            for (i, name) in names.iter().enumerate() {
                for word in [i as u32, at as u32, name.len() as u32, 0] {
                    b.extend_from_slice(&word.to_le_bytes());
                }
                at += name.len();
            }
            for name in &names {
                b.extend_from_slice(name.as_bytes());
            }
            b.resize((b.len() + 7) & !7, 0);
            let state = b.len();
            b.extend_from_slice(&self.state);
            let total = b.len() as u32;
            let mut put = |at: usize, word: u32| b[at..at + 4].copy_from_slice(&word.to_le_bytes());
            put(0, REQUEST_MAGIC);
            put(4, 2);
            put(8, total);
            put(12, REQUEST_SIZE as u32);
            put(16, self.now_ms as u32);
            put(20, (self.now_ms >> 32) as u32);
            for (i, word) in [0, 1, NO_STRING, 2, node_zone].iter().enumerate() {
                put(32 + 4 * i, *word);
            }
            put(52, 80 | 6 << 16 | 4 << 24);
            put(56, (NO_ZONE as u32) << 16);
            put(60, self.settings);
            for (i, word) in [REQUEST_SIZE, endpoints.len(), ENDPOINT_SIZE, 0, 0, 32, strings, names.len(), 16, state, self.state.len()].iter().enumerate() {
                put(72 + 4 * i, *word as u32);
            }
            put(116, NONE);
            put(124, NONE);
            put(140, 56);
            put(168, groups as u32);
            put(172, self.parts.len() as u32);
            put(176, GROUP_SIZE as u32);
            put(180, self.role as u32);
            b
        }
    }
}
