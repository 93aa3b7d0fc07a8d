package projhosttest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/projhost/projhost/abi"
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/json"
)

type rowKey struct{ key, child string }

type row []abi.Value // in column order, owning their bytes; nil is absent

type table struct {
	decl *abi.Table
	rows map[rowKey]row
}

func newTable(decl *abi.Table) *table { return &table{decl, map[rowKey]row{}} }

func (t *table) sorted() []rowKey {
	keys := make([]rowKey, 0, len(t.rows))
	for k := range t.rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b rowKey) int {
		if a.key != b.key {
			return strings.Compare(a.key, b.key)
		}
		return strings.Compare(a.child, b.child)
	})
	return keys
}

// fold applies the ops of one entry, all or none.
func (c *call) fold(ops []byte) error {
	clear(c.undo)
	r := abi.ReadOps(ops, c.consumer.Shape)
	var op abi.Op
	for {
		more, err := r.Next(&op)
		if err == nil && more {
			err = c.foldOp(&op)
		}
		if err != nil {
			c.rollBack()
			return err
		}
		if !more {
			return nil
		}
	}
}

func (c *call) rollBack() {
	for t, rows := range c.undo {
		for at, old := range rows {
			if old == nil {
				delete(t.rows, at)
			} else {
				t.rows[at] = old
			}
		}
	}
}

func (c *call) set(t *table, at rowKey, values row) {
	old := c.undo[t]
	if old == nil {
		old = map[rowKey]row{}
		c.undo[t] = old
	}
	if _, ok := old[at]; !ok {
		old[at] = t.rows[at]
	}
	if values == nil {
		delete(t.rows, at)
		return
	}
	t.rows[at] = values
}

func (c *call) foldOp(op *abi.Op) error {
	if op.Code > abi.OpDeleteChildren {
		return fmt.Errorf("op %d is not for projections", op.Code)
	}
	t, _ := c.table(int32(op.Table))
	at := c.rowKey(t, op.Key, op.Child)
	switch op.Code {
	case abi.OpDelete:
		c.set(t, at, nil)
		c.deleteChildren(t.decl.Name, at.key)
		return nil
	case abi.OpDeleteChildren:
		c.deleteRows(t, at.key)
		return nil
	}
	old := t.rows[at]
	if op.Code == abi.OpInsert && old != nil {
		return fmt.Errorf("table %s: insert of a row that exists", t.decl.Name)
	}
	if op.Code == abi.OpUpsert {
		old = nil
	}
	values := t.newRow(old)
	for _, cv := range op.Columns {
		if int(cv.Column) >= len(t.decl.Columns) {
			return fmt.Errorf("table %s: column %d is not declared", t.decl.Name, cv.Column)
		}
		column := &t.decl.Columns[cv.Column]
		if column.From != "" {
			return fmt.Errorf("table %s: column %s is a copy out of %s; the plugin cannot set it", t.decl.Name, column.Name, column.Of)
		}
		v, err := canonical(column, cv.Value)
		if err == nil && op.Code == abi.OpAdd {
			v, err = add(column, values[cv.Column], v)
		}
		if err != nil {
			return fmt.Errorf("table %s: column %s: %w", t.decl.Name, column.Name, err)
		}
		values[cv.Column] = v
	}
	if err := t.copyOut(values); err != nil {
		return err
	}
	for i := range values {
		if values[i].IsNull() && !t.decl.Columns[i].Nullable() {
			return fmt.Errorf("table %s: column %s needs a value", t.decl.Name, t.decl.Columns[i].Name)
		}
	}
	c.set(t, at, values)
	return nil
}

func (c *call) deleteChildren(parent, key string) {
	for _, t := range c.harness.tables {
		if t.decl.Parent == parent {
			c.deleteRows(t, key)
		}
	}
}

func (c *call) deleteRows(t *table, key string) {
	for at := range t.rows {
		if at.key == key {
			c.set(t, at, nil)
		}
	}
}

// newRow is a copy of old, or a row of defaults.
func (t *table) newRow(old row) row {
	values := make(row, len(t.decl.Columns))
	for i := range values {
		if old != nil {
			values[i] = old[i]
		} else if v, ok := t.decl.Columns[i].DefaultValue(); ok {
			values[i], _ = canonical(&t.decl.Columns[i], v)
		}
	}
	return values
}

