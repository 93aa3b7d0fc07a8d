package partition_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/partition"
)

// The golden values are stored in every event of every database: a change here
// is a change of the format, never a mended test.
func TestOfGolden(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"a":                                    91,
		"A-1":                                  116,
		"A-2":                                  104,
		"account-42":                           95,
		"ä":                                    46,
		"6f1c2c9e-2b1d-7c3e-8f00-0123456789ab": 164,
	} {
		require.Equal(t, want, partition.Of(key, 256), "key %q", key)
	}
}

// Keys as people write them spread over all partitions, also those whose parts
// repeat, for which plain FNV-1a leaves half of them empty.
func TestOfSpreads(t *testing.T) {
	t.Parallel()
	const n, keys = 256, 50_000
	for name, key := range map[string]func(i int) string{
		"decimal":  func(i int) string { return fmt.Sprint(i) },
		"prefixed": func(i int) string { return fmt.Sprintf("account-%d", i) },
		"doubled":  func(i int) string { return fmt.Sprintf("%d:%d", i, i) },
		"uuid":     func(i int) string { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(fmt.Sprint(i))).String() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var count [n]int
			for i := range keys {
				count[partition.Of(key(i), n)]++
			}
			var chi float64
			for _, c := range count {
				d := float64(c) - float64(keys)/n
				chi += d * d / (float64(keys) / n)
			}
			require.Less(t, chi/(n-1), 1.5, "chi² per degree of freedom")
		})
	}
}

func BenchmarkOf(b *testing.B) {
	key := "6f1c2c9e-2b1d-7c3e-8f00-0123456789ab"
	b.ReportAllocs()
	for b.Loop() {
		partition.Of(key, 256)
	}
}
