package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// queryFlags are the flags of query, as the API takes them.
type queryFlags struct {
	table       string
	where       []string
	whereNull   string
	order       string
	limit       int
	after       string
	minPosition string
	wait        string
	stale       staleFlag
	format      string
}

var queryFormats = []string{"table", "json", "jsonl", "csv"}

func (c *cli) queryCommand() *cobra.Command {
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "query PROJECTION [KEY]",
		Short: "Read a read model: one row with its children, or a page of rows",
		Long: `query reads the rows of a projection. With KEY it shows one row and its children; without, rows in the
order asked for. Only columns with an index can be filtered or ordered by.

  projhost query accounts --where currency=EUR --order balance:desc --limit 10
  projhost query accounts A-1 --min-position 1200 --wait 5s

A key of which a message could not be applied is told on standard error. With --min-position such a row is refused,
as are the rows of a halted projection, and those of a paused one that is not there: exit status 1, unless
--stale ok is given.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			if len(args) > 2 {
				return exactly("PROJECTION", "KEY")(cmd, args)
			}
			return exactly("PROJECTION")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if c.json && cmd.Flags().Changed("format") && q.format != "json" && q.format != "jsonl" {
				return usage("--json and --format %s contradict each other", q.format)
			}
			if c.json && !cmd.Flags().Changed("format") {
				q.format = "json"
			}
			if !slices.Contains(queryFormats, q.format) {
				return usage("--format is one of %s, not %q", strings.Join(queryFormats, ", "), q.format)
			}
			if q.limit < 1 {
				return usage("--limit must be at least 1")
			}
			values, err := q.values()
			if err != nil {
				return err
			}
			cl, err := c.connectOrRead(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cl.close()) }()
			if len(args) == 2 {
				return c.queryKey(cmd.Context(), cl, args[0], args[1], values, &q)
			}
			return c.queryList(cmd.Context(), cl, args[0], values, &q)
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.table, "table", "", "`table` to read, where the projection has several")
	f.StringArrayVar(&q.where, "where", nil, "only rows where `FIELD=VALUE` (repeat it for more)")
	f.StringVar(&q.whereNull, "where-null", "", "only rows where `FIELD` has no value")
	f.StringVar(&q.order, "order", "", "order by `FIELD`, or FIELD:desc")
	f.IntVar(&q.limit, "limit", 20, "at most `n` rows")
	f.StringVar(&q.after, "after", "", "begin after this `KEY`, or where another order is asked for after this cursor")
	f.StringVar(&q.minPosition, "min-position", "", "wait until everything up to `P` (or TOPIC:P) is applied")
	f.StringVar(&q.wait, "wait", "", "wait this `duration` for --min-position (default 2s)")
	f.Var(&q.stale, "stale", "`ok`: read also what is known to be old, of a halted or paused projection or of a held key")
	f.Lookup("stale").NoOptDefVal = "ok"
	f.StringVar(&q.format, "format", "table", "output `format`: "+strings.Join(queryFormats, ", "))
	return cmd
}

// staleFlag is --stale ok, and --stale for short.
type staleFlag bool

func (s *staleFlag) String() string { return "" }
func (s *staleFlag) Type() string   { return "ok" }

func (s *staleFlag) Set(v string) error {
	if v != "ok" {
		return errors.New("it can only be ok")
	}
	*s = true
	return nil
}

// joinStale makes one word of --stale ok, of which the library would take the
// second for an argument, since the flag stands without a value too.
func joinStale(args []string) []string {
	out := []string{} // nil would mean the process's own
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if arg == "ok" && len(out) > 0 && out[len(out)-1] == "--stale" {
			out[len(out)-1] = "--stale=ok"
			continue
		}
		out = append(out, arg)
	}
	return out
}

// tellOld says on standard error what of an answer is known to be old. key is "" for
// a list.
func (c *cli) tellOld(projection, key string, h http.Header) {
	name := shellWord("projection/" + projection)
	if state := h.Get("Projhost-State"); state == string(store.StatePaused) {
		fmt.Fprintf(c.stderr, "projection/%s is paused; to let it go on: projhost consumers resume %s\n", projection, name)
	}
	switch n := h.Get(api.HeldHeader); {
	case n == "":
	case key != "":
		fmt.Fprintf(c.stderr, "key %s is held: a message of it could not be applied and is not in the row; see: projhost undelivered list %s --key %s\n", printable(key), name, shellWord(key))
	case n == "1":
		fmt.Fprintf(c.stderr, "1 message could not be applied and is not in the rows; see: projhost undelivered list %s\n", name)
	default:
		fmt.Fprintf(c.stderr, "%s messages could not be applied, or wait behind one, and are not in the rows; see: projhost undelivered list %s\n", n, name)
	}
}

// byKey reports whether rows come in the order of their keys, so that a key
// says where to go on.
func (q *queryFlags) byKey() bool {
	field, _, _ := strings.Cut(q.order, ":")
	return field == "" || strings.EqualFold(field, "key")
}

// cursorForm is what no key of sense looks like: a version, a build, a hash and
// a direction in base64.
var cursorForm = regexp.MustCompile(`^AQ[A-Za-z0-9_-]{17,}$`)

func (q *queryFlags) values() (url.Values, error) {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("table", q.table)
	set("order", q.order)
	if q.byKey() && !cursorForm.MatchString(q.after) {
		set("after_key", q.after)
	} else {
		set("after", q.after)
	}
	set("min_position", q.minPosition)
	set("wait", q.wait)
	set("where_null", q.whereNull)
	if q.stale {
		v.Set("stale", "ok")
	}
	for _, w := range q.where {
		field, value, ok := strings.Cut(w, "=")
		if !ok || field == "" {
			return nil, usage("--where is FIELD=VALUE, not %q", w)
		}
		v.Add("where."+field, value)
	}
	return v, nil
}

// The API's most rows in one page.
const rowsPage = 1000

// queryList reads as many pages as it takes.
func (c *cli) queryList(ctx context.Context, cl *client, projection string, v url.Values, q *queryFlags) error {
	var rows []queryRow
	var next json.RawMessage
	var header http.Header
	for left := q.limit; ; {
		v.Set("limit", strconv.Itoa(min(left, rowsPage)))
		body, h, err := cl.call(ctx, http.MethodGet, path("read-models", projection), v, nil)
		if err != nil {
			return fmt.Errorf("query %s: %w", projection, err)
		}
		header = h
		page, cursor, err := decodePage(body)
		if err != nil {
			return fmt.Errorf("query %s: %w", projection, err)
		}
		rows = append(rows, page...)
		next, left = cursor, left-len(page)
		if rawjson.IsNull(next) || left <= 0 {
			break
		}
		after, err := rawjson.String(next)
		if err != nil {
			return fmt.Errorf("query %s: cursor: %w", projection, err)
		}
		v.Del("after_key")
		v.Set("after", after)
	}
	if err := c.printRows(rows, next, q.format); err != nil {
		return err
	}
	c.tellOld(projection, "", header)
	if !rawjson.IsNull(next) && (q.format == "table" || q.format == "csv" || q.format == "jsonl") {
		after, _ := rawjson.String(next)
		if last := &rows[len(rows)-1]; q.byKey() && !last.isChild {
			after = last.key
		}
		fmt.Fprintf(c.stderr, "more rows follow: --after %s\n", shellWord(after))
	}
	return nil
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@-]+$`)

