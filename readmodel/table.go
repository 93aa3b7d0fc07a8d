package readmodel

// Table is a declared table, validated and resolved.
type Table struct {
	Name string // as declared
}
