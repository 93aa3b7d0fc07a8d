package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

func dialect() *sqlstore.Dialect {
	return &sqlstore.Dialect{
		Name: "postgres",
		Rows: readmodel.Postgres,
		// Not the transaction's time, which stands still; within a statement it does.
		Now:          clock,
		Greatest:     "greatest",
		Schema:       schemaFiles,
		ScriptBegin:  "BEGIN;",
		ScriptEnd:    "COMMIT;",
		PositionMode: "sequence",
		ForUpdate:    " FOR UPDATE",
		EndLapsed:    endLapsedSQL,
		Describe:     describe,
		Find:         find,
		Adopt:        adopt,
		ViewIs:       viewIs,
	}
}

// A session that waits for the rest of what its client sends is not idle, whatever
// it has locked: no limit before PostgreSQL 17's transaction_timeout ends it. A
// transaction has half of the TTL before it is ended: an instance that was merely
// late with a heartbeat does not lose what it has just begun. One that is not yet
// due counts among those that are left. A host that has joined again is live, under
// the same name.
//
// A host that is frozen again before it knows that it was removed has no instance
// at all, nor has a command that works on the store itself. Of those it is ended
// what has waited for its client for as long as a live host may be silent, within
// a transaction that has locked what all others need.
const endLapsedSQL = `WITH open AS MATERIALIZED (
 SELECT a.pid, a.application_name AS session, a.xact_start, a.state_change, a.state = 'active' AND a.wait_event = 'ClientRead' AS waits
 FROM pg_catalog.pg_stat_activity a WHERE a.datname = current_database() AND pg_has_role(a.usesysid, 'USAGE')
 AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
), known AS MATERIALIZED (SELECT session, ttl_us, {{live}} AS live FROM {{instances}} i
), ours AS MATERIALIZED (
 SELECT o.pid, true AS known, extract(epoch FROM statement_timestamp() - o.xact_start) * 2000000 > k.ttl_us AS due
 FROM known k JOIN open o USING (session) WHERE NOT k.live AND k.session NOT IN (SELECT session FROM known WHERE live)
 UNION ALL
 SELECT o.pid, false, true FROM open o WHERE o.waits AND o.session ~ ' [A-Z2-7]{16}$' AND o.session NOT IN (SELECT session FROM known)
 AND extract(epoch FROM statement_timestamp() - o.state_change) * 1000000 > (SELECT max(ttl_us) FROM known WHERE live AND ttl_us > 0)
 AND EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.pid = o.pid AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND l.relation IN ('{{events}}'::regclass, '{{ownership}}'::regclass))
), ended AS MATERIALIZED (SELECT known, due, CASE WHEN due THEN pg_terminate_backend(pid, 1000) ELSE false END AS done FROM ours)
SELECT count(*) FILTER (WHERE due), count(*) FILTER (WHERE known AND NOT done) FROM ended`

