package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/metrics"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// retryingMax is how long a consumer may be retrying before the host is not ready.
const retryingMax = 10 * time.Second

// Ready reports whether every consumer is running (or halted and saying so, or
// run by other hosts), with the reasons if not. What a consumer has here has to
// move while messages wait.
func (h *Host) Ready() (bool, []string) {
	h.mu.Lock()
	running := h.running
	h.mu.Unlock()
	if !running {
		return false, []string{"the host is starting or stopping"}
	}
	reasons := h.outOfTouch()
	for _, c := range h.consumers {
		c.mu.Lock()
		state, since, reason, stuck := c.state, c.retryingSince, c.reason(), c.stuck
		c.mu.Unlock()
		switch {
		case state == StateStarting:
			reasons = append(reasons, fmt.Sprintf("%s is starting", c.id))
		case reason != "" && time.Since(since) >= retryingMax:
			reasons = append(reasons, fmt.Sprintf("%s has been retrying since %s: %s", c.id, since.UTC().Format(time.RFC3339), reason))
		case len(stuck) > 0:
			reasons = append(reasons, fmt.Sprintf("%s does not move though messages wait, in partitions %v", c.id, stuck))
		}
	}
	return len(reasons) == 0, reasons
}

// outOfTouch tells whether the host has neither seen the others nor been seen by
// them for so long that they have what it held, or should.
func (h *Host) outOfTouch() (reasons []string) {
	limit := 2 * h.cfg.InstanceTTL
	surveyed, beaten := h.touch()
	if !surveyed.IsZero() && time.Since(surveyed) >= limit {
		why := "none has ended"
		if err := h.view().Err; err != nil {
			why = err.Error()
		}
		reasons = append(reasons, fmt.Sprintf("no survey of the hosts has succeeded since %s: %s", surveyed.UTC().Format(time.RFC3339), why))
	}
	if !beaten.IsZero() && time.Since(beaten) >= limit {
		reasons = append(reasons, "no heartbeat has succeeded since "+beaten.UTC().Format(time.RFC3339))
	}
	return reasons
}

// touch is when the latest survey and the latest heartbeat succeeded; zero before
// the first.
func (h *Host) touch() (surveyed, beaten time.Time) {
	h.mu.Lock()
	member := h.member
	h.mu.Unlock()
	if member != nil {
		beaten = member.Beaten()
	}
	return h.view().At, beaten
}

