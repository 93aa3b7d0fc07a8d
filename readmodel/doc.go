// Package readmodel turns declared tables into typed rows and SQL: it brings
// the values of ops into their one canonical form, folds ops onto whole rows,
// builds the DDL and statements of a dialect, compiles queries, and checks what
// a database holds against the declaration. It does no I/O and knows no
// WebAssembly.
//
// Promise: a row read back from any engine equals, byte for byte, the row that
// was written (P10); and a table can be written only by the consumer that owns
// its name (P6).
//
// # The way of a value
//
// An op carries tagged values ([abi.Value]). [Table.Upsert], [Table.Patch] and
// [Table.Add] bring each into the canonical form of its column and make a [Row],
// the encoding that a guest's `get` returns; what a column cannot hold is a
// [*ValueError]. The row is all there is: overlay, cache and change topic keep
// it, [Statements.RowArgs] turns it into SQL arguments and a [Scanner] turns
// what the database returns into the same bytes again. docs/types.md lists each
// kind's form, domain, order and column types; it is generated from here.
package readmodel
