package host

import "github.com/projhost/projhost/store"

// Lowest is how far a consumer is applied and committed everywhere.
func (h *Host) Lowest(id store.ConsumerID) int64 {
	at, _ := h.Applied(id, store.EventsTopic, AllPartitions)
	return at
}

// LaneCount is the number of lanes of a session of a spread consumer.
func (c Config) LaneCount() int { return c.lanes() }