// age is how long ago something was, 0 if it never was.
func age(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// abandoned are all partitions of a build that no live host runs, none of others.
func (h *Host) abandoned(view partition.View, build int64) (orphans []int) {
	if slices.ContainsFunc(view.Abandoned, func(c store.ConsumerStatus) bool { return c.Build == build }) {
		for p := range h.partitions {
			orphans = append(orphans, p)
		}
	}
	return orphans
}

// Status tells what the host is doing. The error is one of asking the store for
// topics, consumers and instances.
func (h *Host) Status(ctx context.Context) (Status, error) {
	topics, err := h.deps.Store.ListTopics(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("list topics: %w", err)
	}
	known, err := h.deps.Store.ListConsumers(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("list consumers: %w", err)
	}
	instances, err := h.deps.Store.ListInstances(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("list instances: %w", err)
	}
	s := Status{InstanceID: h.instance(), Topics: topics, Instances: instances}
	h.mu.Lock()
	s.StartedUS = h.startedUS
	h.mu.Unlock()
	ends := make(map[string]int64)
	for _, t := range topics {
		ends[t.Name] = t.HighWaterMark
	}
	view := h.view()
	for _, c := range h.consumers {
		placed, told := c.placed(), map[string][]store.Standing(nil)
		// Of a consumer that was ever rebuilt the store tells more.
		rebuilt := slices.ContainsFunc(known, func(k store.Consumer) bool { return k.ID == c.id && k.Epoch > 0 })
		if len(placed) == 0 || rebuilt || slices.Contains(placed, nil) {
			if told, err = h.standings(ctx, c.id); err != nil {
				return Status{}, err
			}
		}
		s.Consumers = append(s.Consumers, c.status(ends, view, placed, told))
	}
	s.Moves, s.Claims = view.Moves, view.Counts
	for _, k := range known {
		if h.find(k.ID) != nil {
			continue
		}
		told, err := h.standings(ctx, k.ID)
		if err != nil {
			return Status{}, err
		}
		other := stranger(k, ends, told)
		other.Orphans = h.abandoned(view, k.Build)
		s.Consumers = append(s.Consumers, other)
	}
	for _, p := range h.plugins {
		s.Plugins = append(s.Plugins, p.status())
	}
	return s, nil
}

func (p *pluginState) status() PluginStatus {
	live, stats := p.guests.total()
	s := PluginStatus{
		Name: p.Name, Digest: p.Module.Digest(), Version: p.Module.Manifest().Version, ABI: p.Module.Manifest().ABI,
		Instances: live, MemoryBytes: stats.MemoryBytes, Restores: stats.Restores, Reinstantiations: stats.Instantiated,
	}
	for _, c := range p.Module.Manifest().Consumers {
		s.Consumers = append(s.Consumers, store.ConsumerID{Type: c.Type, Name: c.Name})
	}
	return s
}

// reason is one of those for which the consumer is retrying; c.mu is held.
func (c *consumer) reason() string {
	for _, err := range c.retrying {
		return err.Error()
	}
	return ""
}

// standings is how far a consumer is on all hosts, as the store knows it; nothing of
// one that no host has subscribed yet.
func (h *Host) standings(ctx context.Context, id store.ConsumerID) (list map[string][]store.Standing, err error) {
	v, err := h.deps.Store.View(ctx, id)
	if err == nil {
		list, err = v.Standings()
		err = errors.Join(err, v.Close())
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("read how far %s is: %w", id, err)
	}
	return list, nil
}

// status tells what the consumer is doing: by what is known here of the partitions
// this host has placed, by what the store has told, if it was asked, of the others.
func (c *consumer) status(ends map[string]int64, view partition.View, placed []*session, told map[string][]store.Standing) ConsumerStatus {
	c.mu.Lock()
	s := ConsumerStatus{
		ID: c.id, State: c.state, SinceUS: c.sinceUS, Halt: c.halt, Reason: c.why,
		Epoch: c.stored.Epoch, Build: c.stored.Build, Stuck: c.stuck, Fenced: c.fenced,
		Plugin: c.plugin.Name, Digest: c.plugin.Module.Digest(), Distribution: abi.Spread,
	}
	if reason := c.reason(); reason != "" && s.State != StateHalted && s.State != StatePaused {
		s.State, s.SinceUS, s.Reason = StateRetrying, c.retryingSince.UnixMicro(), reason
	}
	c.mu.Unlock()
	if c.singleOwner {
		s.Distribution = abi.SingleOwner
	}
	var share partition.ShareView
	for _, other := range view.Shares {
		if other.Build == s.Build {
			share = other
		}
	}
	s.Orphans, s.Unowned = share.Orphans, share.Unowned
	if len(s.Orphans) == 0 {
		s.Orphans = c.host.abandoned(view, s.Build)
	}
	if s.State == StateWaiting {
		s.Reason = whoHas(view, share)
	}
	for t, topic := range c.topics {
		at := ConsumerTopic{Topic: topic, End: ends[topic]}
		for p := range max(len(placed), len(told[topic])) {
			one := PartitionStatus{Partition: p}
			if p < len(share.Last) {
				one.Owner, one.Generation, one.Move = share.Owners[p].InstanceID, share.Owners[p].Generation, share.Last[p]
			}
			if p < len(placed) && placed[p] != nil {
				session := placed[p]
				one.Owner, one.Generation = session.instance, session.leases[p].Generation
				one.ReadThrough, one.Checkpoint = session.applied(t, p), session.lanes[session.lane[p]].Checkpoint(t, p)
				if t == 0 {
					s.Owned++
				}
			} else if p < len(told[topic]) {
				one.of(told[topic][p])
			} else {
				continue
			}
			at.add(one)
		}
		s.Lag += at.lag()
		s.Topics = append(s.Topics, at)
	}
	for _, session := range sessions(placed) {
		for i, l := range session.lanes {
			stats := l.Stats()
			s.Lanes = append(s.Lanes, LaneStatus{
				Partitions:    len(session.partitionsOf(i)),
				QueueMessages: stats.QueueMessages, QueueBytes: int64(stats.QueueBytes),
				CacheRows: stats.CacheRows, CacheBytes: stats.CacheBytes,
				Batches: stats.Batches, Messages: stats.Messages, LastBatch: stats.LastBatch,
			})
			if stats.DueUS != 0 && (s.NextRetryUS == 0 || stats.DueUS < s.NextRetryUS) {
				s.NextRetryUS = stats.DueUS
			}
		}
	}
	s.Rebuild = rebuilding(told, func(topic string, p int) int64 {
		if t := slices.Index(c.topics, topic); t >= 0 && p < len(placed) && placed[p] != nil {
			return placed[p].applied(t, p)
		}
		return 0
	})
	if s.Rebuild != nil {
		c.mu.Lock()
		s.Rebuild.Rate = c.pulse.beat(s.Epoch, s.Rebuild.Remaining)
		c.mu.Unlock()
	}
	if through, topic := keptRows(told); through > 0 && s.Epoch > 0 {
		s.Alarms = append(s.Alarms, fmt.Sprintf("history of %s up to %d was missing when the rows were made anew: rows that were not made again are kept", topic, through))
	}
	if s.Held = c.held.Count(); s.Held > c.held.Max/2 {
		s.Alarms = append(s.Alarms, fmt.Sprintf("%d undelivered messages are kept for this host's partitions; at %d ([delivery] max_undelivered) the consumer halts", s.Held, c.held.Max))
	}
	return s
}

var statuses = []store.UndeliveredStatus{
	store.StatusFailed, store.StatusWaiting, store.StatusHalted, store.StatusDeadLetterKey, store.StatusDeadLetter,
}

// countEvery is how long counts of undelivered messages are good for metrics.
const countEvery = 5 * time.Second

// countUndelivered is what the store counts, at most so old; nil if it does not
// answer.
func (h *Host) countUndelivered() map[store.ConsumerID]map[store.UndeliveredStatus]int64 {
	h.counting.Lock()
	defer h.counting.Unlock()
	if time.Since(h.countedAt) >= countEvery {
		ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
		defer cancel()
		counts, err := h.deps.Store.CountUndelivered(ctx)
		if err != nil {
			return nil
		}
		h.counts, h.countedAt = counts, time.Now()
	}
	return h.counts
}

// view is the host's latest look at the cluster.
func (h *Host) view() partition.View {
	h.mu.Lock()
	b := h.balancer
	h.mu.Unlock()
	if b == nil {
		return partition.View{}
	}
	return b.View()
}

// stranger is the status of a consumer that other hosts may run.
func stranger(k store.Consumer, ends map[string]int64, told map[string][]store.Standing) ConsumerStatus {
	s := ConsumerStatus{
		ID: k.ID, State: StateNotRunning, SinceUS: k.StateSinceUS, Halt: k.Halt,
		Epoch: k.Epoch, Build: k.Build, Plugin: k.Plugin, Digest: k.Digest,
	}
	for _, topic := range slices.Sorted(maps.Keys(told)) {
		at := ConsumerTopic{Topic: topic, End: ends[topic]}
		for _, standing := range told[topic] {
			var one PartitionStatus
			one.of(standing)
			at.add(one)
		}
		s.Lag += at.lag()
		s.Topics = append(s.Topics, at)
	}
	s.Rebuild = rebuilding(told, func(string, int) int64 { return 0 })
	return s
}

// of takes over what the store tells of a partition.
func (p *PartitionStatus) of(s store.Standing) {
	p.Partition, p.Checkpoint, p.ReadThrough, p.Owner, p.Generation = s.Partition, s.Checkpoint, s.Applied, s.Owner, s.Generation
}

// add adds a partition, and the lag of it.
func (t *ConsumerTopic) add(one PartitionStatus) {
	one.Lag = max(0, t.End-one.ReadThrough)
	if len(t.Partitions) == 0 || one.ReadThrough < t.Applied {
		t.Applied = one.ReadThrough
	}
	t.Partitions = append(t.Partitions, one)
}

// lag is that of the partition that is furthest behind; of none it is not known.
func (t *ConsumerTopic) lag() int64 {
	if len(t.Partitions) == 0 {
		return 0
	}
	return max(0, t.End-t.Applied)
}

// Look has the host look soon at what became of its consumers, without waiting for
// the next survey: whoever acted on one wants to see it.
func (h *Host) Look() {
	h.mu.Lock()
	b := h.balancer
	h.mu.Unlock()
	if b != nil {
		b.Look()
	}
}

// whoHas tells who has the partitions of a consumer that this host has none of.
func whoHas(view partition.View, share partition.ShareView) string {
	held := make(map[string]int)
	for _, o := range share.Owners {
		held[o.InstanceID]++
	}
	var who []string
	for _, i := range view.Instances {
		n := held[i.ID]
		if n == 0 || i.ID == view.InstanceID {
			continue
		}
		until := "for ever"
		if i.TTL > 0 {
			until = "until " + time.UnixMicro(i.HeartbeatUS).Add(i.TTL).UTC().Format(time.RFC3339)
		}
		who = append(who, fmt.Sprintf("host %q (instance %s) has %d partitions and counts as running %s", i.HostName, i.ID, n, until))
	}
	if len(who) == 0 {
		return "no partition is due to this host"
	}
	return strings.Join(who, "; ")
}

// sessions lists each of those once.
func sessions(placed []*session) []*session {
	var out []*session
	for _, s := range placed {
		if s != nil && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// sampleTimeout bounds what a look at the metrics may wait for the store.
const sampleTimeout = time.Second

// sampleTopics asks the store how far the topics go; one that does not answer
// leaves what was read last, and no word of what may not be read yet.
func (h *Host) sampleTopics() (list []metrics.Topic, ends map[string]int64) {
	ends = make(map[string]int64)
	h.mu.Lock()
	running := h.running
	h.mu.Unlock()
	if running {
		for name, source := range h.sources {
			ends[name] = source.End()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
	defer cancel()
	topics, err := h.deps.Store.ListTopics(ctx)
	if err != nil {
		return nil, ends
	}
	for _, t := range topics {
		ends[t.Name] = max(ends[t.Name], t.HighWaterMark)
		list = append(list, metrics.Topic{Name: t.Name, End: t.End, Mark: t.HighWaterMark, Held: held(t.Holder)})
	}
	return list, ends
}

// held is how long a transaction has been open.
func held(h *store.MarkHolder) time.Duration {
	if h == nil {
		return 0
	}
	return max(0, time.Since(time.UnixMicro(h.SinceUS)))
}

// sample is what metrics are looked up from.
func (h *Host) sample() metrics.Sample {
	var s metrics.Sample
	var ends map[string]int64
	view := h.view()
	s.Topics, ends = h.sampleTopics()
	counts := h.countUndelivered()
	for _, c := range h.consumers {
		placed := c.placed()
		st := c.status(ends, view, placed, nil)
		m := metrics.Consumer{
			Name: c.id.String(), State: st.State, Lag: st.Lag, Owned: st.Owned,
			Orphans: len(st.Orphans), Unowned: len(st.Unowned), Stuck: len(st.Stuck), Fenced: st.Fenced,
			Held: st.Held, HeldMax: c.held.Max, ReplayLag: replayLag(placed),
		}
		if counts != nil {
			m.Undelivered = make(map[string]int64)
			for _, status := range statuses {
				m.Undelivered[string(status)] = counts[c.id][status]
			}
		}
		for _, session := range sessions(placed) {
			for _, l := range session.lanes {
				stats := l.Stats()
				m.CacheRows += stats.CacheRows
				m.CacheBytes += stats.CacheBytes
				m.CacheHits += stats.CacheHits
				m.CacheMisses += stats.CacheMisses
				m.QueueBytes += int64(stats.QueueBytes)
			}
		}
		s.Consumers = append(s.Consumers, m)
	}
	s.Abandoned = make(map[string]int)
	for _, c := range view.Abandoned {
		if h.find(c.ID) == nil {
			s.Abandoned[c.ID.String()] = h.partitions
		}
	}
	surveyed, beaten := h.touch()
	s.SurveyAge, s.HeartbeatAge = age(surveyed), age(beaten)
	s.Claims, s.ClaimFailures, s.Refused = view.Claims, view.ClaimFailures, view.Refused
	for _, i := range view.Instances {
		if i.Live {
			s.Instances++
		}
	}
	for _, p := range h.plugins {
		live, stats := p.guests.total()
		s.Plugins = append(s.Plugins, metrics.Plugin{
			Name: p.Name, Instances: live, MemoryBytes: stats.MemoryBytes, Calls: stats.Calls, Failures: stats.Failures,
			Restores: stats.Restores, Reinstantiations: stats.Instantiated, DroppedLogLines: stats.Dropped,
		})
	}
	return s
}
