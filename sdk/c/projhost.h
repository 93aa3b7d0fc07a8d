/* projhost.h: what a projection in freestanding C needs of projhost's ABI v1.
 *
 * One header, no libc. It reads request frames, rows and JSON payloads as views
 * of the guest's memory, and writes ops into one buffer. Build with
 *
 *   clang-19 --target=wasm32-unknown-unknown -O2 -nostdlib -mbulk-memory \
 *     -fno-builtin -Wl,--no-entry -I sdk/c -o plugin.wasm plugin.c
 *
 * A plugin defines ph_manifest (a JSON text), ph_start (the config was read;
 * 0 is good) and ph_entry_apply (one entry; a status). testplugins/accounts-c is
 * an example.
 */
#ifndef PROJHOST_H
#define PROJHOST_H

typedef unsigned char ph_u8;
typedef unsigned short ph_u16;
typedef unsigned int ph_u32;
typedef unsigned long long ph_u64;
typedef long long ph_i64;
typedef int ph_i32;

/* A view of bytes somewhere else. They live until ph_entry_apply returns. */
typedef struct {
	const ph_u8 *p;
	ph_u32 n;
} ph_str;

/* What ph_entry_apply answers. */
enum { PH_OK = 0, PH_IGNORED = 1, PH_REJECT = 2, PH_FATAL = 3, PH_RETRY = 4 };

enum { PH_MESSAGE = 0, PH_TOMBSTONE = 1, PH_DEADLINE = 2 };

/* One entry of a request frame. */
typedef struct {
	ph_u64 position, sequence;
	ph_i64 time_us;
	const ph_u8 *id; /* 16 bytes */
	ph_u16 consumer, input, type;
	ph_u8 kind, flags;
	ph_u16 cascade_depth;
	ph_u32 revision;
	ph_str key, type_name, aggregate_type, aggregate_id, metadata, data;
} ph_entry;

/* Defined by the plugin. */
extern const char ph_manifest[];
ph_i32 ph_start(ph_str config);
ph_i32 ph_entry_apply(const ph_entry *e);

/* ---- the host's imports ---- */

#define PH_IMPORT(name) __attribute__((import_module("projhost_v1"), import_name(name)))
#define PH_EXPORT(name) __attribute__((export_name(name)))

PH_IMPORT("done") ph_i32 ph_done(ph_u32 index, ph_i32 status, const void *ops, ph_u32 n);
PH_IMPORT("get") ph_i64 ph_get(ph_u32 table, const void *key, ph_u32 key_n, void *out, ph_u32 cap);
PH_IMPORT("fail") void ph_fail(ph_i32 code, const void *text, ph_u32 n);

/* ---- bytes ---- */

static inline ph_u16 ph_le16(const ph_u8 *p) { ph_u16 v; __builtin_memcpy(&v, p, 2); return v; }
static inline ph_u32 ph_le32(const ph_u8 *p) { ph_u32 v; __builtin_memcpy(&v, p, 4); return v; }
static inline ph_u64 ph_le64(const ph_u8 *p) { ph_u64 v; __builtin_memcpy(&v, p, 8); return v; }

static inline ph_u32 ph_len(const char *s) {
	ph_u32 n = 0;
	while (s[n]) n++;
	return n;
}

static inline int ph_is(ph_str a, const char *b, ph_u32 n) {
	if (a.n != n) return 0;
	for (ph_u32 i = 0; i < n; i++)
		if (a.p[i] != (ph_u8)b[i]) return 0;
	return 1;
}

/* ph_reject gives the reason of an entry that fails. */
static inline ph_i32 ph_reject(const char *reason) {
	ph_fail(PH_REJECT, reason, ph_len(reason));
	return PH_REJECT;
}

/* ---- ops ---- */

#ifndef PH_OPS_CAP
#define PH_OPS_CAP 65536
#endif

enum { PH_UPSERT = 1, PH_INSERT = 2, PH_PATCH = 3, PH_DELETE = 4, PH_ADD = 5 };

static struct {
	ph_u8 buf[PH_OPS_CAP];
	ph_u32 n, count, columns; /* columns: where the open op counts them */
} ph_ops;

static inline ph_u8 *ph_room(ph_u32 n) {
	if (n > PH_OPS_CAP - ph_ops.n) __builtin_trap();
	ph_u8 *p = ph_ops.buf + ph_ops.n;
	ph_ops.n += n;
	return p;
}

/* ph_op opens an op on the entry's own row; columns follow. */
static inline void ph_op(ph_u8 code, ph_u16 table) {
	ph_u8 *p = ph_room(3);
	p[0] = code;
	__builtin_memcpy(p + 1, &table, 2);
	ph_ops.count++;
	ph_ops.columns = ph_ops.n;
	if (code != PH_DELETE) {
		p = ph_room(2);
		p[0] = p[1] = 0;
	}
}

