package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

var (
	collates   = regexp.MustCompile(` COLLATE Latin1_General_100_BIN2(_UTF8)?`)
	hashes     = regexp.MustCompile(`CAST\(HASHBYTES\('SHA2_256', CAST\((.+?) AS VARBINARY\(1020\)\) \+ 0x00 \+ CAST\((.+?) AS VARBINARY\(1020\)\)\) AS BINARY\(32\)\)`)
	castText   = regexp.MustCompile(`(?i)CAST\((@?[\w.]+) AS (?:varchar|char|decimal|date|time|datetime2)(?:\([^)]*\))?\)`)
	castOther  = regexp.MustCompile(`(?i)CAST\((@?[\w.]+) AS (?:bigint)\)`)
	decimals   = regexp.MustCompile(`DECIMAL\((\d+),(\d+)\)`)
	castFloat  = regexp.MustCompile(`(?i)CAST\((@?[\w.]+) AS float\(53\)\)`)
	converts   = regexp.MustCompile(`(?i)CONVERT\((?:var)?binary\(\w+\), (j\.\w+), 2\)`)
	castByte   = regexp.MustCompile(`CAST\(SUBSTRING\((@\w+), ([^,]+), 1\) AS int\)`)
	unicode    = regexp.MustCompile(`\bN'`)
	variables  = regexp.MustCompile(`@(\w+)`)
	top        = regexp.MustCompile(`^SELECT TOP \(([^)]+)\) `)
	fetch      = regexp.MustCompile(` OFFSET 0 ROWS FETCH NEXT (\S+) ROWS ONLY`)
	innerTop   = regexp.MustCompile(`(?s)\(\s*SELECT TOP \(([^)]+)\) ((?:[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*)\)`)
	openJSON   = regexp.MustCompile(`(?s)OPENJSON\((@\w+)\) WITH \(((?:[^()']|'[^']*'|\(\w+\))*)\) AS j`)
	jsonColumn = regexp.MustCompile(`(?s)^\s*(\w+) \S+ '(\$[^']*)'\s*$`)
	updateFrom = regexp.MustCompile(`(?s)^UPDATE (\w+) SET (.*?)\n\s*FROM (\S+) AS (\w+) INNER LOOP JOIN (\S+) AS (\w+)(?: WITH \(ROWLOCK(?:, READPAST)?\))? ON (.*?)(?:\s+WHERE (.*))?$`)
	updateSelf = regexp.MustCompile(`(?s)^UPDATE (\w+) SET (.*?)\n\s*FROM (\S+) AS (\w+) WHERE (.*)$`)
	outputs    = regexp.MustCompile(`(?s)\s+OUTPUT inserted\.\[partition\], inserted\.generation INTO (@\w+) \(\[partition\], generation\)`)
	deleteFrom = regexp.MustCompile(`(?s)^DELETE (\w+) FROM (\S+) AS (\w+) INNER LOOP JOIN (\S+) AS (\w+) ON (.*?)(?: WHERE (.*))?$`)
	deleteSelf = regexp.MustCompile(`(?s)^DELETE FROM (\w+) FROM (\S+) AS (\w+) WHERE (.*)$`)
	outerApply = regexp.MustCompile(`(?s)^(SELECT .*?)\s+FROM (\S+) AS t\s+OUTER APPLY \(\s*SELECT TOP \(@limit\) v\.\* FROM (\S+) AS v\s+WHERE (.*?) ORDER BY v\.position\s*\) AS e\s+WHERE (.*) ORDER BY e\.position$`)
	keyTail    = regexp.MustCompile(`PRIMARY KEY (?:NONCLUSTERED )?\(\[ph_row\]\)`)
	computed   = regexp.MustCompile(`(\[?\w+\]?) AS (ph_hash\([^)]*\))(?: PERSISTED NOT NULL)?`)
	identity   = regexp.MustCompile(`(\w+)\s+bigint\s+NOT NULL IDENTITY\(1,1\)`)
	include    = regexp.MustCompile(` INCLUDE \([^)]*\)`)
)

// boundless is the length that stands for "max".
const boundless = "2000000000"

