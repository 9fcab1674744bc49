/* Header for sluice plugins in C: the wire form of ABI 2.1. There is no libc in the sandbox.
 * Build: clang --target=wasm32 -O2 -nostdlib -ffreestanding -fno-builtin -Wl,--no-entry -I sdk/c plugin.c -o plugin.wasm
 * sdk/ABI.md is the specification. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdint.h>

#ifdef __wasm__
#define SLUICE_EXPORT(name) __attribute__((export_name(name)))
#define SLUICE_IMPORT(name) __attribute__((import_module("sluice"), import_name(name)))
#else /* a native test, which defines sluice_log */
#define SLUICE_EXPORT(name)
#define SLUICE_IMPORT(name)
#endif

enum { SLUICE_ABI = 2 << 16 | 1 };

/* What a plugin decides: the role of a request, which is that of the module's manifest. */
enum {
	SLUICE_EXCLUDE = 1, SLUICE_REDUCE, /* results have capacities */
	SLUICE_SHARE, SLUICE_LOCALITY, SLUICE_PICK, SLUICE_RESET, SLUICE_ADJUST, /* results have shares; ignored for SLUICE_RESET */
};

#define SLUICE_ONE 1000000 /* the capacity of an ordinary endpoint, and its share at first */

/* Bits of sluice_needs. A host refuses a module that needs what it cannot give. */
enum { SLUICE_NEED_CONNECTIONS = 1, SLUICE_NEED_OUTCOMES = 2, SLUICE_NEED_NODES = 4, SLUICE_NEED_POD_NAMES = 8, SLUICE_NEED_ENDPOINT_STATE = 16 };

/* Bits of an endpoint's conditions. */
enum {
	SLUICE_READY = 1, SLUICE_SERVING = 2, SLUICE_TERMINATING = 4, SLUICE_LOCAL = 8,
	SLUICE_CHOSEN = 16, SLUICE_HINTED_ZONE = 32, SLUICE_HINTED_NODE = 64,
	SLUICE_ELIGIBLE = 128, /* may have capacity */
	SLUICE_HELD = 256,     /* eligible only because of the panic hold */
};

enum { SLUICE_KEEP_DRAINING = 1 }; /* flags of a result */
enum { SLUICE_FAILED = -1, SLUICE_BAD_REQUEST = -2, SLUICE_NO_ROOM = -3, SLUICE_NOT_CONFIGURED = -4 };
enum { SLUICE_DEBUG, SLUICE_INFO, SLUICE_WARN, SLUICE_ERROR }; /* levels of sluice_log */

#define SLUICE_NEVER UINT32_MAX     /* reset_after_ms */
#define SLUICE_NO_REASON UINT16_MAX /* reason */
#define SLUICE_NO_STRING UINT32_MAX /* string id of "" */
#define SLUICE_ABSENT_STRING (UINT32_MAX - 1) /* string id of a value that the object does not have */
#define SLUICE_NO_ZONE UINT16_MAX     /* index of a zone that is not in the zone table */
#define SLUICE_NO_SETTINGS UINT32_MAX /* settings handle */
#define SLUICE_NO_INDEX UINT32_MAX    /* node_index: unknown */
#define SLUICE_NO_AGE UINT32_MAX      /* connections_age_ms: not counted */
#define SLUICE_UNCOUNTED UINT32_MAX   /* connections */

typedef struct { uint32_t offset, count, stride; } sluice_area; /* offset from the start of the message */

typedef struct {
	uint32_t magic;
	uint16_t major, minor;
	uint32_t total, header_length;
	int64_t now_ms; /* Unix, a multiple of 1000; setting the wall clock does not change it */
	uint64_t generation;
	uint32_t namespace_id, service_id, port_name_id, node_id, zone_id; /* string ids */
	uint16_t port;
	uint8_t protocol, family, pool, policy;
	uint16_t zone_index; /* row of this node's zone, SLUICE_NO_ZONE */
	uint32_t settings; /* handle of sluice_configure, SLUICE_NO_SETTINGS */
	int64_t affinity_ms;
	sluice_area endpoints, zones, strings;
	uint32_t state_offset, state_length;
	uint32_t node_index, node_count; /* SLUICE_NO_INDEX and 0 unless SLUICE_NEED_NODES */
	uint32_t connections_age_ms; /* SLUICE_NO_AGE unless SLUICE_NEED_CONNECTIONS */
	uint32_t outcomes_window_ms; /* 0: not counted, or not SLUICE_NEED_OUTCOMES */
	sluice_area outcomes, values; /* one record for each endpoint, or none */
	uint32_t pod_keys; /* values for each endpoint */
	uint32_t service_values_offset, service_values_count;
	sluice_area groups; /* none: one group has all connections */
	uint32_t role; /* SLUICE_EXCLUDE … SLUICE_ADJUST */
	sluice_area endpoint_states; /* one record for each endpoint, or none: see sluice_endpoint_state; hosts of version 2.0 have none of it */
	uint32_t zero;
} sluice_request;

