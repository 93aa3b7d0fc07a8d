package partition

import "github.com/projhost/projhost/store"

// DefaultCount is the number of partitions of a new database. It is frozen by
// the first start.
const DefaultCount = 256

// MaxCount is the largest number of partitions a database can be made with; the
// column is a 16-bit integer on every engine.
const MaxCount = 32767

// Of gives the partition of a key among n. Every message of one key goes to one
// partition, hence to one owner (P3).
func Of(key string, n int) int { return store.PartitionOf(key, n) }