// common rewrites what stands in expressions and definitions alike.
func common(s string) string {
	s = collates.ReplaceAllString(s, "")
	for range 3 { // casts in casts
		s = castText.ReplaceAllString(s, "$1")
		s = castOther.ReplaceAllString(s, "$1")
	}
	s = decimals.ReplaceAllString(s, "DECIMAL_TEXT($1,$2) COLLATE ph_decimal")
	s = castFloat.ReplaceAllString(s, "CAST($1 AS REAL)")
	s = hashes.ReplaceAllString(s, "ph_hash($1, $2)")
	s = converts.ReplaceAllString(s, "unhex($1)")
	s = castByte.ReplaceAllString(s, "((instr('0123456789ABCDEF', substr(hex($1), 2 * ($2) - 1, 1)) - 1) * 16 + instr('0123456789ABCDEF', substr(hex($1), 2 * ($2), 1)) - 1)")
	s = unicode.ReplaceAllString(s, "'")
	s = strings.ReplaceAll(s, nowSQL, "CAST(unixepoch('subsec') * 1000000 AS INTEGER)")
	s = strings.ReplaceAll(s, "DATALENGTH(", "octet_length(")
	s = strings.ReplaceAll(s, " WITH (ROWLOCK)", "")
	s = strings.ReplaceAll(s, " WITH (ROWLOCK, READPAST)", "")
	s = strings.NewReplacer("(max)", "("+boundless+")", "(MAX)", "("+boundless+")").Replace(s)
	s = strings.ReplaceAll(s, "\nOPTION (LOOP JOIN)", "")
	return s
}

// types rewrites the columns of a table variable.
func (c *emulatedConn) types(s string) string {
	return computed.ReplaceAllString(common(s), "$1 BLOB GENERATED ALWAYS AS ($2)")
}

// words rewrites an expression or a query.
func (c *emulatedConn) words(s string) string {
	s = common(s)
	s = openJSON.ReplaceAllStringFunc(s, func(part string) string {
		m := openJSON.FindStringSubmatch(part)
		var columns []string
		for _, col := range strings.Split(m[2], ",") {
			f := jsonColumn.FindStringSubmatch(col)
			if f == nil {
				panic("a column of OPENJSON is not understood: " + col)
			}
			value := "value ->> '" + f[2] + "'"
			if f[2] == "$" {
				value = "value"
			}
			columns = append(columns, value+" AS "+f[1])
		}
		return "(SELECT " + strings.Join(columns, ", ") + " FROM json_each(" + m[1] + ")) AS j"
	})
	s = strings.ReplaceAll(s, "INNER LOOP JOIN", "JOIN")
	return c.marks(s)
}

// marks gives variables their names: of tables, of the count, of values.
func (c *emulatedConn) marks(s string) string {
	s = strings.ReplaceAll(s, "@@ROWCOUNT", ":rowcount")
	return variables.ReplaceAllStringFunc(s, func(v string) string {
		if _, ok := c.vars[v[1:]]; ok {
			return ":" + v[1:]
		}
		return "v_" + v[1:]
	})
}

var assigned = regexp.MustCompile(`(^|,\s+)\w+\.`)

