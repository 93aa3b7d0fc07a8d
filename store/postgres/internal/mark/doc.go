// Package mark finds out how far a topic on PostgreSQL may be read.
//
// Positions come from a sequence, and transactions commit in another order than
// they drew. Below the high-water mark nothing will ever appear: every position
// up to it belongs to a transaction that has ended. A [Detector] moves the mark
// by watching the lock that nextval itself takes on the sequence before it draws
// and keeps to the end of its transaction. So appenders have no duty beyond
// drawing a position in the transaction that inserts it, which the identity
// column does, and transactions that never drew hold nothing back.
//
// Promise: the mark that the world sees is the row of the topics table. It was
// committed, and made durable, before anybody was told of it, it only rises,
// and after a crash it is never ahead of the sequence.
//
// What the detector cannot see stays in the contract: a position drawn in
// another transaction than the one that inserts it (hi/lo allocators, ids
// fetched ahead, copied positions) may come to lie below the mark.
//
// Only the position mode "sequence" is served here. The mode "xid", which
// watches the horizon of transaction ids instead, is not built: a database whose
// schema was created with it is refused at start.
package mark
