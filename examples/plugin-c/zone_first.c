/* A complete plugin in C: endpoints in this node's zone get three times the share of the others. */
#include "sluice.h"

SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *restrict req, uint32_t length, sluice_response *restrict resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	if (n < 0)
		return n;
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		/* Zones are compared by id: equal names have equal ids for the life of the instance. */
		if (e->zone_id == req->zone_id && req->zone_id != SLUICE_NO_STRING)
			sluice_set(resp, i, (uint64_t)e->share * 3);
	}
	return n;
}