// shellWord quotes what a shell would take apart.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// queryRow is a row as the API gives it, with its columns in order.
type queryRow struct {
	raw       []byte
	key       string
	child     string
	isChild   bool
	columns   []string
	values    [][]byte
	position  string
	updatedAt string
	children  []queryChildren
}

type queryChildren struct {
	table string
	rows  []queryRow
	more  bool
}

func decodePage(body []byte) (rows []queryRow, next json.RawMessage, err error) {
	next = json.RawMessage("null")
	err = rawjson.Members(body, func(name, value []byte, _ int) error {
		switch string(name) {
		case "items":
			rows, err = decodeRows(value)
			return err
		case "next":
			next = value
		}
		return nil
	})
	return rows, next, err
}

func decodeRows(b []byte) (rows []queryRow, err error) {
	err = rawjson.Elements(b, func(el []byte, _ int) error {
		row, err := decodeRow(el)
		rows = append(rows, row)
		return err
	})
	return rows, err
}

func decodeRow(b []byte) (r queryRow, err error) {
	r.raw = b
	more := map[string]bool{}
	err = rawjson.Members(b, func(name, value []byte, _ int) (err error) {
		switch string(name) {
		case "key":
			r.key, err = rawjson.String(value)
		case "child":
			r.isChild = true
			r.child, err = rawjson.String(value)
		case "position":
			r.position = string(value)
		case "updated_at":
			r.updatedAt, err = rawjson.String(value)
		case "row":
			err = rawjson.Members(value, func(name, value []byte, _ int) error {
				r.columns = append(r.columns, string(name))
				r.values = append(r.values, value)
				return nil
			})
		case "children":
			err = rawjson.Members(value, func(name, value []byte, _ int) error {
				rows, err := decodeRows(value)
				r.children = append(r.children, queryChildren{table: string(name), rows: rows})
				return err
			})
		case "children_next":
			err = rawjson.Members(value, func(name, value []byte, _ int) error {
				more[string(name)] = !rawjson.IsNull(value)
				return nil
			})
		}
		return err
	})
	for i := range r.children {
		r.children[i].more = more[r.children[i].table]
	}
	return r, err
}

// cell is a value as people read it. Only null is not what the column holds.
func cell(v []byte) string {
	if s, err := rawjson.String(v); err == nil {
		return s
	}
	return string(v)
}

// cellMax is where a table's cell is cut.
const cellMax = 60

func tableCell(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > cellMax {
		return string(r[:cellMax-1]) + "…"
	}
	return s
}