typedef struct {
	uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
	uint16_t port, zone_index; /* row of its zone, SLUICE_NO_ZONE */
	uint32_t conditions, node_id, zone_id;
	uint32_t capacity, share; /* from the previous plugin of the chain, or the default rules */
	int64_t ready_since_ms, terminating_since_ms; /* 0: not */
	uint32_t connections, pod_id;
	int32_t prior_weight; /* of the chain's last answer; -1: none */
	uint16_t group, zero;
} sluice_endpoint;

typedef struct { uint32_t part, zero; } sluice_group;

typedef struct {
	uint32_t zone_id, nodes, ready, serving, total, zero;
	uint64_t millicores;
} sluice_zone;

typedef struct {
	uint32_t attempts, answered, refused, unanswered; /* in the last window */
	uint64_t total_attempts, total_answered, total_refused, total_unanswered; /* since since_ms */
	int64_t since_ms;
} sluice_outcomes;

typedef struct { uint32_t id, offset, length, zero; } sluice_string;

typedef struct {
	uint32_t magic, total, header_length;
	sluice_area results;
	uint32_t requeue_ms, balance, state_offset, state_length, reasons_offset, reasons_count, groups_offset, groups_count;
	uint32_t endpoint_states_offset, endpoint_states_count;
	uint32_t counters[4]; /* see sluice_count */
} sluice_response;

typedef struct {
	uint32_t value; /* capacity or share, by the role */
	uint16_t flags, shed_permille;
	uint32_t reset_after_ms;
	uint16_t reason, group;
} sluice_result;

typedef struct { uint32_t offset, length; } sluice_reason;

_Static_assert(sizeof(sluice_request) == 200, "layout");
_Static_assert(sizeof(sluice_endpoint) == 72, "layout");
_Static_assert(sizeof(sluice_group) == 8, "layout");
_Static_assert(sizeof(sluice_zone) == 32, "layout");
_Static_assert(sizeof(sluice_outcomes) == 56, "layout");
_Static_assert(sizeof(sluice_response) == 80, "layout");
_Static_assert(sizeof(sluice_result) == 16, "layout");

SLUICE_IMPORT("log")
void sluice_log(uint32_t level, const char *text, uint32_t length);

/* Writes the message of an error to the host's log, and returns its code. */
static inline int32_t sluice_error(int32_t code, const char *text) {
	uint32_t n = 0;
	while (text[n])
		n++;
	sluice_log(SLUICE_ERROR, text, n);
	return code;
}

static inline int32_t sluice_fail(const char *text) { return sluice_error(SLUICE_FAILED, text); }

/* Returns the error code of a settings handle that sluice_configure has not returned. */
static inline int32_t sluice_not_configured(void) { return sluice_error(SLUICE_NOT_CONFIGURED, "unknown settings handle"); }

static inline int32_t sluice_no_room(void) { return sluice_error(SLUICE_NO_ROOM, "the result does not fit the buffer"); }

/* Ends the call: index i of what there are n. The host's error has the line of the log. */
__attribute__((noinline, noreturn, cold, unused)) static void sluice_out_of_range(const char *what, uint32_t i, uint32_t n) {
	char text[80];
	uint32_t at = 0;
	const char *parts[] = { "sdk: index out of range: ", what, " ", 0, " of ", 0 };
	for (uint32_t k = 0; k < 6; k++) {
		uint32_t number = k == 3 ? i : n, divisor = 1;
		for (; !parts[k] && number / divisor >= 10; divisor *= 10)
			;
		for (; !parts[k] && divisor; divisor /= 10)
			text[at++] = (char)('0' + number / divisor % 10);
		for (const char *c = parts[k]; c && *c; c++)
			text[at++] = *c;
	}
	sluice_log(SLUICE_ERROR, text, at);
	__builtin_trap();
}

