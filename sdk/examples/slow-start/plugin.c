/* slow-start: an endpoint that this node has not seen before gets its share of new connections in steps. The state has when each of those
 * was seen first: a version and a number, 4 bytes each, then a hash of the address and the time, 8 bytes each. */
#include "sluice.h"

typedef struct { uint32_t steps, step_ms; } settings;

static const settings defaults = { .steps = 4, .step_ms = 10000 };

enum { MAX_SETTINGS = 1024, VERSION = 1, MAX_STARTS = 63 };
static settings configured[MAX_SETTINGS];
static uint32_t count;

typedef struct { uint64_t hash; int64_t since; } start;
typedef struct { uint32_t version, count; start starts[MAX_STARTS]; } state;

SLUICE_EXPORT("sluice_configure")
int32_t sluice_configure(const char *json, uint32_t length) {
	settings s = defaults;
	const sluice_field fields[] = {
		{ "\"steps\"", 2, 9, &s.steps, "steps: want an integer from 2 to 9", 0 },
		{ "\"stepDuration\"", 1000, 600000, &s.step_ms, "stepDuration: want a duration from 1s to 10m", 1 },
	};
	if (sluice_parse(json, length, fields, 2, "unknown field: want steps, stepDuration") < 0)
		return SLUICE_FAILED;
	if (count == MAX_SETTINGS)
		return sluice_fail("too many settings");
	configured[count] = s;
	return (int32_t)count++;
}

/* FNV-1a of the address and the port. */
static uint64_t hash_of(const sluice_endpoint *e) {
	uint64_t h = 0xcbf29ce484222325;
	for (uint32_t i = 0; i < 18; i++)
		h = (h ^ ((const uint8_t *)e)[i]) * 0x100000001b3;
	return h;
}

static const start *find(const state *s, uint64_t hash) {
	for (uint32_t i = 0; s && i < s->count; i++)
		if (s->starts[i].hash == hash)
			return &s->starts[i];
	return 0;
}

SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *req, uint32_t length, sluice_response *resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	if (n < 0)
		return n;
	if (req->settings != SLUICE_NO_SETTINGS && req->settings >= count)
		return sluice_not_configured();
	const settings *s = req->settings == SLUICE_NO_SETTINGS ? &defaults : &configured[req->settings];
	int64_t step = s->step_ms;

	uint32_t size;
	const state *before = (const state *)sluice_state(req, &size);
	if (size < 8 || before->version != VERSION || before->count > MAX_STARTS || size != 8 + before->count * sizeof(start))
		before = 0; /* the first decision: all endpoints have been there */
	static state after;
	after.version = VERSION;
	after.count = 0;

	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		if (!(e->conditions & SLUICE_ELIGIBLE) || !e->capacity)
			continue;
		uint64_t hash = hash_of(e);
		const start *known = find(before, hash);
		int64_t since = known && known->since < req->now_ms ? known->since : req->now_ms;
		int64_t steps = (req->now_ms - since) / step + 1;
		if ((!known && (!before || e->prior_weight >= 0)) || steps >= s->steps || after.count == MAX_STARTS)
			continue; /* keeps its capacity */
		char reason[] = "step 0 of 0";
		reason[5] = (char)('0' + steps);
		reason[10] = (char)('0' + s->steps);
		sluice_set(resp, i, (uint64_t)e->capacity * (uint64_t)steps / s->steps);
		sluice_result_at(resp, i)->reason = sluice_add_reason(reason, 11);
		sluice_requeue_after(resp, since + steps * step - req->now_ms);
		after.starts[after.count++] = (start){ hash, since };
	}
	sluice_set_state(&after, 8 + after.count * sizeof(start));
	return sluice_finish(resp, room);
}
