package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written with its unit: "64MiB".
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	// The longest suffix first, since "B" ends them all.
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"B", 1},
}

var errSize = errors.New(`a size is a whole number and a unit of B, KB, MB, GB, KiB, MiB or GiB, such as "64MiB"`)

// ParseSize reads "64MiB" or "10 MB". Units are spelled exactly so.
func ParseSize(s string) (Size, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		digits = strings.TrimRight(digits, " ")
		if digits == "" || strings.TrimLeft(digits, "0123456789") != "" {
			return 0, errSize
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > math.MaxInt64/u.bytes {
			return 0, errors.New("the size is larger than any memory")
		}
		return Size(n * u.bytes), nil
	}
	return 0, errSize
}

// String is the shortest exact form that ParseSize reads.
func (s Size) String() string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && int64(s)%u.bytes == 0 {
			return fmt.Sprintf("%d%s", int64(s)/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}
