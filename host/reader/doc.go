// Package reader brings the messages of topics to lanes. A [Source] passes over
// one topic for all consumers of the host and keeps recent pages; a [Feed]
// follows it for one consumer, tells the keys of each message and gives every
// lane its slice.
//
// Promise: a slice says which stretch (From, To] of its topic it covers, and
// the stretches a lane gets join without a gap (P4). Nobody waits for anybody:
// a consumer that is far behind reads for itself, and one whose lanes are full
// stops only its own feed.
//
// It knows neither guests nor rows, and never writes.
package reader
