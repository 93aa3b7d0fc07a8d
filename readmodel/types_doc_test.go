package readmodel

import (
	"fmt"
	"strings"
)

// typesDocument writes docs/types.md. The column types are those of DDL; n, p
// and s stand for max, precision and scale.
func typesDocument() string {
	var b strings.Builder
	b.WriteString(`# Kinds of columns

<!-- Generated from package readmodel by ` + "`go test ./readmodel -update`" + `; do not edit. -->

What a column of each kind holds, in which form, and how every database stores it. The rules are the same on all five databases, so the
same messages give the same read models on each (P10): a kind's domain is what every one of them can hold.

A value is brought into its one canonical form when a plugin's op arrives, before anything else sees it. The row a plugin reads back with
` + "`get`" + ` is the row as the database holds it, byte for byte, whether it comes from memory or from disk. A value that its column cannot hold
is a bad op: nothing is rounded, cut or converted silently.

## Values

| kind | takes | canonical form | domain | order |
|---|---|---|---|---|
`)
	for k := Text; k <= JSON; k++ {
		i := kinds[k]
		order := i.order
		if order == "" {
			order = "none: it cannot have an index"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", i.name, i.accepts, i.canonical, i.domain, order)
	}
	b.WriteString(`
Nulls come last in both directions, and rows with equal values are ordered by their key and child key, in the direction of the order.

- A column can be null unless the declaration says ` + "`\"null\": false`" + `. An op that leaves such a column without a value, where it has no default, is a bad op.
- ` + fmt.Sprintf("`text` with an index needs a `max` of at most %d. A table has at most %d columns, of them at most %d texts with such a `max`.", IndexedTextMax, ColumnsMax, ShortTextsMax) + `
- ` + "`add`" + ` is for ` + "`int`, `decimal` and `float`" + `. Null counts as 0, an absent row starts from the defaults, sums of decimals are exact, and a sum out of
  range is a bad op.
- A column with ` + "`from`" + ` follows the JSON column ` + "`of`" + `: what the pointer finds there is converted whenever that column is written. A string is read in the
  text form of the kind, a number as it is spelled; nothing or null is null; anything else that does not fit is a bad op. Ops cannot set such a column.
- Keys and child keys are text of 1 to 255 code points without U+0000 that does not end in a space.

## Text forms

So values stand in URLs (` + "`where.amount=12.50`" + `), CSV files and JSON. In JSON, ` + "`int`, `float`, `bool` and `json`" + ` are themselves and all others are strings.

| kind | form |
|---|---|
| ` + "`int`" + ` | ` + "`-12`" + ` |
| ` + "`decimal`" + ` | ` + "`-12.50`" + `, with all digits of its scale |
| ` + "`float`" + ` | ` + "`0.1`, `1e+21`" + `, the shortest that reads back as the same number |
| ` + "`bool`" + ` | ` + "`true`, `false`" + ` |
| ` + "`date`" + ` | ` + "`2011-10-01`" + ` |
| ` + "`time`" + ` | ` + "`01:02:03.500000`" + ` |
| ` + "`timestamp`" + ` | ` + "`2011-09-30T22:38:44.546000Z`" + `; read in any zone, and what is finer than a microsecond is cut off |
| ` + "`uuid`" + ` | ` + "`96f9a74e-4bb1-5940-b42b-1789908e7cf0`" + ` |
| ` + "`bytes`" + ` | base64 |

## Column types

n, p and s stand for ` + "`max`, `precision` and `scale`" + `.

`)
	b.WriteString("| kind |")
	for _, d := range Dialects() {
		b.WriteString(" " + d.Name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(Dialects())) + "\n")
	line := func(label string, typ func(d *Dialect) string) {
		b.WriteString("| " + label + " |")
		for _, d := range Dialects() {
			b.WriteString(" `" + typ(d) + "` |")
		}
		b.WriteString("\n")
	}
	line("key, child", func(d *Dialect) string { return d.key })
	for k := Text; k <= JSON; k++ {
		if k == Text {
			line("`text`, n ≤ 255", func(d *Dialect) string { return typeForm(d.types[k].ddl) })
			line("`text`", func(d *Dialect) string {
				if d.types[k].long == "" {
					return typeForm(d.types[k].ddl)
				}
				return d.types[k].long
			})
			continue
		}
		line("`"+k.String()+"`", func(d *Dialect) string { return typeForm(d.types[k].ddl) })
	}
	line("ph_position, ph_updated_us, ph_epoch", func(d *Dialect) string { return d.integer })
	b.WriteString("\nThe first type of text holds longer ones too, up to a `max` of ")
	var limits []string
	for _, d := range Dialects() {
		if t := d.types[Text]; t.shortMax > IndexedTextMax {
			limits = append(limits, fmt.Sprintf("%d on %s", t.shortMax, d.Name))
		}
	}
	b.WriteString(strings.Join(limits, " and ") + `.

- **SQLite** has no exact decimals and no times. They are text: decimals as they read, dates and times with a fixed width in the form of SQLite's own functions
  (` + "`2011-09-30 22:38:44.546000`" + `, UTC). To calculate with a decimal in your own SQL, ` + "`CAST(amount AS REAL)`" + `. A decimal with an index has a hidden column
  ` + "`ph_n_<name>`" + ` beside it, which sorts by value; the public view leaves it out.
- **PostgreSQL** keeps JSON in ` + "`json`" + `, which keeps its bytes; ` + "`jsonb`" + ` does not. Text has the collation "C", whatever the database's.
- **MySQL and MariaDB** differ only in the name of the collation that compares by code point and does not ignore trailing spaces.
- **SQL Server** compares text without its trailing spaces, in every collation: a unique column does not tell "a" from "a ", and these two sort by their key.
  Index entries hold 1,700 bytes, so the primary key of a child table is ph_row, a hash of both its keys that the database computes; a view leaves it out.

## Tables

A plugin's table ` + "`orders`" + ` is the view ` + "`orders`" + ` (after ` + "`read_model_prefix`" + `) over a table ` + "`orders__b<build>`" + `. It has the columns ` + "`key`" + ` (and ` + "`child`" + ` in a child table), the
declared ones, ` + "`ph_position`" + ` (the last message that changed the row) and ` + "`ph_updated_us`" + ` (the time recorded in it, microseconds since 1970, UTC). Read the view, not the
table: a rebuild may make another table, and the view follows. It is replaced in place, so that grants on it and views that read it stay. On PostgreSQL that is possible only while the
columns stay the same, in their order and of their types; otherwise the view is dropped and made anew in one transaction: grants on it are to be given again, and where another view reads it, PostgreSQL refuses, and
the name shows the rows of the old build until that view has been dropped and a host has started. The other engines replace any view; what reads a column that has gone fails there. Rows are written by projhost alone.
`)
	return b.String()
}

func typeForm(ddl string) string {
	return strings.NewReplacer("{max}", "n", "{bytes}", "3n", "{precision}", "p", "{scale}", "s").Replace(ddl)
}
