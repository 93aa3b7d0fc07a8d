package rules

import (
	"math"
	"math/rand/v2"
)

// NewTenure names a tenure. The name is drawn by lot: a membership that ends and
// begins again must not have a name again that a late Advance knows.
func NewTenure() int64 { return 1 + rand.Int64N(math.MaxInt64) }