static inline ph_u8 *ph_column(ph_u16 column, ph_u8 tag, ph_u32 n) {
	ph_u8 *p = ph_room(3 + n);
	__builtin_memcpy(p, &column, 2);
	p[2] = tag;
	ph_u8 *c = ph_ops.buf + ph_ops.columns;
	if (++c[0] == 0) c[1]++;
	return p + 3;
}

static inline void ph_set_i64(ph_u16 column, ph_i64 v) { __builtin_memcpy(ph_column(column, 3, 8), &v, 8); }
static inline void ph_set_timestamp(ph_u16 column, ph_i64 us) { __builtin_memcpy(ph_column(column, 8, 8), &us, 8); }

static inline void ph_set_bytes(ph_u16 column, ph_u8 tag, ph_str s) {
	ph_u8 *p = ph_column(column, tag, 4 + s.n);
	__builtin_memcpy(p, &s.n, 4);
	__builtin_memcpy(p + 4, s.p, s.n);
}

static inline void ph_set_text(ph_u16 column, ph_str s) { ph_set_bytes(column, 5, s); }
static inline void ph_set_decimal(ph_u16 column, ph_str s) { ph_set_bytes(column, 7, s); }

/* ---- rows: u16 n, then n tagged values ---- */

/* ph_value steps over the value at p and gives its bytes without tag and length. */
static inline const ph_u8 *ph_value(const ph_u8 *p, ph_u8 *tag, ph_str *v) {
	*tag = *p++;
	v->p = p;
	switch (*tag) {
	case 0: case 1: case 2: v->n = 0; return p;
	case 3: case 4: case 8: case 10: v->n = 8; return p + 8;
	case 9: v->n = 4; return p + 4;
	case 11: v->n = 16; return p + 16;
	}
	v->n = ph_le32(p);
	v->p = p + 4;
	return p + 4 + v->n;
}

/* ---- JSON ---- */

static inline const ph_u8 *ph_json_space(const ph_u8 *p, const ph_u8 *end) {
	while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
	return p;
}

/* Behind the string that starts at p (behind its quote), 0 if it does not end. */
static inline const ph_u8 *ph_json_string(const ph_u8 *p, const ph_u8 *end) {
	for (; p < end; p++) {
		if (*p == '"') return p + 1;
		if (*p == '\\') p++;
	}
	return 0;
}

static inline const ph_u8 *ph_json_skip(const ph_u8 *p, const ph_u8 *end) {
	if (p >= end) return 0;
	if (*p == '"') return ph_json_string(p + 1, end);
	if (*p == '{' || *p == '[') {
		for (ph_u32 depth = 0; p < end; p++) {
			if (*p == '"') {
				p = ph_json_string(p + 1, end);
				if (!p) return 0;
				p--;
			} else if (*p == '{' || *p == '[') {
				depth++;
			} else if ((*p == '}' || *p == ']') && --depth == 0) {
				return p + 1;
			}
		}
		return 0;
	}
	const ph_u8 *start = p;
	while (p < end && *p > ' ' && *p != ',' && *p != '}' && *p != ']' && *p != ':' && *p != '"') p++;
	return p == start ? 0 : p;
}

/* ph_json_get finds a member of an object by a name without escapes: of several
 * the last. The value is spelled as in the document; its n is 0 if there is none. */
static inline ph_str ph_json_get(ph_str doc, const char *name) {
	ph_str found = {doc.p, 0};
	ph_u32 name_n = ph_len(name);
	const ph_u8 *end = doc.p + doc.n, *p = ph_json_space(doc.p, end);
	if (p >= end || *p++ != '{') return found;
	for (;;) {
		p = ph_json_space(p, end);
		if (p >= end || *p++ != '"') return found;
		const ph_u8 *from = p;
		p = ph_json_string(p, end);
		if (!p) return found;
		ph_str key = {from, (ph_u32)(p - 1 - from)};
		p = ph_json_space(p, end);
		if (p >= end || *p++ != ':') return found;
		from = ph_json_space(p, end);
		p = ph_json_skip(from, end);
		if (!p) return found;
		if (ph_is(key, name, name_n)) found = (ph_str){from, (ph_u32)(p - from)};
		p = ph_json_space(p, end);
		if (p >= end || *p++ != ',') return found;
	}
}

static inline ph_i32 ph_hex4(const ph_u8 *p) {
	ph_i32 v = 0;
	for (int i = 0; i < 4; i++) {
		ph_u8 c = p[i], d = c - '0';
		if (d > 9) {
			d = (c | 0x20) - 'a';
			if (d > 5) return -1;
			d += 10;
		}
		v = v << 4 | d;
	}
	return v;
}

static inline ph_u32 ph_utf8(ph_u8 *out, ph_u32 r) {
	if (r < 0x80) { out[0] = r; return 1; }
	if (r < 0x800) { out[0] = 0xC0 | r >> 6; out[1] = 0x80 | (r & 63); return 2; }
	if (r < 0x10000) { out[0] = 0xE0 | r >> 12; out[1] = 0x80 | (r >> 6 & 63); out[2] = 0x80 | (r & 63); return 3; }
	out[0] = 0xF0 | r >> 18; out[1] = 0x80 | (r >> 12 & 63); out[2] = 0x80 | (r >> 6 & 63); out[3] = 0x80 | (r & 63);
	return 4;
}

