package store

// DefaultMaxEvent bounds an event's data and metadata together, in bytes.
const DefaultMaxEvent = 1 << 20