/* Returns index i, which must be less than n, or ends the call. */
static inline uint32_t sluice_index_of(const char *what, uint32_t i, uint32_t n) {
	if (i >= n)
		sluice_out_of_range(what, i, n);
	return i;
}

/* Returns endpoint i. An index that is out of range ends the call, here and below, and the error names it. */
static inline const sluice_endpoint *sluice_endpoint_at(const sluice_request *r, uint32_t i) {
	i = sluice_index_of("endpoint", i, r->endpoints.count);
	return (const sluice_endpoint *)((const char *)r + r->endpoints.offset + i * r->endpoints.stride);
}

/* Returns the part of the connections of the group of an endpoint, relative to the other groups; SLUICE_ONE without groups. */
static inline uint32_t sluice_part_of(const sluice_request *r, const sluice_endpoint *e) {
	if (e->group >= r->groups.count)
		return SLUICE_ONE;
	return ((const sluice_group *)((const char *)r + r->groups.offset + e->group * r->groups.stride))->part;
}

static inline const sluice_zone *sluice_zone_at(const sluice_request *r, uint32_t i) {
	i = sluice_index_of("zone", i, r->zones.count);
	return (const sluice_zone *)((const char *)r + r->zones.offset + i * r->zones.stride);
}

/* Returns the outcomes of an endpoint, 0 if they are not counted. */
static inline const sluice_outcomes *sluice_outcomes_at(const sluice_request *r, uint32_t i) {
	i = sluice_index_of("endpoint", i, r->endpoints.count);
	if (!r->outcomes.count)
		return 0;
	return (const sluice_outcomes *)((const char *)r + r->outcomes.offset + i * r->outcomes.stride);
}

/* Returns the string id of a value of an endpoint's Pod or Node, or SLUICE_ABSENT_STRING. key counts the declared keys of both. */
static inline uint32_t sluice_pod_value(const sluice_request *r, uint32_t i, uint32_t key) {
	i = sluice_index_of("endpoint", i, r->endpoints.count);
	if (!r->values.count || key >= r->pod_keys)
		return SLUICE_ABSENT_STRING;
	return ((const uint32_t *)((const char *)r + r->values.offset + i * r->values.stride))[key];
}

/* Returns the string id of a value of the Service or its namespace, or SLUICE_ABSENT_STRING. key counts the declared keys of both. */
static inline uint32_t sluice_service_value(const sluice_request *r, uint32_t key) {
	if (key >= r->service_values_count)
		return SLUICE_ABSENT_STRING;
	return ((const uint32_t *)((const char *)r + r->service_values_offset))[key];
}

/* Positions of the strings of a request by their ids: open addressing. A slot whose request is another is free. sluice_begin begins it, and
 * the first sluice_text fills it. */
enum { SLUICE_INDEX = 1 << 14, SLUICE_INDEXED = SLUICE_INDEX / 4 * 3 };
static struct {
	uint32_t request, filled;
	struct { uint32_t request, position; } slots[SLUICE_INDEX];
} sluice_index;

static inline const sluice_string *sluice_string_at(const sluice_request *r, uint32_t i) {
	return (const sluice_string *)((const char *)r + r->strings.offset + i * r->strings.stride);
}

static inline uint32_t sluice_slot(uint32_t id) { return id * 0x9E3779B1u >> 18; }

static inline void sluice_fill_index(const sluice_request *r) {
	for (uint32_t i = 0; i < r->strings.count && i < SLUICE_INDEXED; i++) {
		uint32_t at = sluice_slot(sluice_string_at(r, i)->id);
		while (sluice_index.slots[at].request == sluice_index.request)
			at = (at + 1) % SLUICE_INDEX;
		sluice_index.slots[at].request = sluice_index.request;
		sluice_index.slots[at].position = i;
	}
	sluice_index.filled = 1;
}

/* Returns a string of the request, 0 if there is none of that id. */
static inline const sluice_string *sluice_find_string(const sluice_request *r, uint32_t id) {
	if (!sluice_index.filled)
		sluice_fill_index(r);
	for (uint32_t at = sluice_slot(id); sluice_index.slots[at].request == sluice_index.request; at = (at + 1) % SLUICE_INDEX) {
		const sluice_string *s = sluice_string_at(r, sluice_index.slots[at].position);
		if (s->id == id)
			return s;
	}
	for (uint32_t i = SLUICE_INDEXED; i < r->strings.count; i++)
		if (sluice_string_at(r, i)->id == id)
			return sluice_string_at(r, i);
	return 0;
}

