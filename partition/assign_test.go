package partition_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

const nobody = ""

// fleet is instances that all run the same builds.
func fleet(ids []string, builds ...int64) (live []store.Instance, members []store.Membership) {
	for _, id := range ids {
		live = append(live, store.Instance{ID: id})
		for _, b := range builds {
			members = append(members, store.Membership{Enlistment: store.Enlistment{Build: b}, InstanceID: id})
		}
	}
	return live, members
}

// ids are random ones, but the same in every run.
func ids(seed uint64, n int) []string {
	list := make([]string, n)
	for i := range list {
		var id uuid.UUID
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for b := range id {
			id[b] = byte(r.Uint32())
		}
		list[i] = id.String()
	}
	return list
}

func loads(targets []string) map[string]int {
	n := make(map[string]int)
	for _, id := range targets {
		n[id]++
	}
	return n
}

// Hosts of different versions share a database: a change here has partitions
// owned by nobody, or two hosts take turns, for as long as a deploy takes.
func TestAssignGolden(t *testing.T) {
	t.Parallel()
	live, members := fleet([]string{"a", "b", "c"}, 7, 8)
	members[1].SingleOwner, members[3].SingleOwner, members[5].SingleOwner = true, true, true
	live[2].MaxPartitions = 2
	got := partition.Assign(12, live, members)
	require.Equal(t, map[int64][]string{
		7: {"c", "b", "b", "b", "b", "b", "a", "b", "c", "a", "b", "a"},
		8: slices.Repeat([]string{"a"}, 12),
	}, got)
}

// Nobody has more than 1.25 times its share, rounded up, and with the 256
// partitions of a database everybody has at least two fifths of it.
func TestAssignSpreads(t *testing.T) {
	t.Parallel()
	for m := 1; m <= 10; m++ {
		low, high := 256, 0
		for seed := range uint64(50) {
			live, members := fleet(ids(seed, m), int64(seed))
			n := loads(partition.Assign(256, live, members)[int64(seed)])
			require.Len(t, n, m)
			require.NotContains(t, n, nobody)
			for _, l := range n {
				low, high = min(low, l), max(high, l)
			}
		}
		share := 256 / float64(m)
		t.Logf("%2d members: %.2f to %.2f times the share", m, float64(low)/share, float64(high)/share)
		require.LessOrEqual(t, high, int(math.Ceil(1.25*share)))
		require.GreaterOrEqual(t, low, int(0.4*share))
	}
}

// When a member comes, what moves goes to it; when one goes, what moves was its
// own. What moves besides, since all others are full earlier or later then, is
// little.
func TestAssignMovesLittle(t *testing.T) {
	t.Parallel()
	const trials = 50
	for m := 1; m <= 10; m++ {
		var moved, needed, most int
		for seed := range uint64(trials) {
			all := ids(seed, m+1)
			live, members := fleet(all, 1)
			with := partition.Assign(256, live, members)[1]
			live, members = fleet(all[:m], 1)
			without := partition.Assign(256, live, members)[1]
			besides := 0
			for p := range with {
				switch {
				case with[p] == all[m]:
					needed++
				case with[p] != without[p]:
					besides++
				}
			}
			moved += besides
			most = max(most, besides)
		}
		t.Logf("%2d members and one more: %.1f partitions move to it or from it, %.1f besides, at most %d",
			m, float64(needed)/trials, float64(moved)/trials, most)
		require.LessOrEqual(t, float64(moved)/trials, 256*0.03, "on average")
		require.LessOrEqual(t, most, 256/10)
	}
}

// Of a single-owner build all partitions are one member's, whatever its limit and
// load, and they move only with that member.
func TestAssignSingleOwner(t *testing.T) {
	t.Parallel()
	owners := make(map[string]int)
	for build := range int64(150) {
		all := ids(uint64(build), 3)
		live, members := fleet(all, 1000+build, build)
		for i := range members {
			members[i].SingleOwner = members[i].Build == build
		}
		for i := range live {
			live[i].MaxPartitions = 86
		}
		got := partition.Assign(256, live, members)
		owner := got[build][0]
		require.Equal(t, map[string]int{owner: 256}, loads(got[build]))
		require.NotContains(t, loads(got[1000+build]), nobody, "the other build has all the room")
		owners[fmt.Sprint(slices.Index(all, owner))]++

		for i, id := range all {
			if id == owner {
				continue
			}
			rest := slices.DeleteFunc(slices.Clone(members), func(m store.Membership) bool { return m.InstanceID == id })
			require.Equal(t, owner, partition.Assign(256, slices.Delete(slices.Clone(live), i, i+1), rest)[build][0])
		}
	}
	require.Len(t, owners, 3)
	for _, n := range owners {
		require.Greater(t, n, 30, "builds spread over the members")
	}
}

