package plugins

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"

	"github.com/projhost/projhost/abi"
)

// seed makes the seed of what a guest takes for randomness: a function of the
// plugin's name, the consumer, the message and the key, and of nothing else
// (P7). Each part goes in with its length, so that no two lists of parts give
// the same bytes.
func seed(plugin, consumer string, e *abi.Entry) [32]byte {
	b := make([]byte, 0, 128)
	part := func(s string) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	part("projhost random 1")
	part(plugin)
	if e != nil {
		part(consumer)
		b = append(b, e.ID[:]...)
		part(e.Key)
	}
	return sha256.Sum256(b)
}

// randomness is a guest's stream of random bytes. It is seeded when first asked
// after each reset: most entries never ask.
type randomness struct {
	gen    *rand.ChaCha8
	seeded bool
}

func (r *randomness) reset() { r.seeded = false }

func (r *randomness) fill(b []byte, plugin, consumer string, e *abi.Entry) {
	if !r.seeded {
		s := seed(plugin, consumer, e)
		if r.gen == nil {
			r.gen = rand.NewChaCha8(s)
		} else {
			r.gen.Seed(s)
		}
		r.seeded = true
	}
	_, _ = r.gen.Read(b)
}
