package sqlserver

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/projhost/projhost/readmodel"
)

// rowsJSON collects rows as the JSON text that a batch opens with OPENJSON: one
// parameter whatever the number of rows, so that a statement's text and the plan
// for it stay the same. Bytes are in hexadecimal, a float is split in two.
type rowsJSON struct {
	b    []byte
	open bool // within a row, after its first member
}

// row begins a row.
func (j *rowsJSON) row() {
	if len(j.b) == 0 {
		j.b = append(j.b, '[')
	} else {
		j.b = append(j.b, '}', ',')
	}
	j.b = append(j.b, '{')
	j.open = false
}

// text ends the list. It is valid for no rows as well.
func (j *rowsJSON) text() string {
	if len(j.b) == 0 {
		return "[]"
	}
	return string(append(j.b, '}', ']'))
}

// member writes a member's name. A member that is left out is NULL.
func (j *rowsJSON) member(name string) {
	if j.open {
		j.b = append(j.b, ',')
	}
	j.open = true
	j.b = append(append(append(j.b, '"'), name...), '"', ':')
}

func (j *rowsJSON) int(name string, v int64) {
	j.member(name)
	j.b = strconv.AppendInt(j.b, v, 10)
}

func (j *rowsJSON) string(name, v string) {
	j.member(name)
	j.b = readmodel.AppendJSONString(j.b, v)
}

func (j *rowsJSON) bytes(name string, v []byte) {
	j.member(name)
	j.b = append(hex.AppendEncode(append(j.b, '"'), v), '"')
}

func (j *rowsJSON) float(name string, v float64) {
	mantissa, exponent := whole(v)
	j.int(name, mantissa)
	j.int(exponentOf(name), int64(exponent))
}

// exponentOf names the member beside a float's mantissa.
func exponentOf(name string) string { return "e" + name }

// value writes an argument as package readmodel makes it.
func (j *rowsJSON) value(name string, v any) error {
	switch v := v.(type) {
	case nil:
	case int64:
		j.int(name, v)
	case string:
		j.string(name, v)
	case []byte:
		j.bytes(name, v)
	case float64:
		j.float(name, v)
	case bool:
		n := int64(0)
		if v {
			n = 1
		}
		j.int(name, n)
	default:
		return fmt.Errorf("a %T cannot be written", v)
	}
	return nil
}

// stringsJSON is a JSON list of strings.
func stringsJSON(list []string) string {
	b := []byte{'['}
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = readmodel.AppendJSONString(b, s)
	}
	return string(append(b, ']'))
}

// shortValue holds the text of every number, time and UUID.
const shortValue = "nvarchar(60)"

// openedAs tells how a value of each kind comes out of the JSON text: the type in which
// OPENJSON reads it, and the expression that makes the column's type of it.
func openedAs(d *readmodel.Dialect, c *readmodel.Column, name string) (typ, value string) {
	typ, value = "nvarchar(max)", "j."+name
	switch c.Kind {
	case readmodel.Int:
		typ = "bigint"
	case readmodel.Bool:
		typ = "bit"
	case readmodel.Float:
		typ = "bigint"
		// The product is exact. Half of the exponent at a time: the whole power
		// may be too small to be a number by itself.
		half := "j." + exponentOf(name) + " / 2"
		value = "CAST(j." + name + " AS float(53)) * POWER(CAST(2 AS float(53)), " + half + ")" +
			" * POWER(CAST(2 AS float(53)), j." + exponentOf(name) + " - " + half + ")"
	case readmodel.UUID:
		typ = shortValue
	case readmodel.Decimal, readmodel.Date, readmodel.Time, readmodel.Timestamp:
		typ = shortValue
		value = "CAST(j." + name + " AS " + d.ColumnType(c) + ")"
	case readmodel.Bytes:
		value = "CONVERT(varbinary(max), j." + name + ", 2)"
	}
	return typ, value
}
