/* The plugin of inputs.go in C. */
#include "sluice.h"

static struct { const char *text; uint32_t length; } texts[1 << 16]; /* by string id */
static const char declared[] =
	"service-label:team\nlabel:track\nannotation:example.com/stage\nrequest:cpu\nservice-annotation:example.com/tier\nlabel:version\nnode-label:example.com/pool\nnamespace-label:env\nload:rps_fractional\n";

static uint64_t number(uint64_t h, uint64_t n) { return (h ^ n) * 0x100000001B3; }

static uint64_t text(uint64_t h, uint32_t id) {
	if (id == SLUICE_ABSENT_STRING)
		return number(h, 0xFFFF);
	if (id == SLUICE_NO_STRING)
		return number(h, 0);
	h = number(h, texts[id].length);
	for (uint32_t i = 0; i < texts[id].length; i++)
		h = number(h, (uint8_t)texts[id].text[i]);
	return h;
}

SLUICE_EXPORT("sluice_needs")
int32_t sluice_needs(uint32_t settings) { (void)settings; return SLUICE_NEED_CONNECTIONS | SLUICE_NEED_OUTCOMES | SLUICE_NEED_NODES | SLUICE_NEED_POD_NAMES | SLUICE_NEED_ENDPOINT_STATE; }

SLUICE_EXPORT("sluice_keys")
int32_t sluice_keys(uint32_t settings, char *keys, uint32_t room) {
	(void)settings;
	if (room < sizeof declared - 1)
		return SLUICE_NO_ROOM;
	for (uint32_t i = 0; i < sizeof declared - 1; i++)
		((volatile char *)keys)[i] = declared[i];
	return sizeof declared - 1;
}

SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *restrict req, uint32_t length, sluice_response *restrict resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	if (n < 0)
		return n;
	for (uint32_t i = 0; i < req->strings.count; i++) {
		const sluice_string *s = (const sluice_string *)((const char *)req + req->strings.offset + i * req->strings.stride);
		if (s->id >= sizeof texts / sizeof *texts)
			return SLUICE_FAILED;
		texts[s->id].text = (const char *)req + s->offset;
		texts[s->id].length = s->length;
	}
	uint64_t h = 0xCBF29CE484222325;
	h = number(h, req->node_count ? req->node_index : 0);
	h = number(h, req->node_count);
	if (req->connections_age_ms != SLUICE_NO_AGE)
		h = number(h, req->connections_age_ms);
	h = number(h, req->outcomes_window_ms);
	for (uint32_t k = 0; k < 3; k++)
		h = text(h, sluice_service_value(req, k));
	for (uint32_t i = 0; i < req->zones.count; i++) {
		const sluice_zone *z = sluice_zone_at(req, i);
		h = text(h, z->zone_id);
		h = number(number(number(number(number(h, z->nodes), z->ready), z->serving), z->total), z->millicores);
	}
	sluice_count(resp, 0, 1);
	sluice_add_group(1);
	sluice_add_group(2);
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		static const sluice_outcomes none;
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		const sluice_outcomes *o = sluice_outcomes_at(req, i);
		uint64_t g = number(number(number(h, e->conditions), (uint64_t)e->ready_since_ms), (uint64_t)e->terminating_since_ms);
		g = number(number(number(g, e->capacity), e->share), sluice_part_of(req, e));
		if (!o)
			o = &none;
		if (e->connections != SLUICE_UNCOUNTED)
			g = number(g, e->connections);
		g = text(g, e->pod_id);
		g = number(number(number(number(g, o->attempts), o->answered), o->refused), o->unanswered);
		g = number(number(number(number(g, o->total_attempts), o->total_answered), o->total_refused), o->total_unanswered);
		g = number(g, (uint64_t)o->since_ms);
		for (uint32_t k = 0; k < 5; k++)
			g = text(g, sluice_pod_value(req, i, k));
		const uint8_t *state = sluice_endpoint_state(req, i);
		g = number(g, SLUICE_ENDPOINT_STATE);
		for (uint32_t k = 0; k < SLUICE_ENDPOINT_STATE; k++)
			g = number(g, state[k]);
		if (i % 3 > 0 && g % 4 > 0) {
			uint8_t *to = sluice_new_endpoint_state(resp, i);
			for (uint32_t k = 1; k < SLUICE_ENDPOINT_STATE; k++)
				to[k - 1] = state[k];
			to[SLUICE_ENDPOINT_STATE - 1] = (uint8_t)g;
		}
		sluice_count(resp, 1, (uint32_t)(g >> 33 & 1) << 30);
		sluice_result *result = sluice_result_at(resp, i);
		result->value = 1 + (uint32_t)(g % 60000);
		result->group = i % 2;
		result->shed_permille = (uint16_t)((g >> 20) % 1001);
	}
	return sluice_finish(resp, room);
}