// copyOut fills the columns that are copies out of a json column.
func (t *table) copyOut(values row) error {
	for i := range t.decl.Columns {
		column := &t.decl.Columns[i]
		if column.From == "" {
			continue
		}
		pointer, err := json.NewPointer(column.From)
		if err != nil {
			return err
		}
		for j := range t.decl.Columns {
			if t.decl.Columns[j].Name == column.Of {
				v, err := columnOfJSON(column, json.Parse(values[j].B).Find(pointer))
				if err != nil {
					return fmt.Errorf("table %s: column %s: %w", t.decl.Name, column.Name, err)
				}
				values[i] = v
			}
		}
	}
	return nil
}

func columnOfJSON(column *abi.Column, v json.Value) (abi.Value, error) {
	if !v.Exists() || v.IsNull() {
		return abi.Null(), nil
	}
	literal := *column
	literal.Default = abi.RawJSON(v.Raw())
	value, ok := literal.DefaultValue()
	if !ok {
		return abi.Null(), fmt.Errorf("%s is no %s", v.Raw(), column.Kind)
	}
	return canonical(column, value)
}

// canonical is the one form in which a host keeps a value, or why the column
// cannot hold it.
func canonical(column *abi.Column, v abi.Value) (abi.Value, error) {
	v.B = slices.Clone(v.B)
	if v.IsNull() {
		return v, nil
	}
	if v.Tag != tagOf(column.Kind) && (v.Tag != abi.TagFalse || column.Kind != abi.ColumnBool) {
		return v, fmt.Errorf("a value with tag %d is no %s", v.Tag, column.Kind)
	}
	switch v.Tag {
	case abi.TagText:
		if n := len(utf16.Encode([]rune(string(v.B)))); column.Max > 0 && n > column.Max {
			return v, fmt.Errorf("a text of %d UTF-16 units, at most %d are allowed", n, column.Max)
		}
	case abi.TagFloat:
		if math.Abs(v.F) < 0x1p-1022 {
			v.F = 0
		}
	case abi.TagJSON:
		if !json.Valid(v.B) {
			return v, errors.New("not one valid JSON value")
		}
	case abi.TagDecimal:
		d, err := projhost.ParseDecimal(string(v.B))
		if err != nil {
			return v, err
		}
		scaled, ok := d.Rescale(column.Scale)
		text := scaled.String()
		digits := len(strings.TrimLeft(strings.ReplaceAll(strings.TrimPrefix(text, "-"), ".", ""), "0"))
		if !ok || digits > column.Precision {
			return v, fmt.Errorf("%s does not fit %d digits, %d of them behind the point", d, column.Precision, column.Scale)
		}
		v.B = []byte(text)
	case abi.TagDate, abi.TagTimestamp:
		day := projhost.Date(v.I)
		if v.Tag == abi.TagTimestamp {
			day = projhost.Timestamp(v.I).Date()
		}
		if year, _, _ := day.Civil(); year < 1000 || year > 9999 {
			return v, errors.New("it is not within the years 1000 to 9999")
		}
	}
	return v, nil
}

func tagOf(kind string) abi.Tag {
	switch kind {
	case abi.ColumnText:
		return abi.TagText
	case abi.ColumnInt:
		return abi.TagInt
	case abi.ColumnDecimal:
		return abi.TagDecimal
	case abi.ColumnFloat:
		return abi.TagFloat
	case abi.ColumnBool:
		return abi.TagTrue
	case abi.ColumnDate:
		return abi.TagDate
	case abi.ColumnTime:
		return abi.TagTime
	case abi.ColumnTimestamp:
		return abi.TagTimestamp
	case abi.ColumnUUID:
		return abi.TagUUID
	case abi.ColumnBytes:
		return abi.TagBytes
	}
	return abi.TagJSON
}

