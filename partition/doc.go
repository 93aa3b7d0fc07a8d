// Package partition knows which partition a key belongs to and which partitions
// this host may apply. A host is a [Member] of its database; its [Balancer] looks
// who else is and what follows from that, and tells each [Share], one for every
// consumer it runs, what to take and what to hand back.
//
// Promise: an apply is allowed only under the generation of the lease that was
// claimed here, and the database checks that generation under a row lock in the
// very transaction (P2). What this package keeps in memory only saves wasted
// work. Every host draws the same conclusions from the same facts and looks at all
// of them each time: what is odd is put right by the next look.
//
// It talks to [store.Leases] alone, and knows neither guests nor rows.
package partition
