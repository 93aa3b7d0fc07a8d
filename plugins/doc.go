// Package plugins is a module's life: admission, the compile cache, instances
// and their calls, limits. It contains a plugin (P6) and makes it
// deterministic (P7): every batch starts from the same guest state, and time
// and randomness are functions of the message. It knows WebAssembly and the
// ABI, and neither SQL nor the store.
package plugins
