package sqlserver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// What is to be done with a staged row.
const (
	opDelete = 0
	opWrite  = 1
	// opUpdate is a row that is there and keeps its indexed columns.
	opUpdate = 2
)

// section is what a batch does with one table. Its text depends on the table
// alone, not on the rows, so that the server can keep the plan.
type section struct {
	plan                           *sqlstore.Plan
	rowsName, goneName             string // parameters, JSON
	staleName                      string
	rowsTable, goneTable           string // table variables
	staleTable                     string
	hasRows, hasGone, child, apart bool
	hasStale                       bool
}

func newSection(plan *sqlstore.Plan, n int, t *store.TableWrites) *section {
	i := strconv.Itoa(n)
	return &section{plan: plan, rowsName: "@rows" + i, goneName: "@gone" + i, staleName: "@stale" + i,
		rowsTable: "@w" + i, goneTable: "@g" + i, staleTable: "@s" + i,
		hasRows: len(t.Writes) > 0, hasGone: len(t.DeleteChildrenOf) > 0, hasStale: len(t.PruneKeys) > 0, child: plan.Table.Parent != nil,
		// Rows of a table with a unique column are taken out before they are
		// written, so that a value can move from one row to another (H18).
		apart: plan.Table.Unique}
}

// rows stages the table's writes.
func (c *section) rows(t *store.TableWrites) (string, error) {
	var j rowsJSON
	var args []any
	for i := range t.Writes {
		row := &t.Writes[i]
		j.row()
		j.string("k", row.Key.Key)
		if c.child {
			j.string("h", row.Key.Child)
		}
		if row.Row == nil {
			j.int("o", opDelete)
			continue
		}
		op := int64(opWrite)
		if c.apart && c.plan.Updates(row) {
			op = opUpdate
		}
		j.int("o", op)
		var err error
		if args, err = c.plan.RowArgs(args[:0], row, t.Table.Epoch); err != nil {
			return "", fmt.Errorf("table %s, row %q: %w", c.plan.Table.Name, row.Key.Key, err)
		}
		values := args[1:]
		if c.child {
			values = args[2:]
		}
		for n := range c.plan.Table.Columns {
			if err := j.value(valueName(n), values[n]); err != nil {
				return "", fmt.Errorf("table %s, column %s: %w", c.plan.Table.Name, c.plan.Table.Columns[n].Name, err)
			}
		}
		j.int("p", row.Position)
		j.int("u", row.UpdatedUS)
	}
	return j.text(), nil
}

// valueName is the member of a staged row, and the column of the table variable,
// that holds a declared column.
func valueName(n int) string { return "v" + strconv.Itoa(n) }

const keyType = "varchar(1020) COLLATE " + collation

// stage opens the JSON text into table variables with the columns' own types.
func (c *section) stage() string {
	d := readmodel.SQLServer
	var b strings.Builder
	keys := func(has bool, table, name string) {
		if has {
			fmt.Fprintf(&b, "DECLARE %s TABLE (k %s NOT NULL);\n", table, keyType)
			fmt.Fprintf(&b, "INSERT INTO %s (k)\nSELECT j.k FROM OPENJSON(%s) WITH (k nvarchar(510) '$') AS j;\n", table, name)
		}
	}
	keys(c.hasGone, c.goneTable, c.goneName)
	keys(c.hasStale, c.staleTable, c.staleName)
	if !c.hasRows {
		return b.String()
	}
	var declared, names, values, opened []string
	add := func(name, typ, null, openedAs, value string) {
		declared = append(declared, name+" "+typ+null)
		names = append(names, name)
		values = append(values, value)
		opened = append(opened, name+" "+openedAs+" '$."+name+"'")
	}
	add("k", keyType, " NOT NULL", "nvarchar(510)", "j.k")
	if c.child {
		add("h", keyType, " NOT NULL", "nvarchar(510)", "j.h")
		declared = append(declared, "r AS "+d.RowHash("k", "h"))
	}
	add("o", "int", " NOT NULL", "int", "j.o")
	add("p", "bigint", " NULL", "bigint", "j.p")
	add("u", "bigint", " NULL", "bigint", "j.u")
	for i := range c.plan.Table.Columns {
		col := &c.plan.Table.Columns[i]
		name := valueName(i)
		openedAs, value := openedAs(d, col, name)
		add(name, d.ColumnType(col), " NULL", openedAs, value)
		if col.Kind == readmodel.Float {
			opened = append(opened, exponentOf(name)+" int '$."+exponentOf(name)+"'")
		}
	}
	fmt.Fprintf(&b, "DECLARE %s TABLE (%s);\n", c.rowsTable, strings.Join(declared, ", "))
	fmt.Fprintf(&b, "INSERT INTO %s (%s)\nSELECT %s\nFROM OPENJSON(%s) WITH (%s) AS j;\n",
		c.rowsTable, strings.Join(names, ", "), strings.Join(values, ", "), c.rowsName, strings.Join(opened, ", "))
	return b.String()
}

