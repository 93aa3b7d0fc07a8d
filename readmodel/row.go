package readmodel

// Row is a whole row in its canonical form: the encoding of ABI v1 (u16 n, then
// n values in column order), exactly what a guest's `get` returns. Rows are
// immutable once made: a fold makes a new one. nil means an absent row.
type Row []byte

// Key names a row of one table. Child is used by child tables only. For a row
// of a free table Key is the key given with the op.
type Key struct {
	Key   string
	Child string
}

// Write is the outcome of a batch for one row: absolute values, never an
// increment. A nil Row deletes it (and, for a parent table, its children).
type Write struct {
	Key
	Row       Row
	Position  int64     // of the last message that changed the row
	UpdatedUS int64     // recorded time of that message, microseconds UTC
	Exists    Existence // what the writer knows of the row in the database
}

// Existence is what the lane knows of a row before its write. Drivers may use
// it to choose a statement; it is never needed for correctness.
type Existence uint8

// What may be known of a row.
const (
	Unknown Existence = iota
	Present
	Absent
)

// StoredRow is a row as the database holds it, with its system columns.
type StoredRow struct {
	Key
	Row       Row
	Position  int64
	UpdatedUS int64
}
