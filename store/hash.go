package store

// Names frozen in the partition-metadata table at the first start. A host that
// knows other ones refuses to start on that database.
const (
	// PartitionHash names what PartitionOf computes.
	PartitionHash = "fnv1a64-fmix64"
	// KeyEncodingVersion names how a key becomes the bytes that are hashed:
	// version 1 is the key's UTF-8 as it is.
	KeyEncodingVersion = 1
)

// PartitionOf gives the partition of a key among n: its hash modulo n. It is part
// of what is stored and is never changed. n must be positive.
func PartitionOf(key string, n int) int { return int(KeyHash(key) % uint64(n)) }

// KeyHash is FNV-1a of the key's bytes, 64 bits, finished with fmix64. The
// finisher is there because the low bit of FNV-1a is but the parity of its input:
// keys like "17:17" would leave half of the partitions empty.
func KeyHash[T string | []byte](key T) uint64 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for i := 0; i < len(key); i++ {
		h ^= uint64(key[i])
		h *= prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
