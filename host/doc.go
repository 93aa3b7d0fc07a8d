// Package host is the runtime: it subscribes the consumers of the loaded
// plugins, claims their partitions, reads their topics, hands batches of
// messages to the guests and commits what they answer. It is the only package
// that knows both the store and WebAssembly guests.
//
// Promises kept here: rows and checkpoint of a batch commit together (P1, by
// handing the store one batch), messages of a key are applied in topic order
// (P3), no message below a checkpoint was missed (P4), a failing message stops
// its consumer only and is never skipped (P5), and the batch split does not show
// in the rows (P7).
//
// [Host.Run] owns every goroutine and returns after they ended. A host is run
// once; make another to start again.
package host
