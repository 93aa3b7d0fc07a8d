package plugins

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func u64(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }

// Promise P7: a batch starts from the state after ph_init, whatever the state
// is kept in and whatever came before. The same batch gives the same ops.
func TestNoStateBetweenBatches(t *testing.T) {
	for _, test := range []struct {
		name string
		want []string // ops of three entries
		made bool     // each batch needs a new guest
	}{
		{"misuse", []string{counts(1), counts(2), counts(3)}, false},
		{"table-state", []string{u64(1), u64(2), u64(2)}, true},
		{"data-drop", []string{"12345678", "12345678", "12345678"}, true},
		{"grows", []string{u64(6), u64(7), u64(8)}, true},
		{"table-grow", []string{u64(900_001), u64(900_001), u64(900_001)}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothModes(t, func(t *testing.T, mode Mode) {
				i := newInstance(t, load(t, mode, hostile(t, test.name), testSettings()))
				for range 5 {
					r, _, fail := apply(t, i, entries("c", "c", "c"))
					require.Nil(t, fail)
					for k, want := range test.want {
						require.Equal(t, want, r.results[k].ops)
					}
				}
				s := i.Stats()
				require.EqualValues(t, 5, s.Calls)
				require.EqualValues(t, 15, s.Entries)
				if test.made {
					require.EqualValues(t, 4, s.Instantiated)
				} else {
					require.EqualValues(t, 4, s.Restores)
				}
			})
		})
	}
}

// With IsolateLane the guest keeps its state, until it fails.
func TestIsolateLane(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.Isolate = IsolateLane
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), s))
		expect := func(n int) {
			t.Helper()
			r, _, fail := apply(t, i, entries("c"))
			require.Nil(t, fail)
			require.Equal(t, counts(n), r.results[0].ops)
		}
		expect(1)
		expect(2)
		for _, broken := range []string{"u", "r", "M"} {
			_, _, fail := apply(t, i, entries("c", broken))
			require.NotNil(t, fail)
			expect(1)
			expect(2)
		}
		require.EqualValues(t, 1, i.Stats().Instantiated, "M grew the memory")
	})
}

// Two lanes start from the same state and do not see each other.
func TestInstancesAreAlike(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		m := load(t, mode, hostile(t, "misuse"), testSettings())
		for range 3 {
			i := newInstance(t, m)
			r, _, fail := apply(t, i, entries("c", "c"))
			require.Nil(t, fail)
			require.Equal(t, counts(2), r.results[1].ops)
			require.Equal(t, m.image.region, i.guest.region)
		}
	})
}

// A frame leaves nothing for the next batch to read.
func TestNoFrameIsLeftBehind(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
		long := entries("o"+string(bytes.Repeat([]byte("secret"), 3000)), "i", "i", "i")
		_, _, fail := apply(t, i, long)
		require.Nil(t, fail)
		r, _, fail := apply(t, i, entries("E"))
		require.Nil(t, fail)
		require.Equal(t, string(make([]byte, 64)), r.results[0].ops)
	})
}

// Promise P7: time and randomness follow from the entry, in every batch split.
func TestTimeAndRandomFollowTheEntry(t *testing.T) {
	data := make([]string, 40)
	for k := range data {
		data[k] = "t"
	}
	bothModes(t, func(t *testing.T, mode Mode) {
		var first []string
		for _, split := range []int{1, 7, 40} {
			i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
			var all []string
			for at := 0; at < len(data); at += split {
				r, _, fail := apply(t, i, entriesFrom(at, data[at:min(at+split, len(data))]...))
				require.Nil(t, fail)
				for _, res := range r.results {
					all = append(all, res.ops)
				}
			}
			if first == nil {
				first = all
			}
			require.Equal(t, first, all, "batches of %d", split)
		}
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
		for _, at := range []int{23, 5} {
			r, _, fail := apply(t, i, entriesFrom(at, "t"))
			require.Nil(t, fail)
			require.Equal(t, first[at], r.results[0].ops, "alone, and not in order")
		}
		seen := map[string]bool{}
		for k, ops := range first {
			us := 1_700_000_000_000_000 + uint64(k)*1_000_000
			require.Equal(t, u64(us)+u64(us*1000)+u64(us*1000+1000)+u64(us*1000+2000), ops[:32])
			require.False(t, seen[ops[32:48]], "random bytes twice")
			seen[ops[32:48]] = true
			require.NotEqual(t, ops[32:48], ops[48:64], "the stream goes on within an entry")
		}
	})
}

