package reader

import "slices"

// reach is of which stored partitions of a topic somebody needs the messages, or
// a page has them: by partition, or nil for all.
type reach []bool

// covers tells whether a page of r has all messages that are needed.
func (r reach) covers(need reach) bool {
	switch {
	case r == nil:
		return true
	case need == nil:
		return false
	}
	for p, needed := range need {
		if needed && !r[p] {
			return false
		}
	}
	return true
}

// whole is nil for a reach that has all partitions.
func (r reach) whole() reach {
	if !slices.Contains(r, false) {
		return nil
	}
	return r
}

// list is the form in which a store is asked.
func (r reach) list() (partitions []int) {
	if r == nil {
		return nil
	}
	partitions = make([]int, 0, len(r))
	for p, has := range r {
		if has {
			partitions = append(partitions, p)
		}
	}
	return partitions
}

// follower is somebody who follows a source. It is not safe for concurrent use.
type follower struct {
	source *Source
	need   reach
}

// follow begins to follow the topic for the messages of some partitions. Who
// follows it leaves it again.
func (s *Source) follow(need reach) *follower {
	f := &follower{source: s, need: need}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = true
	s.wants = s.together()
	return f
}

// leave ends it.
func (f *follower) leave() {
	s := f.source
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	s.wants = s.together()
}

// together is what all followers need. s.mu is held.
func (s *Source) together() reach {
	var all reach
	for f := range s.followers {
		if f.need == nil {
			return nil
		}
		if all == nil {
			all = make(reach, len(f.need))
		}
		for p, needed := range f.need {
			all[p] = all[p] || needed
		}
	}
	return all.whole()
}
