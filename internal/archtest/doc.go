// Package archtest holds the direction of imports as data and compares the
// module with it. It has tests only.
package archtest