/* Returns the text of a string id of the request that sluice_begin got, and sets its length. Of SLUICE_NO_STRING, SLUICE_ABSENT_STRING and
 * unknown ids it is "". */
static inline const char *sluice_text(const sluice_request *r, uint32_t id, uint32_t *length) {
	const sluice_string *s = sluice_find_string(r, id);
	*length = s ? s->length : 0;
	return s ? (const char *)r + s->offset : "";
}

static inline sluice_result *sluice_result_at(sluice_response *r, uint32_t i) {
	i = sluice_index_of("endpoint", i, r->results.count);
	return (sluice_result *)((char *)r + r->results.offset) + i;
}

/* The reasons, the state and the groups of the response that is being made, which follow its results. See sluice_finish. */
enum { SLUICE_MAX_REASONS = 256, SLUICE_MAX_REASON = 256, SLUICE_MAX_REASON_BYTES = 4096, SLUICE_MAX_STATE = 1024, SLUICE_MAX_GROUPS = 64,
	SLUICE_ENDPOINT_STATE = 32 };
static struct {
	uint32_t room, no_room;
	uint32_t reasons, reason_bytes, state_length, has_state, too_much_state, groups;
	uint32_t ends[SLUICE_MAX_REASONS]; /* of the texts */
	char text[SLUICE_MAX_REASON_BYTES];
	uint8_t state[SLUICE_MAX_STATE];
	uint32_t parts[SLUICE_MAX_GROUPS];
} sluice_tail;

enum { SLUICE_LEAST_REQUEST = 184 }; /* header of version 2.0 */

/* Starts a response in which each endpoint keeps its capacity and share and no connection is reset. Returns its length, which
 * sluice_decide returns in turn, or a negative error code. A plugin that gives reasons, a state or groups returns sluice_finish instead. */
static inline int64_t sluice_begin(const sluice_request *restrict req, uint32_t length, sluice_response *restrict resp, uint32_t room) {
	if (length < SLUICE_LEAST_REQUEST || req->magic != 0x51524C53 || req->major != 2 || req->total > length)
		return sluice_error(SLUICE_BAD_REQUEST, "malformed request");
	uint64_t total = sizeof *resp + (uint64_t)req->endpoints.count * sizeof(sluice_result);
	if (total > room)
		return sluice_no_room();
	*resp = (sluice_response){
		.magic = 0x50524C53, .total = (uint32_t)total, .header_length = sizeof *resp,
		.results = { sizeof *resp, req->endpoints.count, sizeof(sluice_result) },
	};
	sluice_index.filled = 0;
	sluice_index.request++; /* an instance does not live for 2^32 requests */
	sluice_tail.reasons = sluice_tail.reason_bytes = sluice_tail.state_length = sluice_tail.has_state = sluice_tail.too_much_state = 0;
	sluice_tail.groups = sluice_tail.no_room = 0;
	sluice_tail.room = room;
	sluice_result *restrict result = (sluice_result *)(resp + 1);
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		result[i] = (sluice_result){ req->role <= SLUICE_REDUCE ? e->capacity : e->share, 0, 0, SLUICE_NEVER, SLUICE_NO_REASON, 0 };
	}
	return (int64_t)total;
}

/* Returns what this plugin last set for this Service port and pool, and sets its length, 0 at first. */
static inline const uint8_t *sluice_state(const sluice_request *r, uint32_t *length) {
	*length = r->state_length;
	return (const uint8_t *)r + r->state_offset;
}

/* Stores a state for the next request about this Service port and pool. More than SLUICE_MAX_STATE bytes make the decision fail. */
static inline void sluice_set_state(const void *state, uint32_t length) {
	sluice_tail.has_state = 1;
	if (length > SLUICE_MAX_STATE) {
		sluice_tail.too_much_state = 1;
		return;
	}
	for (uint32_t i = 0; i < length; i++)
		sluice_tail.state[i] = ((const uint8_t *)state)[i];
	sluice_tail.state_length = length;
}

/* Returns the SLUICE_ENDPOINT_STATE bytes that this plugin last set for an endpoint, all 0 at first and without SLUICE_NEED_ENDPOINT_STATE. */
static inline const uint8_t *sluice_endpoint_state(const sluice_request *r, uint32_t i) {
	static const uint8_t none[SLUICE_ENDPOINT_STATE];
	i = sluice_index_of("endpoint", i, r->endpoints.count);
	if (r->header_length < sizeof *r || !r->endpoint_states.count)
		return none;
	return (const uint8_t *)r + r->endpoint_states.offset + i * r->endpoint_states.stride;
}

