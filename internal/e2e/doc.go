// Package e2e runs the real program as a process, kills it, and compares what
// it leaves with a native fold of the same events. It has tests only.
package e2e
