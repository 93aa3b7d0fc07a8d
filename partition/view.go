package partition

import (
	"cmp"
	"slices"
	"time"

	"github.com/projhost/projhost/store"
)

// View is the latest survey and what follows from it, for people. It is read only.
type View struct {
	At         time.Time // of the survey; zero before the first
	Err        error     // why the latest look failed, nil if it did not
	InstanceID string
	Instances  []store.InstanceStatus
	Members    map[int64][]string // instances that live, by build, of all builds
	Shares     []ShareView        // by consumer, build
	// Abandoned are the consumers whose live build no live instance runs.
	Abandoned []store.ConsumerStatus
	Moves     []Move // the latest, in order
	Counts
}

// Counts is what has happened since the host began.
type Counts struct {
	Claims        int64
	ClaimFailures int64 // claims that ended in an error
	Refused       int64 // partitions that claims did not get
}

// ShareView is one build that this host runs. What is a slice of no partitions is
// by partition.
type ShareView struct {
	ShareConfig
	Withdrawn string // why; "": it is a member
	Owners    []store.Ownership
	Targets   []string
	Last      []Moved
	Held      []int
	Orphans   []int // no member may have them
	Unowned   []int // no live member has them, though one may
}

// Move is partitions that changed hands in the same way.
type Move struct {
	At         time.Time
	Consumer   store.ConsumerID
	Build      int64
	Partitions []int
	From, To   string // instances; From is "" for nobody
	Why        string
}

// Moved is how a partition came to its owner. At is when this host saw it.
type Moved struct {
	From, To   string
	Generation int64
	Why        string
	At         time.Time
}

// View returns the latest one.
func (b *Balancer) View() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sync()
	v := View{
		At: b.surveyedAt, Err: b.err, InstanceID: b.instance, Instances: b.survey.Instances, Members: b.members,
		Moves: slices.Clone(b.moves), Counts: b.counts,
	}
	for _, c := range b.survey.Consumers {
		if len(b.members[c.Build]) == 0 {
			v.Abandoned = append(v.Abandoned, c)
		}
	}
	for _, s := range b.shares {
		v.Shares = append(v.Shares, s.view())
	}
	slices.SortFunc(v.Shares, func(a, b ShareView) int {
		return cmp.Or(cmp.Compare(a.Consumer.Type, b.Consumer.Type), cmp.Compare(a.Consumer.Name, b.Consumer.Name), cmp.Compare(a.Build, b.Build))
	})
	return v
}

func (s *Share) view() ShareView {
	v := ShareView{
		ShareConfig: s.cfg, Withdrawn: s.withdrawn, Owners: slices.Clone(s.owners),
		Targets: s.b.targets[s.cfg.Build], Last: slices.Clone(s.last),
	}
	for p := range s.parts {
		if s.parts[p].stage == held {
			v.Held = append(v.Held, p)
			if part := s.parts[p]; part.since >= s.seen { // newer than the survey
				v.Owners[p] = store.Ownership{Partition: p, InstanceID: s.b.instance, Generation: part.lease.Generation}
			}
		}
		if s.seen == 0 {
			continue
		}
		switch owner := v.Owners[p].InstanceID; {
		case v.Targets == nil || v.Targets[p] == "":
			v.Orphans = append(v.Orphans, p)
		case !s.crew[owner]:
			v.Unowned = append(v.Unowned, p)
		}
	}
	return v
}
