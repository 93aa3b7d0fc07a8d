package rules

// PartitionBits is a set of partitions as bytes, of n partitions in all: bit p%8
// of byte p/8 stands for partition p. A server finds a row's bit without a search.
func PartitionBits(partitions []int, n int) []byte {
	bits := make([]byte, (n+7)/8)
	for _, p := range partitions {
		bits[p/8] |= 1 << (p % 8)
	}
	return bits
}
