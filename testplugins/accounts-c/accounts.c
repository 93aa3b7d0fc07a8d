/* The projection of testplugins/accounts in freestanding C: the same manifest,
 * the same rows. See projhost.h for how it is built. With BY_POINTER the key is a
 * member of the payload, "account", instead of the stream's id. */
#define PH_OPS_CAP 4096
#include "projhost.h"

#ifdef BY_POINTER
#define KEY "{\"pointer\":\"/account\"}"
#else
#define KEY "\"aggregate_id\""
#endif

const char ph_manifest[] =
	"{\"abi\":1,\"name\":\"accounts\",\"version\":\"1.0.0\",\"consumers\":[{\"type\":\"projection\",\"name\":\"accounts\","
	"\"inputs\":[{\"topic\":\"events\",\"aggregate_types\":[\"account\"],\"types\":[\"opened\",\"deposited\",\"withdrawn\",\"closed\"],\"key\":" KEY "}],"
	"\"tables\":[{\"name\":\"accounts\",\"columns\":["
	"{\"name\":\"owner\",\"kind\":\"text\",\"max\":100,\"index\":true,\"null\":false,\"default\":\"\"},"
	"{\"name\":\"status\",\"kind\":\"text\",\"max\":10,\"index\":true,\"null\":false,\"default\":\"\"},"
	"{\"name\":\"balance\",\"kind\":\"decimal\",\"precision\":19,\"scale\":2,\"null\":false,\"default\":\"0\"},"
	"{\"name\":\"events\",\"kind\":\"int\",\"null\":false,\"default\":0},"
	"{\"name\":\"updated_at\",\"kind\":\"timestamp\",\"null\":false}"
	"]}]}]}";

enum { OWNER, STATUS, BALANCE, EVENTS, UPDATED_AT };  /* columns */
enum { OPENED, DEPOSITED, WITHDRAWN, CLOSED };        /* types, as the manifest lists them */

static ph_u8 row[4096]; /* an owner has at most 100 characters */
static ph_u8 text[1024];

ph_i32 ph_start(ph_str config) {
	(void)config;
	return 0;
}

#define CENTS_MAX 0x7FFFFFFFFFFFFFFFll

/* cents reads a number of at most two digits behind the point that are not 0. */
static int cents(ph_str s, ph_i64 *out) {
	const ph_u8 *p = s.p, *end = s.p + s.n;
	int negative = p < end && *p == '-';
	ph_i64 v = 0;
	int digits = 0, fraction = -1;
	for (p += negative; p < end; p++) {
		if (*p == '.' && fraction < 0 && digits > 0) {
			fraction = 0;
			continue;
		}
		ph_u8 d = *p - '0';
		if (d > 9) return 0;
		digits++;
		if (fraction >= 0 && ++fraction > 2) {
			if (d != 0) return 0;
			continue;
		}
		if (v > (CENTS_MAX - d) / 10) return 0;
		v = v * 10 + d;
	}
	if (digits == 0 || fraction == 0) return 0;
	for (int i = fraction < 0 ? 0 : fraction; i < 2; i++) {
		if (v > CENTS_MAX / 10) return 0;
		v *= 10;
	}
	*out = negative ? -v : v;
	return 1;
}

/* spell_cents writes cents as a decimal of scale 2 into the end of buf. */
static ph_str spell_cents(ph_i64 v, ph_u8 *buf, ph_u32 cap) {
	ph_u64 n = v < 0 ? 0 - (ph_u64)v : (ph_u64)v;
	ph_u8 *p = buf + cap;
	for (int i = 0; n > 0 || i < 3; i++) {
		if (i == 2) *--p = '.';
		*--p = '0' + n % 10;
		n /= 10;
	}
	if (v < 0) *--p = '-';
	return (ph_str){p, (ph_u32)(buf + cap - p)};
}

/* A patch makes an absent row from its defaults, so there is one way to write. */
ph_i32 ph_entry_apply(const ph_entry *e) {
	ph_i64 balance = 0, events = 0;
	ph_i64 n = ph_get(0, 0, 0, row, sizeof row);
	if (n > (ph_i64)sizeof row) return ph_reject("the row is too large");
	if (n >= 0) {
		const ph_u8 *p = row + 2;
		for (int column = 0; column <= EVENTS; column++) {
			ph_u8 tag;
			ph_str v;
			p = ph_value(p, &tag, &v);
			if (column == BALANCE && !cents(v, &balance)) return ph_reject("balance: out of range");
			if (column == EVENTS) events = (ph_i64)ph_le64(v.p);
		}
	}
	ph_op(PH_PATCH, 0);
	switch (e->type) {
	case OPENED: {
		ph_str owner;
		if (!ph_json_text(ph_json_get(e->data, "owner"), text, sizeof text, &owner)) return ph_reject("owner: want a string");
		ph_set_text(OWNER, owner);
		ph_set_text(STATUS, (ph_str){(const ph_u8 *)"open", 4});
		break;
	}
	case DEPOSITED:
	case WITHDRAWN: {
		ph_str amount = ph_json_get(e->data, "amount");
		if (amount.n > 1 && amount.p[0] == '"') amount = (ph_str){amount.p + 1, amount.n - 2};
		ph_i64 v;
		if (!cents(amount, &v)) return ph_reject("amount: want a decimal number of scale 2");
		if (e->type == DEPOSITED ? __builtin_add_overflow(balance, v, &balance) : __builtin_sub_overflow(balance, v, &balance))
			return ph_reject("balance: out of range");
		ph_u8 digits[24];
		ph_set_decimal(BALANCE, spell_cents(balance, digits, sizeof digits));
		break;
	}
	case CLOSED:
		ph_set_text(STATUS, (ph_str){(const ph_u8 *)"closed", 6});
		break;
	default:
		return PH_IGNORED;
	}
	ph_set_i64(EVENTS, events + 1);
	ph_set_timestamp(UPDATED_AT, e->time_us);
	return PH_OK;
}