// statement rewrites and runs one statement.
func (c *emulatedConn) statement(s string) (*reply, error) {
	s = strings.TrimSuffix(strings.TrimSpace(s), ";")
	into := ""
	if m := outputs.FindStringSubmatch(s); m != nil {
		into, s = m[1], outputs.ReplaceAllString(s, "")
	}
	switch {
	case strings.HasPrefix(s, "CREATE TABLE"):
		s = computed.ReplaceAllString(common(s), "$1 BLOB NOT NULL GENERATED ALWAYS AS ($2) STORED")
		s = keyTail.ReplaceAllString(s, "UNIQUE ([ph_row])")
		s = strings.ReplaceAll(s, "PRIMARY KEY NONCLUSTERED", "PRIMARY KEY")
		if m := identity.FindStringSubmatch(s); m != nil {
			s = identity.ReplaceAllString(s, "$1 INTEGER PRIMARY KEY AUTOINCREMENT")
			s = strings.Replace(s, ",\n    PRIMARY KEY ("+m[1]+")", "", 1)
		}
		_, err := c.c.ExecContext(context.Background(), s, nil)
		return &reply{}, translated(err, c.line)
	case strings.HasPrefix(s, "CREATE OR ALTER VIEW"):
		name := strings.Fields(s)[4]
		_, err := c.c.ExecContext(context.Background(), "DROP VIEW IF EXISTS "+name+"; "+strings.Replace(s, " OR ALTER", "", 1), nil)
		return &reply{}, translated(err, c.line)
	case strings.HasPrefix(s, "CREATE"):
		_, err := c.c.ExecContext(context.Background(), include.ReplaceAllString(s, ""), nil)
		return &reply{}, translated(err, c.line)
	}
	s = common(s)
	if m := outerApply.FindStringSubmatch(s); m != nil {
		s = m[1] + " FROM " + m[2] + " AS t LEFT JOIN " + m[3] + " AS e ON " + strings.ReplaceAll(m[4], "v.", "e.") +
			" WHERE " + m[5] + " ORDER BY e.position LIMIT @limit"
	} else if m := updateFrom.FindStringSubmatch(s); m != nil && m[1] == m[6] {
		where := "(" + m[7] + ")"
		if m[8] != "" {
			where += " AND (" + m[8] + ")"
		}
		s = "UPDATE " + m[5] + " AS " + m[6] + " SET " + assigned.ReplaceAllString(m[2], "$1") + " FROM " + m[3] + " AS " + m[4] + " WHERE " + where
	} else if m != nil && m[1] == m[4] { // the table variable is what changes
		s = "UPDATE " + m[3] + " AS " + m[4] + " SET " + assigned.ReplaceAllString(m[2], "$1") + " FROM " + m[5] + " AS " + m[6] +
			" WHERE (" + m[7] + ") AND (" + m[8] + ")"
	} else if m := updateSelf.FindStringSubmatch(s); m != nil && m[1] == m[4] {
		s = "UPDATE " + m[3] + " AS " + m[4] + " SET " + assigned.ReplaceAllString(m[2], "$1") + " WHERE " + m[5]
	} else if m := deleteFrom.FindStringSubmatch(s); m != nil && m[1] == m[5] {
		where := "(" + m[6] + ")"
		if m[7] != "" {
			where += " AND (" + m[7] + ")"
		}
		s = "DELETE FROM " + m[4] + " AS " + m[5] + " WHERE EXISTS (SELECT 1 FROM " + m[2] + " AS " + m[3] + " WHERE " + where + ")"
	} else if m := deleteSelf.FindStringSubmatch(s); m != nil && m[1] == m[3] {
		s = "DELETE FROM " + m[2] + " AS " + m[3] + " WHERE " + m[4]
	}
	for innerTop.MatchString(s) {
		s = innerTop.ReplaceAllString(s, "(SELECT $2 LIMIT $1)")
	}
	if m := top.FindStringSubmatch(s); m != nil {
		s = top.ReplaceAllString(s, "SELECT ") + " LIMIT " + m[1]
	}
	s = fetch.ReplaceAllString(s, " LIMIT $1")
	s = c.words(s)
	if into == "" {
		return c.query(s)
	}
	r, err := c.query(s + " RETURNING [partition], generation")
	if err != nil {
		return nil, err
	}
	for _, row := range r.rows {
		c.vars["a"], c.vars["b"] = row[0], row[1]
		if _, err := c.query("INSERT INTO " + c.marks(into) + " VALUES (:a, :b)"); err != nil {
			return nil, err
		}
	}
	return &reply{}, nil
}

var marked = regexp.MustCompile(`:(\w+)`)

// query runs a statement of SQLite's with the variables that it names.
func (c *emulatedConn) query(s string) (*reply, error) {
	c.vars["rowcount"] = c.last
	var args []driver.NamedValue
	seen := map[string]bool{}
	for _, m := range marked.FindAllStringSubmatch(stripTexts(s), -1) {
		if v, ok := c.vars[m[1]]; ok && !seen[m[1]] {
			seen[m[1]] = true
			args = append(args, driver.NamedValue{Name: m[1], Ordinal: len(args) + 1, Value: v})
		}
	}
	rs, err := c.c.QueryContext(context.Background(), s, args)
	if err != nil {
		return nil, c.refused(err, s)
	}
	r := &reply{columns: len(rs.Columns())}
	for err == nil {
		row := make([]driver.Value, r.columns)
		if err = rs.Next(row); err == nil {
			r.rows = append(r.rows, row)
		}
	}
	if err == io.EOF {
		err = nil
	}
	if err := errors.Join(err, rs.Close()); err != nil {
		return nil, c.refused(err, s)
	}
	if r.columns == 0 || strings.Contains(s, " RETURNING ") {
		n, err := c.c.QueryContext(context.Background(), "SELECT changes()", nil)
		if err != nil {
			return nil, err
		}
		row := make([]driver.Value, 1)
		err = errors.Join(n.Next(row), n.Close())
		if err != nil {
			return nil, err
		}
		c.last, r.counted = row[0].(int64), row[0].(int64)
	}
	return r, nil
}

var quotedText = regexp.MustCompile(`'[^']*'`)

func stripTexts(s string) string { return quotedText.ReplaceAllString(s, "''") }

// refused says which statement was not understood.
func (c *emulatedConn) refused(err error, s string) error {
	err = translated(err, c.line)
	if number(err) == 50000 {
		return fmt.Errorf("%w: %s", err, s)
	}
	return err
}