func add(column *abi.Column, old, n abi.Value) (abi.Value, error) {
	if old.IsNull() {
		return n, nil
	}
	if n.Tag == abi.TagInt {
		sum := old.I + n.I
		if (sum > old.I) != (n.I > 0) && n.I != 0 {
			return n, errors.New("the sum does not fit 64 bits")
		}
		return abi.Int(sum), nil
	}
	a, err := projhost.ParseDecimal(string(old.B))
	if err != nil {
		return n, err
	}
	b, err := projhost.ParseDecimal(string(n.B))
	if err != nil {
		return n, err
	}
	return canonical(column, abi.Decimal(a.Add(b).String()))
}

// Row returns a row as the HTTP interface spells it, or "" where it is absent.
func (h *Harness) Row(table, key string) string { return h.Child(table, key, "") }

// Child returns a row of a child table, or "" where it is absent.
func (h *Harness) Child(table, key, child string) string {
	h.t.Helper()
	t := h.table(table)
	values, ok := t.rows[rowKey{key, child}]
	if !ok {
		return ""
	}
	return string(t.appendRow(nil, values))
}

// Rows returns all rows of a table in the order of their keys, each as JSON with
// its key and, in a child table, its child key.
func (h *Harness) Rows(table string) []string {
	h.t.Helper()
	t := h.table(table)
	var rows []string
	for _, at := range t.sorted() {
		b := json.AppendString([]byte(`{"key":`), at.key)
		if t.decl.Parent != "" {
			b = json.AppendString(append(b, `,"child":`...), at.child)
		}
		b = t.appendRow(append(b, `,"row":`...), t.rows[at])
		rows = append(rows, string(append(b, '}')))
	}
	return rows
}

// Dump returns all rows of all tables as text: what a golden file holds.
func (h *Harness) Dump() string {
	var b strings.Builder
	for i := range h.manifest.Consumers {
		for _, decl := range h.manifest.Consumers[i].Tables {
			fmt.Fprintf(&b, "# %s\n", decl.Name)
			for _, line := range h.Rows(decl.Name) {
				fmt.Fprintln(&b, line)
			}
		}
	}
	return b.String()
}

// Golden compares Dump with a file. With PROJHOST_UPDATE=1 in the environment it
// writes the file instead: look at the difference before it is committed.
func (h *Harness) Golden(path string) {
	h.t.Helper()
	got := h.Dump()
	if os.Getenv("PROJHOST_UPDATE") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			h.t.Fatalf("golden file: %v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			h.t.Fatalf("golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatalf("golden file: %v (PROJHOST_UPDATE=1 writes it)", err)
	}
	if got != string(want) {
		h.t.Fatalf("%s differs (PROJHOST_UPDATE=1 writes it anew)\n%s", path, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d\nwant %s\n got %s", i+1, a, b)
		}
	}
	return ""
}

func (h *Harness) table(name string) *table {
	h.t.Helper()
	t, ok := h.tables[strings.ToLower(name)]
	if !ok {
		h.t.Fatalf("the plugin declares no table %q", name)
	}
	return t
}

func (t *table) appendRow(b []byte, values row) []byte {
	b = append(b, '{')
	for i := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(json.AppendString(b, t.decl.Columns[i].Name), ':')
		b = appendValue(b, values[i])
	}
	return append(b, '}')
}

// appendValue spells a value as the HTTP interface does.
func appendValue(b []byte, v abi.Value) []byte {
	switch v.Tag {
	case abi.TagNull:
		return append(b, "null"...)
	case abi.TagFalse, abi.TagTrue:
		return strconv.AppendBool(b, v.Bool())
	case abi.TagInt:
		return strconv.AppendInt(b, v.I, 10)
	case abi.TagFloat:
		var w json.Writer
		w.Float(v.F)
		return append(b, w.Bytes()...)
	case abi.TagText, abi.TagDecimal:
		return json.AppendString(b, string(v.B))
	case abi.TagTimestamp:
		return json.AppendString(b, projhost.Timestamp(v.I).String())
	case abi.TagDate:
		return json.AppendString(b, projhost.Date(v.I).String())
	case abi.TagTime:
		return json.AppendString(b, projhost.TimeOfDay(v.I).String())
	case abi.TagUUID:
		return json.AppendString(b, projhost.UUID(v.B).String())
	case abi.TagJSON:
		return append(b, v.B...)
	}
	return json.AppendString(b, base64.StdEncoding.EncodeToString(v.B))
}