/* ph_json_text gives what a JSON string means: a view of the document, or of buf
 * where there are escapes. 0 if the value is no string or buf is too small. */
static inline int ph_json_text(ph_str v, ph_u8 *buf, ph_u32 cap, ph_str *out) {
	if (v.n < 2 || v.p[0] != '"') return 0;
	const ph_u8 *p = v.p + 1, *end = v.p + v.n - 1;
	const ph_u8 *q = p;
	while (q < end && *q != '\\') q++;
	if (q == end) {
		*out = (ph_str){p, (ph_u32)(end - p)};
		return 1;
	}
	ph_u32 n = 0;
	while (p < end) {
		if (cap - n < 4) return 0;
		if (*p != '\\') { buf[n++] = *p++; continue; }
		if (end - p < 2) return 0;
		ph_u8 c = p[1];
		p += 2;
		switch (c) {
		case 'b': c = '\b'; break;
		case 'f': c = '\f'; break;
		case 'n': c = '\n'; break;
		case 'r': c = '\r'; break;
		case 't': c = '\t'; break;
		case 'u': {
			if (end - p < 4) return 0;
			ph_i32 r = ph_hex4(p);
			if (r < 0) return 0;
			p += 4;
			if (r >= 0xD800 && r < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
				ph_i32 low = ph_hex4(p + 2);
				if (low >= 0xDC00 && low < 0xE000) {
					r = 0x10000 + ((r - 0xD800) << 10) + (low - 0xDC00);
					p += 6;
				}
			}
			if (r >= 0xD800 && r < 0xE000) r = 0xFFFD; /* half of a pair */
			n += ph_utf8(buf + n, (ph_u32)r);
			continue;
		}
		}
		buf[n++] = c;
	}
	*out = (ph_str){buf, n};
	return 1;
}

/* ---- the exports ---- */

extern ph_u8 __heap_base;

PH_EXPORT("ph_abi_v1") ph_i32 ph_export_abi(void) { return 0; }

/* The input region is all that is allocated, so it always starts at one place. */
PH_EXPORT("ph_alloc") void *ph_export_alloc(ph_u32 size) {
	ph_u32 base = ((ph_u32)&__heap_base + 15) & ~15u;
	ph_u32 pages = __builtin_wasm_memory_size(0);
	ph_u64 need = ((ph_u64)base + size + 65535) >> 16;
	if (need > 65535) return 0;
	if (need > pages && __builtin_wasm_memory_grow(0, (ph_u32)need - pages) == ~0ul) return 0;
	return (void *)base;
}

PH_EXPORT("ph_describe") ph_i64 ph_export_describe(void) {
	return (ph_i64)(ph_u32)ph_manifest << 32 | ph_len(ph_manifest);
}

PH_EXPORT("ph_init") ph_i32 ph_export_init(const ph_u8 *p, ph_u32 n) { return ph_start((ph_str){p, n}); }

static inline const ph_u8 *ph_read_str(const ph_u8 *p, ph_str *s) {
	s->n = ph_le32(p);
	s->p = p + 4;
	return s->p + s->n;
}

PH_EXPORT("ph_apply") ph_i32 ph_export_apply(const ph_u8 *frame, ph_u32 n) {
	(void)n;
	ph_entry e;
	ph_u32 count = ph_le32(frame + 12);
	e.consumer = ph_le16(frame + 6);
	const ph_u8 *p = frame + 16;
	for (ph_u32 i = 0; i < count; i++) {
		const ph_u8 *q = p + 4;
		p = q + ph_le32(p);
		e.position = ph_le64(q);
		e.sequence = ph_le64(q + 8);
		e.time_us = (ph_i64)ph_le64(q + 16);
		e.id = q + 24;
		e.input = ph_le16(q + 40);
		e.type = ph_le16(q + 42);
		e.kind = q[44];
		e.flags = q[45];
		e.cascade_depth = ph_le16(q + 46);
		e.revision = ph_le32(q + 48);
		q = ph_read_str(q + 52, &e.key);
		q = ph_read_str(q, &e.type_name);
		q = ph_read_str(q, &e.aggregate_type);
		q = ph_read_str(q, &e.aggregate_id);
		q = ph_read_str(q, &e.metadata);
		ph_read_str(q, &e.data);

		ph_ops.n = 4;
		ph_ops.count = 0;
		ph_i32 status = ph_entry_apply(&e);
		__builtin_memcpy(ph_ops.buf, &ph_ops.count, 4);
		ph_u32 size = status == PH_OK ? ph_ops.n : 0;
		if (ph_done(i, status, ph_ops.buf, size) < 0) return (ph_i32)i;
	}
	return (ph_i32)count;
}

#endif