// sameKey is the condition that row t of the table is row w of those staged.
func (c *section) sameKey() string {
	d := readmodel.SQLServer
	if c.child {
		return "t." + d.Quote(readmodel.RowColumn) + " = w.r"
	}
	return "t." + d.Quote(readmodel.KeyColumn) + " = w.k"
}

func (c *section) deletes() string {
	d := readmodel.SQLServer
	table := d.Quote(c.plan.Physical)
	key := "t." + d.Quote(readmodel.KeyColumn)
	var b strings.Builder
	if c.hasGone {
		fmt.Fprintf(&b, "DELETE t FROM %s AS w INNER LOOP JOIN %s AS t ON %s = w.k;\n", c.goneTable, table, key)
	}
	if c.hasStale {
		fmt.Fprintf(&b, "DELETE t FROM %s AS w INNER LOOP JOIN %s AS t ON %s = w.k WHERE t.%s < @epoch;\n",
			c.staleTable, table, key, d.Quote(readmodel.EpochColumn))
	}
	if !c.hasRows {
		return b.String()
	}
	ops := strconv.Itoa(opDelete)
	if c.apart {
		ops += ", " + strconv.Itoa(opWrite)
	}
	fmt.Fprintf(&b, "DELETE t FROM %s AS w INNER LOOP JOIN %s AS t ON %s WHERE w.o IN (%s);\n", c.rowsTable, table, c.sameKey(), ops)
	for _, child := range c.plan.Children {
		fmt.Fprintf(&b, "DELETE t FROM %s AS w INNER LOOP JOIN %s AS t ON %s = w.k WHERE w.o = %d;\n",
			c.rowsTable, d.Quote(child.Physical), key, opDelete)
	}
	return b.String()
}

func (c *section) upserts() string {
	if !c.hasRows {
		return ""
	}
	d, t := readmodel.SQLServer, c.plan.Table
	table := d.Quote(c.plan.Physical)
	names := []string{d.Quote(readmodel.KeyColumn)}
	values := []string{"w.k"}
	if c.child {
		names, values = append(names, d.Quote(readmodel.ChildColumn)), append(values, "w.h")
	}
	var set []string
	column := func(name, value string, update bool) {
		names, values = append(names, d.Quote(name)), append(values, value)
		if update {
			set = append(set, "t."+d.Quote(name)+" = "+value)
		}
	}
	for i := range t.Columns {
		column(t.Columns[i].Name, "w."+valueName(i), !c.apart || !t.Columns[i].Index)
	}
	column(readmodel.PositionColumn, "w.p", true)
	column(readmodel.UpdatedColumn, "w.u", true)
	column(readmodel.EpochColumn, "@epoch", true)
	update := opWrite
	if c.apart {
		update = opUpdate
	}
	var b strings.Builder
	fmt.Fprintf(&b, "UPDATE t SET %s\nFROM %s AS w INNER LOOP JOIN %s AS t ON %s WHERE w.o = %d;\n",
		strings.Join(set, ", "), c.rowsTable, table, c.sameKey(), update)
	fmt.Fprintf(&b, "INSERT INTO %s (%s)\nSELECT %s\nFROM %s AS w WHERE w.o <> %d AND NOT EXISTS (SELECT 1 FROM %s AS t WHERE %s)\nOPTION (LOOP JOIN);\n",
		table, strings.Join(names, ", "), strings.Join(values, ", "), c.rowsTable, opDelete, table, c.sameKey())
	return b.String()
}
