// Package plugins runs guests: it admits a WebAssembly module, compiles it,
// and calls its instances within their limits (P6). It knows bytes, entries
// and ops; it knows neither SQL nor where entries come from or rows go to.
//
// # Life of a module
//
// [Engine.Load] judges a module and names every reason against it at once
// ([RejectError]), compiles it (with a cache on disk), starts it once and keeps
// the state it has after ph_init: that is what every batch starts from.
// [Module.NewInstance] gives a lane an instance of its own in that state;
// [Instance.Apply] puts the state back and hands the guest one batch.
//
// # What a guest can see
//
// Its own memory, the frame, the rows it asks the [Sink] for, its config, and
// a clock and random bytes that are functions of the entry it works on. The
// same entries give the same ops, in any batch split, on any machine (P7).
//
// # What a guest can do
//
// Trap, loop, recurse, ask for all the memory there is, pass any pointer, and
// answer out of order: each of these is a [Failure] with a code that names an
// entry, and none of them reaches another guest or the host.
package plugins