// The first schema of the search path is where tables are made, so it is where
// they are looked for; what other schemas have is not ours.
const (
	columnsSQL = `SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, a.atthasdef OR a.attidentity <> '',
 coalesce(array_position(p.indkey::int2[], a.attnum) + 1, 0)::bigint, coalesce(l.collname::text, ''), coalesce(l.collcollate::text, '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
 LEFT JOIN pg_catalog.pg_index p ON p.indrelid = c.oid AND p.indisprimary
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = $1 AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

	indexesSQL = `SELECT i.relname::text, x.indisunique, x.indpred IS NOT NULL, coalesce(a.attname::text, '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index x ON x.indrelid = c.oid JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
 CROSS JOIN LATERAL generate_series(0, x.indnatts - 1) n
 LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.indkey[n]
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = $1 AND c.relkind IN ('r', 'p') AND x.indisvalid
ORDER BY i.relname, n`

	defaultCollationSQL = `SELECT datcollate::text FROM pg_catalog.pg_database WHERE datname = current_database()`

	findSQL = `SELECT kind, name FROM (
 SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'i' THEN 'index'
  WHEN 'I' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table' ELSE 'type' END AS kind, c.relname::text AS name
 FROM pg_catalog.pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND lower(c.relname) = lower($1) AND c.relkind <> 't'
 UNION ALL
 SELECT 'type', t.typname::text FROM pg_catalog.pg_type t WHERE t.typnamespace = current_schema()::regnamespace AND lower(t.typname) = lower($1)
  AND t.typrelid = 0 AND t.typelem = 0) o ORDER BY name <> $1, kind LIMIT 1`

	viewSQL = `SELECT pg_catalog.pg_get_viewdef(c.oid), current_schema()::text FROM pg_catalog.pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = $1 AND c.relkind = 'v'`
)

func describe(ctx context.Context, c sqlstore.Conn, table string) (t readmodel.ActualTable, err error) {
	usual := ""
	err = each(ctx, c, defaultCollationSQL, nil, func(r sqlstore.Rows) error { return r.Scan(&usual) })
	if err != nil {
		return t, err
	}
	err = each(ctx, c, columnsSQL, []any{table}, func(r sqlstore.Rows) error {
		var column readmodel.ActualColumn
		var primary int64
		var collation, sorts string
		if err := r.Scan(&column.Name, &column.Type, &column.Nullable, &column.HasDefault, &primary, &collation, &sorts); err != nil {
			return err
		}
		if collation == "default" {
			collation = usual
		}
		column.PrimaryKey, column.Collation = int(primary), collation
		t.Columns = append(t.Columns, column)
		return nil
	})
	if err != nil {
		return t, err
	}
	err = each(ctx, c, indexesSQL, []any{table}, func(r sqlstore.Rows) error {
		var index readmodel.ActualIndex
		var column string
		if err := r.Scan(&index.Name, &index.Unique, &index.Partial, &column); err != nil {
			return err
		}
		if n := len(t.Indexes); n == 0 || t.Indexes[n-1].Name != index.Name {
			t.Indexes = append(t.Indexes, index)
		}
		last := &t.Indexes[len(t.Indexes)-1]
		last.Columns = append(last.Columns, column) // "" for an expression
		return nil
	})
	return t, err
}

func find(ctx context.Context, c sqlstore.Conn, name string) (kind, spelled string, err error) {
	err = each(ctx, c, findSQL, []any{name}, func(r sqlstore.Rows) error { return r.Scan(&kind, &spelled) })
	return kind, spelled, err
}

// viewIs compares the view's query with ours. The server spells it its own way,
// each version another: names with or without their table's, quoted or not.
func viewIs(ctx context.Context, c sqlstore.Conn, public, physical string, t *readmodel.Table) (bool, error) {
	have, schema := "", ""
	err := each(ctx, c, viewSQL, []any{public}, func(r sqlstore.Rows) error { return r.Scan(&have, &schema) })
	if err != nil || have == "" {
		return false, err
	}
	// What our own statement would be, spelled the same way.
	ours := readmodel.Postgres.CreateView(public, physical, t)
	want := ours[len(ours)-1]
	want = want[strings.Index(want, " AS\n")+4:]
	return slices.Equal(spelling(have, physical, schema), spelling(want, physical, schema)), nil
}

// spelling reduces a query to its words, without what the server adds to names.
func spelling(query, physical, schema string) []string {
	query = strings.NewReplacer(`"`, "", ";", " ", ",", " , ", "\n", " ").Replace(query)
	words := strings.Fields(query)
	for i, w := range words {
		w = strings.TrimPrefix(w, schema+".")
		words[i] = strings.TrimPrefix(w, physical+".")
	}
	return words
}

// adopt renames a user's table. By itself the server takes users' views along
// with the table, and they would read this build's for ever (H10). So each is made
// anew in place, from its own text, which keeps its grants and what is built on
// it: the name in that text is the public view's by then. A view that cannot be
// so, because it reads more than the public one shows, stays as it is. Who could
// read the table can read the public view.
func adopt(from, to string, t *readmodel.Table) []string {
	d := readmodel.Postgres
	public := strings.ToLower(from)
	var make strings.Builder
	for _, text := range d.CreateView(public, to, t) {
		make.WriteString(" " + text + ";\n")
	}
	if from != public {
		make.WriteString(" CREATE VIEW " + d.Quote(from) + " AS SELECT * FROM " + d.Quote(public) + ";\n")
	}
	return []string{fmt.Sprintf(`DO $projhost$
DECLARE
 users regclass[]; texts text[]; reader record;
BEGIN
 SELECT array_agg(v.oid::regclass ORDER BY v.oid), array_agg(pg_get_viewdef(v.oid) ORDER BY v.oid) INTO users, texts FROM (
  SELECT DISTINCT w.ev_class AS oid FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid JOIN pg_class c ON c.oid = w.ev_class
  WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %[1]s::regclass AND c.relkind = 'v') v;
 ALTER TABLE %[2]s RENAME TO %[3]s;
%[4]s FOR i IN 1 .. coalesce(array_length(users, 1), 0) LOOP
  BEGIN
   EXECUTE 'CREATE OR REPLACE VIEW ' || users[i]::text || ' AS ' || texts[i];
  EXCEPTION WHEN OTHERS THEN
   RAISE WARNING 'view %% goes on reading %%: %%', users[i], %[5]s, SQLERRM;
  END;
 END LOOP;
 FOR reader IN SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) a
  WHERE c.oid = %[6]s::regclass AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner LOOP
  EXECUTE 'GRANT SELECT ON %[7]s TO ' || CASE reader.grantee WHEN 0 THEN 'PUBLIC' ELSE reader.grantee::regrole::text END;
 END LOOP;
END $projhost$`, literal(d.Quote(from)), d.Quote(from), d.Quote(to), make.String(), literal(to), literal(d.Quote(to)), strings.ReplaceAll(d.Quote(public), "'", "''"))}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// each runs a query and hands over its rows.
func each(ctx context.Context, c sqlstore.Conn, sql string, args []any, row func(sqlstore.Rows) error) error {
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := row(rows); err != nil {
			_ = rows.Close()
			return err
		}
	}
	return rows.Close()
}