/* Returns the SLUICE_ENDPOINT_STATE bytes to store for the next request that has an endpoint, all 0 at first. Endpoints of a decision that does
 * not call this have none. It is for plugins with SLUICE_NEED_ENDPOINT_STATE, which return sluice_finish. */
static inline uint8_t *sluice_new_endpoint_state(sluice_response *r, uint32_t i) {
	static uint8_t none[SLUICE_ENDPOINT_STATE];
	i = sluice_index_of("endpoint", i, r->results.count);
	if (!r->endpoint_states_count) {
		uint32_t size = r->results.count * SLUICE_ENDPOINT_STATE;
		if (sluice_tail.no_room || size > sluice_tail.room - r->total) {
			sluice_tail.no_room = 1;
			return none;
		}
		r->endpoint_states_offset = r->total;
		r->endpoint_states_count = r->results.count;
		for (uint32_t k = 0; k < size / 8; k++)
			((uint64_t *)((char *)r + r->total))[k] = 0;
		r->total += size;
	}
	return (uint8_t *)r + r->endpoint_states_offset + i * SLUICE_ENDPOINT_STATE;
}

/* Returns the number of a reason, for sluice_result.reason. Equal texts are sent once. Bytes that are not printable ASCII become "?". A
 * text is cut to SLUICE_MAX_REASON bytes; when there are too many, SLUICE_NO_REASON. */
