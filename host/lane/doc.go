// Package lane applies the messages of some partitions of one consumer. A
// [Lane] takes slices from its queue, hands them to its guest in batches, folds
// the answered ops onto the rows it keeps, and commits rows and checkpoints of
// a batch in one store transaction, while the guest already works on the next.
//
// Promises kept here: rows and checkpoints of a batch commit together and move
// from the checkpoint they were read from (P1, P2); the entries of a message
// are never split over two transactions, and those of a key are applied in
// order (P3); a checkpoint stands for an unbroken stretch of messages (P4); a
// message that fails holds its key only: it is recorded in the batch that applies
// what came with it, what follows of its key waits behind it, and the rest goes on
// (P5); and a row is the same whether it comes from the cache, the batch in hand or
// the database, so the batch split does not show (P7).
//
// What is held is tried again by the lane itself, in batches of their own between
// those of new messages, from the copies that the database keeps.
//
// A lane is the only writer of its rows while it holds its leases. When a
// commit does not succeed for certain, it gives up: the caller makes a new one
// from the stored checkpoints, and no row, page or batch of the old one is used
// again.
package lane