// A limit is over all builds. Who has one has less and the others more, also more
// than the bound; what nobody has room for is nobody's.
func TestAssignLimits(t *testing.T) {
	t.Parallel()
	live, members := fleet([]string{"a", "b", "c"}, 1, 2)
	live[0].MaxPartitions = 100
	got := partition.Assign(256, live, members)
	for _, build := range []int64{1, 2} {
		require.NotContains(t, loads(got[build]), nobody)
	}
	require.Equal(t, 100, loads(got[1])["a"]+loads(got[2])["a"])

	for i := range live {
		live[i].MaxPartitions = 100
	}
	got = partition.Assign(256, live, members)
	total := make(map[string]int)
	for _, targets := range got {
		for id, n := range loads(targets) {
			total[id] += n
		}
	}
	require.Equal(t, map[string]int{"a": 100, "b": 100, "c": 100, nobody: 212}, total)

	// What only a can run comes first at a, and the rest goes to b, past its bound.
	live, members = fleet([]string{"a", "b"}, 1)
	live[0].MaxPartitions, live[1].MaxPartitions = 300, 300
	members = append(members, store.Membership{Enlistment: store.Enlistment{Build: 2}, InstanceID: "a"})
	got = partition.Assign(256, live, members)
	require.Equal(t, map[string]int{"a": 256}, loads(got[2]))
	require.Equal(t, map[string]int{"a": 44, "b": 212}, loads(got[1]))

	// Nobody lives, or nobody at all.
	require.Equal(t, map[int64][]string{1: make([]string, 4), 2: make([]string, 4)}, partition.Assign(4, nil, members))
	require.Empty(t, partition.Assign(4, live, nil))
}

// Whatever the facts: the order in which they are listed does not matter; every
// partition has a live member or nobody; nobody only if all members are at
// their limits; no limit is passed, and no bound where nobody has a limit; single
// owners own all.
func TestAssignProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "partitions")
		all := ids(rapid.Uint64().Draw(t, "ids"), rapid.IntRange(0, 6).Draw(t, "instances"))
		var live []store.Instance
		for _, id := range all {
			if rapid.IntRange(0, 3).Draw(t, "live") > 0 {
				live = append(live, store.Instance{ID: id, MaxPartitions: rapid.SampledFrom([]int{0, 0, 1, 5, 30, 100}).Draw(t, "limit")})
			}
		}
		limits := make(map[string]int)
		for _, i := range live {
			limits[i.ID] = i.MaxPartitions
		}
		var members []store.Membership
		crews, single := make(map[int64][]string), make(map[int64]bool)
		for b := range int64(rapid.IntRange(0, 4).Draw(t, "builds")) {
			single[b] = rapid.IntRange(0, 2).Draw(t, "single") == 0
			for _, id := range all {
				if rapid.Bool().Draw(t, "member") {
					members = append(members, store.Membership{Enlistment: store.Enlistment{Build: b, SingleOwner: single[b]}, InstanceID: id})
					if _, ok := limits[id]; ok {
						crews[b] = append(crews[b], id)
					}
				}
			}
		}

		got := partition.Assign(n, live, members)
		require.Equal(t, got, partition.Assign(n, rapid.Permutation(live).Draw(t, "live"), rapid.Permutation(members).Draw(t, "members")))

		total := make(map[string]int)
		for b, targets := range got {
			require.Len(t, targets, n)
			for id, l := range loads(targets) {
				if id == nobody {
					continue
				}
				require.Contains(t, crews[b], id)
				if single[b] {
					require.Equal(t, n, l)
				} else {
					total[id] += l
				}
			}
		}
		for id, l := range total {
			if limits[id] > 0 {
				require.LessOrEqual(t, l, limits[id])
			}
		}
		limited := slices.ContainsFunc(live, func(i store.Instance) bool { return i.MaxPartitions > 0 })
		for b, targets := range got {
			crew := crews[b]
			for id, l := range loads(targets) {
				switch {
				case id == nobody:
					for _, m := range crew {
						require.True(t, !single[b] && limits[m] > 0 && total[m] == limits[m], "%s has room for what is nobody's", m)
					}
				case !single[b] && !limited:
					require.LessOrEqual(t, l, (5*n+4*len(crew)-1)/(4*len(crew)))
				}
			}
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	builds := make([]int64, 50)
	for i := range builds {
		builds[i] = int64(i)
	}
	for _, m := range []int{3, 10, 100} {
		live, members := fleet(ids(1, m), builds...)
		b.Run(fmt.Sprintf("members=%d", m), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				partition.Assign(256, live, members)
			}
		})
	}
}
