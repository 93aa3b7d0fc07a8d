// Package store is the vocabulary of the host's durable state and the roles a
// database plays for it: event log, topics, consumers, leases, read models and,
// above all, [Batches.Apply], the one transaction in which a batch's rows,
// checkpoints and fence commit together or not at all (P1, P2).
//
// # Words
//
// An event is a fact in a stream, which is named (aggregate type, aggregate
// id); its sequence is its 1-based place there. A topic is an ordered log of
// messages; a position is a message's place in it, has holes and never goes
// back. A partition is hash(key) mod N. A consumer is named (type, name); a
// build is one set of its tables with its own declaration and bookkeeping, and one
// build is live. Beside it there may be a shadow, which is made from history, or a
// standby, which was live before; a switch makes it the live one. A lease is the right of one instance to apply one partition of a build;
// its generation rises at each take-over. A checkpoint says up to where a
// partition of a build is done. An epoch counts a consumer's rebuilds.
//
// # Rules for drivers
//
// Every guard (generation, epoch, checkpoint) fails as an SQL error inside the
// transaction, before COMMIT can take effect. Every transaction is READ
// COMMITTED or stronger. Locks are taken in one order: ownership by partition,
// read-model rows by table and key, checkpoints by topic and partition, streams
// by type and id, topic counters last. Database errors are told apart by code,
// never by text. Package storetest holds the contract; a driver passes all of
// it, unchanged.
package store
