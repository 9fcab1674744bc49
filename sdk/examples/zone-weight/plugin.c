/* zone-weight: ready endpoints in the zone of the node get more weight than the others, as long as they are not busy. */
#include "sluice.h"

typedef struct { uint32_t factor, busy; } settings;

static const settings defaults = { .factor = 3 };

enum { MAX_SETTINGS = 1024 };
static settings configured[MAX_SETTINGS];
static uint32_t count;

SLUICE_EXPORT("sluice_configure")
int32_t sluice_configure(const char *json, uint32_t length) {
	settings s = defaults;
	const sluice_field fields[] = {
		{ "\"factor\"", 1, 100, &s.factor, "factor: want an integer from 1 to 100", 0 },
		{ "\"busyConnections\"", 0, 100000, &s.busy, "busyConnections: want an integer from 0 to 100000", 0 },
	};
	if (sluice_parse(json, length, fields, 2, "unknown field: want factor, busyConnections") < 0)
		return SLUICE_FAILED;
	if (count == MAX_SETTINGS)
		return sluice_fail("too many settings");
	configured[count] = s;
	return (int32_t)count++;
}

static const settings *settings_of(uint32_t handle) {
	return handle == SLUICE_NO_SETTINGS ? &defaults : handle < count ? &configured[handle] : 0;
}

SLUICE_EXPORT("sluice_needs")
int32_t sluice_needs(uint32_t handle) {
	const settings *s = settings_of(handle);
	return !s ? sluice_not_configured() : s->busy ? SLUICE_NEED_CONNECTIONS : 0;
}

SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *req, uint32_t length, sluice_response *resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	if (n < 0)
		return n;
	const settings *s = settings_of(req->settings);
	if (!s)
		return sluice_not_configured();
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		if (!(e->conditions & SLUICE_READY) || e->zone_id != req->zone_id || e->zone_id == SLUICE_NO_STRING)
			continue; /* keeps its share */
		if (s->busy && e->connections != SLUICE_UNCOUNTED && e->connections >= s->busy) {
			sluice_result_at(resp, i)->reason = sluice_add_reason("busy", 4);
			continue;
		}
		static char reason[SLUICE_MAX_REASON] = "in zone ";
		uint32_t size, at = 8;
		const char *zone = sluice_text(req, e->zone_id, &size);
		for (uint32_t j = 0; j < size && at < sizeof reason; j++)
			reason[at++] = zone[j];
		sluice_set(resp, i, (uint64_t)e->share * s->factor);
		sluice_result_at(resp, i)->reason = sluice_add_reason(reason, at);
	}
	return sluice_finish(resp, room);
}
