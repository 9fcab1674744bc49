/* A plugin with the fault that its settings name by a letter: {"fault":"zero shares"}. */
#include "sluice.h"

static char faults[64]; /* by handle */
static uint32_t handles, calls, last_service;

SLUICE_EXPORT("sluice_configure")
int32_t sluice_configure(const char *text, uint32_t length) {
	if (handles == sizeof faults)
		return SLUICE_FAILED;
	faults[handles] = length > 10 ? text[10] : 0;
	return (int32_t)handles++;
}

/* Adds a state of length bytes to a response of n bytes and returns the new length of the response. */
static int64_t with_state(sluice_response *resp, int64_t n, uint32_t length) {
	resp->state_offset = (uint32_t)n;
	resp->state_length = length;
	for (uint32_t i = 0; i < length; i++)
		((volatile char *)resp)[n + i] = 1;
	resp->total = (uint32_t)n + ((length + 7) & ~7u);
	return resp->total;
}

SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *restrict req, uint32_t length, sluice_response *restrict resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	if (n < 0)
		return n;
	char fault = req->settings == SLUICE_NO_SETTINGS ? 0 : faults[req->settings];
	calls++;
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		uint32_t *share = &sluice_result_at(resp, i)->value;
		switch (fault) {
		case 'z': /* zero shares */
			*share = 0;
			break;
		case 'w': /* shares for others than eligible endpoints */
			*share = !(e->conditions & SLUICE_ELIGIBLE);
			break;
		case 't': /* terminating endpoints only */
			*share = (e->conditions & SLUICE_TERMINATING) != 0;
			break;
		case 'r': /* ratios that are not represented */
			*share = 1 + 100 * i;
			break;
		case 'c': /* calls counted */
			*share = calls;
			break;
		case 'o': /* order of Services */
			*share = 1 + (last_service != req->service_id);
			break;
		}
	}
	last_service = req->service_id;
	switch (fault) {
	case 'l': /* least connections */
		resp->balance = 4;
		break;
	case 'g': /* growing state: 8 bytes with each request */
		return with_state(resp, n, req->state_length + 8);
	case 's': /* slowly growing state: a byte with every other request */
		return with_state(resp, n, req->state_length + (uint32_t)(req->generation & 1));
	case 'b': /* bounded state */
		return with_state(resp, n, req->state_length < 200 ? req->state_length + 1 : 200);
	}
	return n;
}
