// Package partition knows which partition a key belongs to and which
// partitions this host may apply: it claims leases at the start, keeps them
// with their generations, and gives them back at the stop.
//
// Promise: an apply is allowed only under the generation of the lease that was
// claimed here, and the database checks that generation under a row lock in the
// very transaction (P2). What this package keeps in memory only saves wasted
// work.
//
// It talks to [store.Leases] alone, and knows neither guests nor rows.
package partition
