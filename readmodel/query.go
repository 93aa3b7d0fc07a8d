package readmodel

// Query asks for a page of a table. Only the key and declared columns with an
// index can be filtered or ordered by.
type Query struct {
	Where []Cond // all must hold
	Order string // column; "": by key
	Desc  bool
	Limit int
	After string // cursor of the page before; "": the first
	Build int64  // of the table read; a cursor of another build has expired
}

// Cond is equality with a value in its text form (as in a URL). Null asks for
// rows where the column has no value.
type Cond struct {
	Column string
	Text   string
	Null   bool
}
