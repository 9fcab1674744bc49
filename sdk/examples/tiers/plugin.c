/* tiers: endpoints whose Pods have one of some tiers get another share than the others. */
#include "sluice.h"

enum { MAX_TIERS = 4, MAX_TIER = 63, MAX_NOTE = 100 };

typedef struct {
	uint32_t factor, only, count, note_length, tier_lengths[MAX_TIERS];
	char note[MAX_NOTE], tiers[MAX_TIERS][MAX_TIER];
} settings;

static const settings defaults = { 2 * SLUICE_ONE, 0, 1, 4, { 4 }, "tier", { "gold" } };

enum { MAX_SETTINGS = 1024 };
static settings configured[MAX_SETTINGS];
static uint32_t count;

SLUICE_EXPORT("sluice_configure")
int32_t sluice_configure(const char *json, uint32_t length) {
	if (count == MAX_SETTINGS)
		return sluice_fail("too many settings");
	settings *s = &configured[count];
	static sluice_buffer texts[MAX_TIERS];
	sluice_buffer note = { s->note, 0 };
	sluice_list tiers = { 0, sizeof(sluice_buffer), { 0, 1, MAX_TIER, texts, 0, SLUICE_TEXT } };
	for (uint32_t i = 0; i < sizeof *s; i++) /* an assignment would call memcpy */
		((char *)s)[i] = ((const char *)&defaults)[i];
	for (uint32_t i = 0; i < MAX_TIERS; i++)
		texts[i] = (sluice_buffer){ s->tiers[i], s->tier_lengths[i] };
	note.length = s->note_length;
	tiers.count = s->count;
	const sluice_field fields[] = {
		{ "\"factor\"", SLUICE_ONE / 100, 100 * SLUICE_ONE, &s->factor, "factor: want a number from 0.01 to 100", SLUICE_FRACTION },
		{ "\"only\"", 0, 0, &s->only, "only: want true or false", SLUICE_BOOLEAN },
		{ "\"note\"", 1, MAX_NOTE, &note, "note: want a text of 1 to 100 bytes", SLUICE_TEXT },
		{ "\"tiers\"", 1, MAX_TIERS, &tiers, "tiers: want 1 to 4 texts of 1 to 63 bytes", SLUICE_LIST },
	};
	if (sluice_parse(json, length, fields, 4, "unknown field: want factor, only, note, tiers") < 0)
		return SLUICE_FAILED;
	s->note_length = note.length;
	s->count = tiers.count;
	for (uint32_t i = 0; i < MAX_TIERS; i++)
		s->tier_lengths[i] = texts[i].length;
	return (int32_t)count++;
}

SLUICE_EXPORT("sluice_keys")
int32_t sluice_keys(uint32_t handle, char *keys, uint32_t room) {
	static const char key[] = "label:tier";
	if (handle != SLUICE_NO_SETTINGS && handle >= count)
		return sluice_not_configured();
	if (room < sizeof key - 1)
		return sluice_no_room();
	for (uint32_t i = 0; i < sizeof key - 1; i++)
		keys[i] = key[i];
	return sizeof key - 1;
}

static int has(const settings *s, const char *text, uint32_t length) {
	for (uint32_t i = 0; i < s->count; i++) {
		uint32_t j = 0;
		while (j < length && j < s->tier_lengths[i] && text[j] == s->tiers[i][j])
			j++;
		if (j == length && j == s->tier_lengths[i])
			return 1;
	}
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
	uint32_t found = 0, size;
	for (uint32_t i = 0; i < req->endpoints.count; i++) {
		const char *tier = sluice_text(req, sluice_pod_value(req, i, 0), &size);
		const sluice_endpoint *e = sluice_endpoint_at(req, i);
		if (size && has(s, tier, size)) {
			uint64_t share = (uint64_t)e->share * s->factor / SLUICE_ONE;
			found |= share && e->capacity && e->conditions & SLUICE_ELIGIBLE;
			sluice_set(resp, i, share);
			sluice_result_at(resp, i)->reason = sluice_add_reason(s->note, s->note_length);
		}
	}
	for (uint32_t i = 0; s->only && found && i < req->endpoints.count; i++)
		if (sluice_result_at(resp, i)->reason == SLUICE_NO_REASON)
			sluice_set(resp, i, 0);
	return sluice_finish(resp, room);
}