// The seed is part of the contract: another one would change every row made
// with random ids. It depends on all four parts and on nothing else.
func TestRandomIsFixed(t *testing.T) {
	e := entries("x")[0]
	draw := func(plugin, consumer string, e *abi.Entry) []byte {
		var r randomness
		b := make([]byte, 8)
		r.fill(b, plugin, consumer, e)
		return b
	}
	require.Equal(t, []byte{0xe8, 0xc2, 0x9d, 0xcd, 0x52, 0x3a, 0x59, 0xa8}, draw("p", "projection/c", &e))
	require.Equal(t, []byte{0xf0, 0xff, 0xee, 0xcb, 0xef, 0x08, 0x29, 0x6c}, draw("p", "", nil))

	base := draw("p", "projection/c", &e)
	other := e
	other.ID[3]++
	require.NotEqual(t, base, draw("p", "projection/c", &other), "message")
	other = e
	other.Key = "other"
	require.NotEqual(t, base, draw("p", "projection/c", &other), "key")
	require.NotEqual(t, base, draw("p", "projection/d", &e), "consumer")
	require.NotEqual(t, base, draw("q", "projection/c", &e), "plugin")
	other = e
	other.Position, other.TimeUS, other.Data, other.Flags = 9, 9, []byte("y"), abi.FlagReplay
	require.Equal(t, base, draw("p", "projection/c", &other), "nothing else")
}

// Any way a memory can be changed is undone, on every kind of address space.
func TestRestoreIsExact(t *testing.T) {
	const size = 40 * pageSize
	rng := rand.New(rand.NewPCG(1, 2))
	before := make([]byte, size)
	for k := range 11 * pageSize {
		before[k] = byte(rng.Uint32()) | 1
	}
	before[20*pageSize+5] = 7 // the image ends in the middle of a page of zeros
	img := newImage(before, nil, 0)
	defer img.free()
	require.Equal(t, 20*pageSize/imagePage+1, (len(img.data)+imagePage-1)/imagePage)

	for name, s := range map[string]space{"heap": &heapSpace{}, "of the platform": newSpace(64 * pageSize)} {
		t.Run(name, func(t *testing.T) {
			defer s.free()
			t.Logf("%T", s)
			buf := s.grow(size)
			copy(buf[3:], "what an instantiation left")
			for round := range 300 {
				s.restore(buf, img)
				require.True(t, bytes.Equal(before, buf), "round %d", round)
				for range rng.IntN(400) {
					at := rng.IntN(size)
					switch rng.IntN(3) {
					case 0:
						buf[at]++
					case 1:
						_ = buf[at] // a page that was only read
					default:
						clear(buf[at:min(at+rng.IntN(3*imagePage), size)])
					}
				}
			}
		})
	}
}

func TestGrowKeepsWhatIsThere(t *testing.T) {
	for name, s := range map[string]space{"heap": &heapSpace{}, "of the platform": newSpace(8 * pageSize)} {
		t.Run(name, func(t *testing.T) {
			defer s.free()
			buf := s.grow(2 * pageSize)
			buf[2*pageSize-1] = 5
			buf = s.grow(8 * pageSize)
			require.Len(t, buf, 8*pageSize)
			require.EqualValues(t, 5, buf[2*pageSize-1])
			require.True(t, isZero(buf[2*pageSize:2*pageSize+imagePage]))
		})
	}
}
