package partition

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/projhost/projhost/store"
)

// Assign gives, for each build and partition, the instance that is to own it, ""
// where nobody may. It is pure and knows no order, so every host computes the same
// from the same facts and none has to be asked. Of the memberships those count
// whose instance is in live.
//
// A partition goes to the member with the highest score for it, a hash of member,
// build and partition, as long as that is not full: of all pairs the best come
// first. So when a member comes or goes, what moves is what goes to it or came
// from it, and little else. Full is 1.25 times a member's share of the build,
// rounded up, or the instance's own limit over all builds; where that is lower the
// share of the others is more. Builds with few members have the first choice of
// what a limit leaves, since they have the fewest others.
//
// Of a single-owner build all partitions go to the member with the highest score
// for the build, whatever else that has.
func Assign(n int, live []store.Instance, members []store.Membership) map[int64][]string {
	room := make(map[string]int, len(live)) // what each instance may still take
	for _, i := range live {
		room[i.ID] = i.MaxPartitions
		if i.MaxPartitions == 0 {
			room[i.ID] = n * len(members)
		}
	}
	crews := make(map[int64][]string)
	single := make(map[int64]bool)
	for _, m := range members {
		if _, ok := room[m.InstanceID]; ok {
			crews[m.Build] = append(crews[m.Build], m.InstanceID)
		} else if crews[m.Build] == nil {
			crews[m.Build] = []string{}
		}
		single[m.Build] = single[m.Build] || m.SingleOwner
	}
	builds := slices.SortedFunc(maps.Keys(crews), func(a, b int64) int {
		return cmp.Or(len(crews[a])-len(crews[b]), cmp.Compare(a, b))
	})
	targets := make(map[int64][]string, len(builds))
	for _, build := range builds {
		if single[build] {
			targets[build] = together(n, build, crews[build])
		} else {
			targets[build] = spread(n, build, crews[build], room)
		}
	}
	return targets
}

// together gives all partitions to one member.
func together(n int, build int64, crew []string) []string {
	if len(crew) == 0 {
		return make([]string, n)
	}
	owner := slices.MaxFunc(crew, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(a, build, -1), score(b, build, -1)), cmp.Compare(a, b))
	})
	return slices.Repeat([]string{owner}, n)
}

// spread gives each member its part, and takes that from its room.
func spread(n int, build int64, crew []string, room map[string]int) []string {
	slices.Sort(crew)
	type pair struct {
		score             uint64
		partition, member int32
	}
	pairs := make([]pair, 0, n*len(crew))
	for m, id := range crew {
		for p := range n {
			pairs = append(pairs, pair{score(id, build, p), int32(p), int32(m)})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		if a.score != b.score {
			return cmp.Compare(b.score, a.score)
		}
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.member, b.member))
	})
	bound := bound(n, crew, room)
	targets, load := make([]string, n), make([]int, len(crew))
	for _, c := range pairs {
		if id := crew[c.member]; targets[c.partition] == "" && load[c.member] < min(bound, room[id]) {
			targets[c.partition] = id
			load[c.member]++
		}
	}
	for m, l := range load {
		room[crew[m]] -= l
	}
	return targets
}

// bound is 1.25 times the share of a member, rounded up. A member without room
// for a whole share has what it has room for, and the rest is shared by the
// others.
func bound(n int, crew []string, room map[string]int) int {
	left, sharers := n, len(crew)
	for _, m := range slices.SortedFunc(slices.Values(crew), func(a, b string) int { return room[a] - room[b] }) {
		if room[m]*sharers >= left {
			return (5*left + 4*sharers - 1) / (4 * sharers)
		}
		left -= room[m]
		sharers--
	}
	return n
}

// score is how much a member is wanted for a partition, -1 for all of them.
func score(member string, build int64, partition int) uint64 {
	var buf [96]byte // an id is 36 characters
	b := append(buf[:0], member...)
	b = strconv.AppendInt(append(b, '|'), build, 10)
	if partition >= 0 {
		b = strconv.AppendInt(append(b, '|'), int64(partition), 10)
	}
	return store.KeyHash(b)
}
