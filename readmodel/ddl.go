package readmodel

import "strings"

// CreateTable returns the statements that make a build's table, with its
// primary key: without one, a row written twice would be two rows.
func (d *Dialect) CreateTable(physical string, t *Table) []string {
	var b strings.Builder
	b.WriteString(d.create + " " + d.Quote(physical) + " (\n")
	line := func(name, typ string, null bool) {
		b.WriteString("  " + d.Quote(name) + " " + typ)
		if !null {
			b.WriteString(" NOT NULL")
		}
		b.WriteString(",\n")
	}
	line(KeyColumn, d.key, false)
	if t.Parent != nil {
		line(ChildColumn, d.key, false)
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		line(c.Name, d.ColumnType(c), c.Nullable)
	}
	for i := range t.Columns {
		if c := &t.Columns[i]; d.sorted(c) {
			line(sortPrefix+c.Name, d.sortType(c), c.Nullable)
		}
	}
	for _, name := range []string{PositionColumn, UpdatedColumn, EpochColumn} {
		line(name, d.integer, true)
	}
	key := t.keyColumns()
	if d.hashed(t) {
		b.WriteString("  " + d.rowColumnDDL() + ",\n")
		key = []string{RowColumn}
	}
	b.WriteString("  PRIMARY KEY ")
	if d.nonclustered && key[0] != RowColumn {
		b.WriteString("NONCLUSTERED ")
	}
	b.WriteString("(" + d.quoteAll(key) + ")\n)")
	if d.tableOptions != nil {
		b.WriteString(d.tableOptions(t))
	}
	return []string{b.String()}
}

func (d *Dialect) rowColumnDDL() string {
	return d.Quote(RowColumn) + " AS " + d.RowHash(d.Quote(KeyColumn), d.Quote(ChildColumn)) + " PERSISTED NOT NULL"
}

// keyColumns are the columns of the primary key.
func (t *Table) keyColumns() []string {
	if t.Parent != nil {
		return []string{KeyColumn, ChildColumn}
	}
	return []string{KeyColumn}
}

func (d *Dialect) quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = d.Quote(n)
	}
	return strings.Join(quoted, ", ")
}

// CreateIndexes returns the statements that make the table's secondary indexes,
// unique ones included. They may be made after the rows. A plain index ends in
// the key, the tie-break of every order.
func (d *Dialect) CreateIndexes(physical string, t *Table) []string {
	var statements []string
	if d.hashed(t) {
		statements = append(statements, "CREATE INDEX "+d.Quote(IndexName(physical, KeyColumn, ChildColumn))+
			" ON "+d.Quote(physical)+" ("+d.Quote(KeyColumn)+") INCLUDE ("+d.Quote(ChildColumn)+")")
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if !c.Index {
			continue
		}
		columns := []string{d.orderBy(c)}
		create, where := "CREATE INDEX ", ""
		if c.Unique {
			create = "CREATE UNIQUE INDEX "
			if d.uniqueNulls && c.Nullable {
				where = " WHERE " + d.Quote(c.Name) + " IS NOT NULL"
			}
		} else {
			columns = append(columns, d.indexTail(t, c)...)
		}
		statements = append(statements, create+d.Quote(IndexName(physical, columns...))+
			" ON "+d.Quote(physical)+" ("+d.quoteAll(columns)+")"+where)
	}
	return statements
}

// indexTail is what follows the column in an index: the key, unless that would
// pass the engine's limit of an index entry. The order then needs a sort.
func (d *Dialect) indexTail(t *Table, c *Column) []string {
	size := utf8Bytes(c.Max)
	if c.Kind != Text {
		size = fixedBytesMax
	}
	for range t.keyColumns() {
		size += 4 * KeyMax
	}
	if d.indexBytes != 0 && size > d.indexBytes {
		return nil
	}
	return t.keyColumns()
}

// fixedBytesMax is the most bytes of an indexed column that is no text.
const fixedBytesMax = 36

// CreateView returns the statements that make the public name show a build's
// table, replacing what it showed before, in place where the engine can: so
// users' grants and views survive a switch of builds.
func (d *Dialect) CreateView(public, physical string, t *Table) []string {
	return d.view(d, public, "SELECT "+d.quoteAll(t.viewColumns())+"\nFROM "+d.Quote(physical))
}

func (t *Table) viewColumns() []string {
	names := t.keyColumns()
	for i := range t.Columns {
		names = append(names, t.Columns[i].Name)
	}
	return append(names, PositionColumn, UpdatedColumn)
}

// DropTable returns the statement that removes a build's table, if it is there.
func (d *Dialect) DropTable(physical string) string { return d.dropTable + d.Quote(physical) }

// DropView returns the statement that removes a public name, if it is there.
func (d *Dialect) DropView(public string) string { return d.dropView + d.Quote(public) }
