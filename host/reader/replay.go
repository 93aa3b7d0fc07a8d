package reader

// Replayed tells which entries of a topic are applied once more to make rows anew:
// their effects were had before.
type Replayed struct {
	Through []int64 // by partition: at or below it they were
	Owed    map[Owed]struct{}
}

// Owed is an entry whose effects were not had then.
type Owed struct {
	Position  int64
	Partition int
	Key       string
}

// Has tells it of an entry.
func (r *Replayed) Has(position int64, partition int, key string) bool {
	if partition >= len(r.Through) || position > r.Through[partition] {
		return false
	}
	_, owed := r.Owed[Owed{position, partition, key}]
	return !owed
}