func (c *cli) printRows(rows []queryRow, next json.RawMessage, format string) error {
	switch format {
	case "json":
		out := []byte(`{"items":[`)
		for i := range rows {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, rows[i].raw...)
		}
		out = append(out, `],"next":`...)
		return c.printLine(append(append(out, next...), '}'))
	case "jsonl":
		for i := range rows {
			if err := c.printLine(oneLine(rows[i].raw)); err != nil {
				return err
			}
		}
		return nil
	case "csv":
		return c.printCSV(rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(c.stdout, "no rows")
		return err
	}
	c.printTable(rows)
	return nil
}

// oneLine takes the line ends out that a json column may hold.
func oneLine(b []byte) []byte {
	if !bytes.ContainsAny(b, "\r\n") {
		return b
	}
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}

func keyColumns(r *queryRow, parents bool) (names, values []string) {
	if !r.isChild || parents {
		names, values = append(names, "key"), append(values, r.key)
	}
	if r.isChild {
		names, values = append(names, "child"), append(values, r.child)
	}
	return names, values
}

func (c *cli) printCSV(rows []queryRow) error {
	w := csv.NewWriter(c.stdout)
	for i := range rows {
		r := &rows[i]
		names, values := keyColumns(r, r.key != "")
		if i == 0 {
			if err := w.Write(slices.Concat(names, r.columns, []string{"ph_position", "ph_updated_at"})); err != nil {
				return err
			}
		}
		for _, v := range r.values {
			if rawjson.IsNull(v) {
				values = append(values, "")
				continue
			}
			values = append(values, cell(v))
		}
		if err := w.Write(append(values, r.position, r.updatedAt)); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

func (c *cli) printTable(rows []queryRow) {
	parents := rows[0].key != ""
	names, _ := keyColumns(&rows[0], parents)
	header := table.Row{}
	for _, n := range slices.Concat(names, rows[0].columns) {
		header = append(header, n)
	}
	t := newTable(c.stdout, header...)
	numeric := make([]bool, len(rows[0].columns))
	for i := range numeric {
		numeric[i] = true
	}
	for i := range rows {
		_, keys := keyColumns(&rows[i], parents)
		row := table.Row{}
		for _, k := range keys {
			row = append(row, tableCell(k))
		}
		for j, v := range rows[i].values {
			if !rawjson.IsNull(v) && j < len(numeric) {
				numeric[j] = numeric[j] && isNumber(cell(v))
			}
			row = append(row, tableCell(cell(v)))
		}
		t.AppendRow(row)
	}
	var rightCols []int
	for i, n := range numeric {
		if n {
			rightCols = append(rightCols, len(names)+i+1)
		}
	}
	right(t, rightCols...)
	t.Render()
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// queryKey reads one row; with a child table, that table's children of the key.
func (c *cli) queryKey(ctx context.Context, cl *client, projection, key string, v url.Values, q *queryFlags) error {
	for _, name := range []string{"order", "where_null"} {
		if v.Has(name) {
			return usage("--%s is for lists: leave KEY out", strings.ReplaceAll(name, "_", "-"))
		}
	}
	if len(q.where) > 0 {
		return usage("--where is for lists: leave KEY out")
	}
	if v.Del("after_key"); q.after != "" {
		v.Set("after", q.after) // of children: the last one's key
	}
	v.Set("limit", strconv.Itoa(min(q.limit, rowsPage)))
	body, header, err := cl.call(ctx, http.MethodGet, path("read-models", projection, key), v, nil)
	if header != nil {
		defer c.tellOld(projection, key, header)
	}
	if err != nil {
		return fmt.Errorf("query %s %s: %w", projection, key, err)
	}
	if rows, next, err := decodePage(body); err == nil && bytes.HasPrefix(body, []byte(`{"items":`)) {
		if err := c.printRows(rows, next, q.format); err != nil {
			return err
		}
		if after, err := rawjson.String(next); err == nil && q.format != "json" {
			fmt.Fprintf(c.stderr, "more children follow: --after %s\n", shellWord(after))
		}
		return nil
	}
	row, err := decodeRow(body)
	if err != nil {
		return fmt.Errorf("query %s %s: decode the answer: %w", projection, key, err)
	}
	switch q.format {
	case "json":
		return c.printLine(body)
	case "jsonl":
		return c.printLine(oneLine(body))
	case "csv":
		return c.printCSV([]queryRow{row})
	}
	t := newTable(c.stdout)
	t.AppendRow(table.Row{"key", row.key})
	for i, name := range row.columns {
		t.AppendRow(table.Row{name, tableCell(cell(row.values[i]))})
	}
	t.AppendRow(table.Row{"(position)", row.position})
	t.AppendRow(table.Row{"(updated at)", row.updatedAt})
	t.Render()
	for _, ch := range row.children {
		fmt.Fprintf(c.stdout, "\n%s:\n", ch.table)
		if len(ch.rows) == 0 {
			fmt.Fprintln(c.stdout, "none")
			continue
		}
		c.printTable(ch.rows)
		if ch.more {
			fmt.Fprintf(c.stderr, "more children follow: --table %s --after %s\n", ch.table, shellWord(ch.rows[len(ch.rows)-1].child))
		}
	}
	return nil
}
