package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/store"
)

// Join implements store.Leases.
func (s *Store) Join(_ context.Context, i store.Instance) error {
	after, err := s.call("Join")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reap()
	if s.instances[i.ID] != nil {
		s.breach("instance %s has joined before", i.ID)
	}
	now := time.Now().UnixMicro()
	s.instances[i.ID] = &store.InstanceStatus{Instance: i, StartedUS: now, HeartbeatUS: now}
	return after
}

func (s *Store) reap() (n int) {
	for id := range s.instances {
		if !s.live(id) {
			delete(s.instances, id)
			delete(s.members, id)
			n++
		}
	}
	return n
}

// Reap implements store.Leases.
func (s *Store) Reap(context.Context) (int, error) {
	after, err := s.call("Reap")
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reap(), after
}

// Enlist implements store.Leases.
func (s *Store) Enlist(_ context.Context, id string, list []store.Enlistment) error {
	after, err := s.call("Enlist")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] == nil {
		return store.ErrNotFound
	}
	now := map[int64]*member{}
	for _, e := range list {
		b := s.builds[e.Build]
		if b == nil {
			continue
		}
		m := &member{Membership: store.Membership{Enlistment: e, InstanceID: id, ReadThrough: map[string]int64{}}}
		if was := s.members[id][e.Build]; was != nil {
			m.ReadThrough, m.tenure = was.ReadThrough, was.tenure
		} else {
			for topic := range b.checkpoints {
				m.ReadThrough[topic] = 0
			}
		}
		now[e.Build] = m
	}
	s.members[id] = now
	return after
}

// Survey implements store.Leases.
func (s *Store) Survey(_ context.Context, builds []int64) (store.Survey, error) {
	after, err := s.call("Survey")
	if err != nil {
		return store.Survey{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := store.Survey{Owners: map[int64][]store.Ownership{}, Instances: s.listInstances()}
	for _, id := range builds {
		if b := s.builds[id]; b != nil {
			v.Owners[id] = slices.Clone(b.owners)
		}
	}
	for _, builds := range s.members {
		for _, m := range builds {
			v.Members = append(v.Members, store.Membership{Enlistment: m.Enlistment, InstanceID: m.InstanceID, Tenure: m.tenure, ReadThrough: maps.Clone(m.ReadThrough)})
		}
	}
	slices.SortFunc(v.Members, func(a, b store.Membership) int {
		return cmp.Or(cmp.Compare(a.Build, b.Build), strings.Compare(a.InstanceID, b.InstanceID))
	})
	for _, c := range s.consumers {
		v.Consumers = append(v.Consumers, store.ConsumerStatus{ID: c.ID, Build: c.Build, State: c.State, Halt: c.Halt, Epoch: c.Epoch})
	}
	slices.SortFunc(v.Consumers, func(a, b store.ConsumerStatus) int {
		return cmp.Or(strings.Compare(a.ID.Type, b.ID.Type), strings.Compare(a.ID.Name, b.ID.Name))
	})
	return v, after
}

// live tells whether an instance has joined and not lapsed.
func (s *Store) live(id string) bool {
	i := s.instances[id]
	return i != nil && (i.TTL == 0 || time.Since(time.UnixMicro(i.HeartbeatUS)).Abs() < i.TTL)
}

// ListInstances implements store.Leases.
func (s *Store) ListInstances(context.Context) ([]store.InstanceStatus, error) {
	after, err := s.call("ListInstances")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listInstances(), after
}

func (s *Store) listInstances() (out []store.InstanceStatus) {
	for id, i := range s.instances {
		i.Live = s.live(id)
		out = append(out, *i)
	}
	slices.SortFunc(out, func(a, b store.InstanceStatus) int {
		return cmp.Or(cmp.Compare(a.StartedUS, b.StartedUS), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Heartbeat implements store.Leases.
func (s *Store) Heartbeat(_ context.Context, id string) error {
	after, err := s.call("Heartbeat")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] == nil {
		return store.ErrNotFound
	}
	s.instances[id].HeartbeatUS = time.Now().UnixMicro()
	return after
}

// Leave implements store.Leases.
func (s *Store) Leave(_ context.Context, id string) error {
	after, err := s.call("Leave")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(id)
	return after
}

// Kill is a host that died: its instance lapses without giving anything back.
func (s *Store) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.instances)
	clear(s.members)
}

// Instances is how many hosts have joined and not left.
func (s *Store) Instances() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.instances)
}

func (s *Store) leave(id string) {
	delete(s.instances, id)
	delete(s.members, id)
	for _, b := range s.builds {
		for p := range b.owners {
			if b.owners[p].InstanceID == id {
				b.owners[p].InstanceID = ""
			}
		}
	}
}

// Claim implements store.Leases.
func (s *Store) Claim(_ context.Context, instance string, id int64, partitions []int) ([]store.Lease, int64, error) {
	after, err := s.call("Claim")
	if err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live(instance) {
		return nil, 0, store.ErrNotFound
	}
	var out []store.Lease
	for _, p := range partitions {
		o := &s.builds[id].owners[p]
		if o.InstanceID != "" && o.InstanceID != instance && s.live(o.InstanceID) && s.members[o.InstanceID][id] != nil {
			continue
		}
		o.InstanceID = instance
		o.Generation++
		out = append(out, store.Lease{Build: id, Partition: p, Generation: o.Generation})
	}
	if len(out) == 0 {
		return nil, 0, after
	}
	s.tenures++
	if m := s.members[instance][id]; m != nil {
		m.tenure = s.tenures
		for topic, positions := range s.builds[id].checkpoints {
			for _, l := range out {
				m.ReadThrough[topic] = min(m.ReadThrough[topic], positions[l.Partition])
			}
		}
	}
	return out, s.tenures, after
}

// Advance implements store.Leases.
func (s *Store) Advance(_ context.Context, instance string, list []store.Progress) error {
	after, err := s.call("Advance")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		if p.Incarnation != s.incarnation {
			return store.ErrIncarnation
		}
	}
	for _, p := range list {
		m := s.members[instance][p.Build]
		if m != nil && p.Tenure != 0 && m.tenure == p.Tenure {
			m.ReadThrough[p.Topic] = max(m.ReadThrough[p.Topic], p.ReadThrough)
		}
	}
	return after
}

// Release implements store.Leases.
func (s *Store) Release(_ context.Context, instance string, leases []store.Lease) error {
	after, err := s.call("Release")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		if o := &s.builds[l.Build].owners[l.Partition]; o.InstanceID == instance && o.Generation == l.Generation {
			o.InstanceID = ""
		}
	}
	return after
}

// Owners implements store.Leases.
func (s *Store) Owners(_ context.Context, id int64) ([]store.Ownership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.builds[id].owners), nil
}
