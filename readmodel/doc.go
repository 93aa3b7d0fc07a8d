// Package readmodel turns declared tables into typed rows and SQL: it brings
// the values of ops into their one canonical form, folds ops onto whole rows,
// builds the DDL and statements of a dialect, and checks what a database
// holds against the declaration. It does no I/O and knows no WebAssembly.
//
// Promise: a row read back from any engine equals, byte for byte, the row that
// was written (P10); and a table can be written only by the consumer that owns
// its name (P6).
package readmodel