static inline uint16_t sluice_add_reason(const char *text, uint32_t length) {
	if (length > SLUICE_MAX_REASON)
		length = SLUICE_MAX_REASON;
	char *to = sluice_tail.text + sluice_tail.reason_bytes;
	if (length > SLUICE_MAX_REASON_BYTES - sluice_tail.reason_bytes)
		return SLUICE_NO_REASON;
	for (uint32_t i = 0; i < length; i++)
		to[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	for (uint32_t j = 0, begin = 0; j < sluice_tail.reasons; begin = sluice_tail.ends[j++]) {
		uint32_t n = 0;
		while (n < length && begin + n < sluice_tail.ends[j] && sluice_tail.text[begin + n] == to[n])
			n++;
		if (n == length && begin + n == sluice_tail.ends[j])
			return (uint16_t)j;
	}
	if (sluice_tail.reasons == SLUICE_MAX_REASONS)
		return SLUICE_NO_REASON;
	sluice_tail.reason_bytes += length;
	sluice_tail.ends[sluice_tail.reasons] = sluice_tail.reason_bytes;
	return (uint16_t)sluice_tail.reasons++;
}

/* Sets the capacity or share of endpoint i, by the role, in millionths, at most UINT32_MAX. */
static inline void sluice_set(sluice_response *r, uint32_t i, uint64_t value) {
	sluice_result_at(r, i)->value = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* Appends a group that gets a part of the connections, relative to the other groups, whatever the endpoints that it has. Returns its number, for
 * sluice_result.group; every endpoint is in group 0 at first. It is for plugins of role SLUICE_SHARE. More than SLUICE_MAX_GROUPS make the
 * decision fail. */
static inline uint16_t sluice_add_group(uint32_t part) {
	if (sluice_tail.groups < SLUICE_MAX_GROUPS)
		sluice_tail.parts[sluice_tail.groups] = part;
	return (uint16_t)sluice_tail.groups++;
}

/* Adds to a counter of the plugin, by its number in the manifest: the metric sluice_plugin_counter_total. It is for what the decision begins, such
 * as an ejection. */
static inline void sluice_count(sluice_response *r, uint32_t counter, uint32_t n) {
	if (counter < 4)
		r->counters[counter] += n < UINT32_MAX - r->counters[counter] ? n : UINT32_MAX - r->counters[counter];
}

/* Asks to be called again after some milliseconds. The shortest of several calls wins; 0 or less counts as 1. */
static inline void sluice_requeue_after(sluice_response *r, int64_t ms) {
	uint32_t n = ms < 1 ? 1 : ms < UINT32_MAX - 1 ? (uint32_t)ms : UINT32_MAX - 1;
	if (!r->requeue_ms || n < r->requeue_ms)
		r->requeue_ms = n;
}

/* Appends the reasons, the state and the groups to a response. Returns its length, which sluice_decide returns in turn, or a negative error code. */
static inline int64_t sluice_finish(sluice_response *r, uint32_t room) {
	if (sluice_tail.no_room)
		return sluice_no_room();
	if (sluice_tail.too_much_state)
		return sluice_fail("the state is longer than 1024 bytes");
	if (sluice_tail.groups > SLUICE_MAX_GROUPS)
		return sluice_fail("there are more than 64 groups");
	if (!r->endpoint_states_count && !sluice_tail.reasons && !sluice_tail.has_state && !sluice_tail.groups && !r->requeue_ms && !r->balance)
		return r->total;
	uint32_t table = r->total, text = table + sluice_tail.reasons * sizeof(sluice_reason);
	uint32_t state = (text + sluice_tail.reason_bytes + 7) & ~7u, groups = (state + sluice_tail.state_length + 7) & ~7u;
	uint32_t end = groups + sluice_tail.groups * sizeof(sluice_group);
	if (end > room)
		return sluice_no_room();
	char *base = (char *)r;
	sluice_reason *reason = (sluice_reason *)(base + table);
	for (uint32_t i = 0, begin = 0; i < sluice_tail.reasons; begin = sluice_tail.ends[i++])
		reason[i] = (sluice_reason){ text + begin, sluice_tail.ends[i] - begin };
	for (uint32_t i = 0; i < state - text; i++)
		base[text + i] = i < sluice_tail.reason_bytes ? sluice_tail.text[i] : 0;
	for (uint32_t i = 0; i < groups - state; i++)
		base[state + i] = i < sluice_tail.state_length ? (char)sluice_tail.state[i] : 0;
	for (uint32_t i = 0; i < sluice_tail.groups; i++)
		((sluice_group *)(base + groups))[i] = (sluice_group){ sluice_tail.parts[i], 0 };
	r->state_offset = state;
	r->state_length = sluice_tail.state_length;
	r->reasons_offset = table;
	r->reasons_count = sluice_tail.reasons;
	r->groups_offset = groups;
	r->groups_count = sluice_tail.groups;
	r->total = end;
	return end;
}

/* Settings: JSON text that is read from the front. */
typedef struct { const char *at, *end; } sluice_json;

static inline void sluice_json_space(sluice_json *t) {
	while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t'))
		t->at++;
}

/* Skips what the text begins with, and white space before it. Returns whether it was there. */
static inline int sluice_json_skip(sluice_json *t, const char *want) {
	sluice_json_space(t);
	const char *at = t->at;
	for (; *want; want++, at++)
		if (at == t->end || *at != *want)
			return 0;
	t->at = at;
	return 1;
}

/* Reads an integer of at most six digits. Returns whether there is one from least to most. */
static inline int sluice_json_integer(sluice_json *t, uint32_t least, uint32_t most, uint32_t *value) {
	const char *begin = t->at;
	uint32_t n = 0;
	for (; t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - begin < 6; t->at++)
		n = n * 10 + (uint32_t)(*t->at - '0');
	*value = n;
	return t->at > begin && (*begin != '0' || t->at - begin == 1) && n >= least && n <= most;
}

/* Reads a duration, a text such as "30s", "1m30s" or "500ms": one to four integers of at most five digits, each with the unit h, m, s or
 * ms, as in the Gateway API (GEP-2257). Returns whether there is one from least to most, in milliseconds. */
static inline int sluice_json_duration(sluice_json *t, uint32_t least, uint32_t most, uint32_t *value) {
	if (!sluice_json_skip(t, "\""))
		return 0;
	uint64_t sum = 0;
	int parts = 0;
	for (; t->at < t->end && *t->at != '"'; parts++) {
		const char *begin = t->at;
		uint64_t n = 0;
		for (; t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - begin < 5; t->at++)
			n = n * 10 + (uint64_t)(*t->at - '0');
		char unit = t->at < t->end && t->at > begin ? *t->at++ : 0;
		if (unit == 'm' && t->at < t->end && *t->at == 's')
			t->at++;
		else if (unit == 'h' || unit == 'm' || unit == 's')
			n *= unit == 'h' ? 3600000 : unit == 'm' ? 60000 : 1000;
		else
			return 0;
		sum += n;
	}
	*value = (uint32_t)sum;
	return t->at < t->end && *t->at++ == '"' && parts > 0 && parts <= 4 && sum >= least && sum <= most;
}

/* Reads a number of at most four digits and six decimals. Returns whether there is one from least to most, in millionths. */
static inline int sluice_json_fraction(sluice_json *t, uint32_t least, uint32_t most, uint32_t *value) {
	const char *begin = t->at;
	uint64_t n = 0, unit = SLUICE_ONE;
	for (; t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - begin < 4; t->at++)
		n = n * 10 + (uint64_t)(*t->at - '0');
	if (t->at == begin || (*begin == '0' && t->at - begin > 1))
		return 0;
	n *= SLUICE_ONE;
	if (t->at < t->end && *t->at == '.') {
		for (t->at++; t->at < t->end && *t->at >= '0' && *t->at <= '9' && unit > 1; t->at++)
			n += (uint64_t)(*t->at - '0') * (unit /= 10);
		if (unit == SLUICE_ONE)
			return 0;
	}
	*value = (uint32_t)n;
	return n >= least && n <= most;
}

/* A text of settings. Who declares it sets at to a buffer of as many bytes as it may have. */
typedef struct { char *at; uint32_t length; } sluice_buffer;

/* Reads the four digits of an escape \\uXXXX. Returns -1 if they are none. */
static inline int32_t sluice_json_unit(sluice_json *t) {
	int32_t n = 0;
	for (int i = 0; i < 4; i++, t->at++) {
		char c = t->at < t->end ? *t->at : 0;
		if (c >= '0' && c <= '9')
			n = n << 4 | (c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			n = n << 4 | ((c | 32) - 'a' + 10);
		else
			return -1;
	}
	return n;
}

/* Reads the character of an escape, after its backslash. A surrogate without its other half is U+FFFD. Returns -1 if it is none. */
static inline int32_t sluice_json_escape(sluice_json *t) {
	static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
	char c = t->at < t->end ? *t->at++ : 0;
	for (int i = 0; i < 8; i++)
		if (c == names[i])
			return values[i];
	int32_t high = c == 'u' ? sluice_json_unit(t) : -1;
	if (high < 0xD800 || high > 0xDFFF)
		return high;
	sluice_json rest = *t;
	if (high > 0xDBFF || rest.end - rest.at < 6 || *rest.at++ != '\\' || *rest.at++ != 'u')
		return 0xFFFD;
	int32_t low = sluice_json_unit(&rest);
	if (low < 0xDC00 || low > 0xDFFF)
		return 0xFFFD;
	*t = rest;
	return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

/* Reads a text. Returns whether there is one of least to most bytes. */
static inline int sluice_json_text(sluice_json *t, uint32_t least, uint32_t most, sluice_buffer *value) {
	value->length = 0;
	if (!sluice_json_skip(t, "\""))
		return 0;
	while (t->at < t->end && *t->at != '"') {
		uint8_t bytes[4];
		uint32_t n = 1;
		bytes[0] = (uint8_t)*t->at++;
		if (bytes[0] < ' ')
			return 0;
		if (bytes[0] == '\\') {
			int32_t c = sluice_json_escape(t);
			if (c < 0)
				return 0;
			n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
			for (uint32_t i = n; i-- > 1; c >>= 6)
				bytes[i] = (uint8_t)(0x80 | (c & 0x3F));
			bytes[0] = (uint8_t)(n == 1 ? c : (0xF00 >> n & 0xFF) | c);
		}
		if (value->length + n > most)
			return 0;
		for (uint32_t i = 0; i < n; i++)
			value->at[value->length++] = (char)bytes[i];
	}
	return t->at < t->end && *t->at++ == '"' && value->length >= least;
}

/* What a field of the settings has. */
enum {
	SLUICE_INTEGER,  /* value is a uint32_t */
	SLUICE_DURATION, /* a uint32_t; value, least and most are in milliseconds */
	SLUICE_FRACTION, /* a uint32_t; value, least and most are in millionths: SLUICE_ONE is 1 */
	SLUICE_BOOLEAN,  /* a uint32_t, 0 or 1; least and most mean nothing */
	SLUICE_TEXT,     /* a sluice_buffer; least and most count its bytes */
	SLUICE_LIST,     /* a sluice_list; least and most count its items */
};

/* A field of the settings. */
typedef struct {
	const char *name; /* in quotes */
	uint32_t least, most;
	void *value;
	const char *problem; /* what the log says of any other value */
	int kind;
} sluice_field;

/* A list of settings. item describes an item, without a name: its value is the first of as many as there may be, one every size bytes. */
typedef struct {
	uint32_t count, size;
	sluice_field item;
} sluice_list;

/* Reads the value of a field, or an item of a list. Returns whether it is as the field says. */
static inline int sluice_json_value(sluice_json *t, const sluice_field *f, void *value) {
	sluice_json_space(t);
	switch (f->kind) {
	case SLUICE_INTEGER:
		return sluice_json_integer(t, f->least, f->most, value);
	case SLUICE_DURATION:
		return sluice_json_duration(t, f->least, f->most, value);
	case SLUICE_FRACTION:
		return sluice_json_fraction(t, f->least, f->most, value);
	case SLUICE_BOOLEAN:
		*(uint32_t *)value = (uint32_t)sluice_json_skip(t, "true");
		return *(uint32_t *)value || sluice_json_skip(t, "false");
	case SLUICE_TEXT:
		return sluice_json_text(t, f->least, f->most, value);
	}
	return 0;
}

static inline int sluice_json_list(sluice_json *t, uint32_t least, uint32_t most, sluice_list *list) {
	list->count = 0;
	if (!sluice_json_skip(t, "["))
		return 0;
	if (sluice_json_skip(t, "]"))
		return !least;
	do
		if (list->count == most || !sluice_json_value(t, &list->item, (char *)list->item.value + list->count++ * list->size))
			return 0;
	while (sluice_json_skip(t, ","));
	return sluice_json_skip(t, "]") && list->count >= least;
}

/* Parses settings, a JSON object with some of the fields. Returns 0, or SLUICE_FAILED after it has logged what is wrong. */
static inline int32_t sluice_parse(const char *text, uint32_t length, const sluice_field *fields, uint32_t count, const char *unknown) {
	sluice_json t = { text, text + length };
	if (!sluice_json_skip(&t, "{"))
		return sluice_fail("settings must be a JSON object");
	if (!sluice_json_skip(&t, "}")) {
		do {
			uint32_t i = 0;
			while (i < count && !sluice_json_skip(&t, fields[i].name))
				i++;
			if (i == count)
				return sluice_fail(unknown);
			const sluice_field *f = &fields[i];
			if (!sluice_json_skip(&t, ":") || !(f->kind == SLUICE_LIST ? sluice_json_list(&t, f->least, f->most, f->value) : sluice_json_value(&t, f, f->value)))
				return sluice_fail(f->problem);
		} while (sluice_json_skip(&t, ","));
		if (!sluice_json_skip(&t, "}"))
			return sluice_fail("settings: want , or } after a value");
	}
	sluice_json_space(&t);
	return t.at == t.end ? 0 : sluice_fail("settings: unexpected text after the JSON object");
}

#ifdef __wasm__
/* Memory for the host, which never frees it: a bump allocator from the end of the linked data. */
extern char __heap_base;
static uintptr_t sluice_top;

SLUICE_EXPORT("sluice_alloc")
void *sluice_alloc(uint32_t size) {
	if (!sluice_top)
		sluice_top = ((uintptr_t)&__heap_base + 7) & ~(uintptr_t)7;
	uint64_t end = ((uint64_t)sluice_top + size + 7) & ~(uint64_t)7, have = (uint64_t)__builtin_wasm_memory_size(0) << 16;
	if (end > UINT32_MAX || (end > have && __builtin_wasm_memory_grow(0, (end - have + 65535) >> 16) == (unsigned long)-1))
		return 0;
	void *at = (void *)sluice_top;
	sluice_top = (uintptr_t)end;
	return at;
}
#endif

SLUICE_EXPORT("sluice_abi_version")
uint32_t sluice_abi_version(void) { return SLUICE_ABI; }

/* The plugin defines this function with SLUICE_EXPORT("sluice_decide"). */
int64_t sluice_decide(const sluice_request *req, uint32_t length, sluice_response *resp, uint32_t room);

/* It may define these too, with SLUICE_EXPORT of their names. sluice_configure returns a handle, which requests with these settings
 * carry, or a negative error code. sluice_needs returns the bits of the inputs that the plugin needs with settings, sluice_keys writes
 * the declared keys, one a line, and returns their length; or they return a negative error code. */
int32_t sluice_needs(uint32_t settings);
int32_t sluice_configure(const char *settings, uint32_t length);
int32_t sluice_keys(uint32_t settings, char *keys, uint32_t room);

#endif
