package host

import (
	"context"
	"fmt"
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
	var reasons []string
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
		s.Consumers = append(s.Consumers, c.status(ends, view, c.saved(ctx)))
	}
	s.Moves, s.Claims = view.Moves, view.Counts
	for _, k := range known {
		if h.find(k.ID) == nil {
			s.Consumers = append(s.Consumers, ConsumerStatus{
				ID: k.ID, State: StateNotRunning, SinceUS: k.StateSinceUS, Halt: k.Halt,
				Epoch: k.Epoch, Build: k.Build, Plugin: k.Plugin, Digest: k.Digest,
			})
		}
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

// saved is the checkpoints of a consumer of which other hosts have partitions, nil
// where there are none or they cannot be read: the rest is worth telling.
func (c *consumer) saved(ctx context.Context) []store.Checkpoint {
	c.mu.Lock()
	build := c.stored.Build
	c.mu.Unlock()
	if build == 0 || !slices.Contains(c.placed(), nil) {
		return nil
	}
	list, err := c.host.deps.Store.Checkpoints(ctx, build)
	if err != nil {
		c.log.Debug("checkpoints of other hosts cannot be read", "error", err)
	}
	return list
}

// status tells what the consumer is doing: by what is known here of the partitions
// this host has, by checkpoints and the latest look of the others.
func (c *consumer) status(ends map[string]int64, view partition.View, saved []store.Checkpoint) ConsumerStatus {
	c.mu.Lock()
	s := ConsumerStatus{
		ID: c.id, State: c.state, SinceUS: c.sinceUS, Halt: c.halt, Reason: c.why,
		Epoch: c.stored.Epoch, Build: c.stored.Build, Stuck: c.stuck, Fenced: c.fenced,
		Plugin: c.plugin.Name, Digest: c.plugin.Module.Digest(), Distribution: abi.Spread,
	}
	if reason := c.reason(); reason != "" && s.State != StateHalted {
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
	if s.State == StateWaiting {
		s.Reason = elsewhere(view, share)
	}
	placed := c.placed()
	for t, topic := range c.topics {
		at := ConsumerTopic{Topic: topic, End: ends[topic]}
		known := make(map[int]int64)
		for _, ck := range saved {
			if ck.Topic == topic {
				known[ck.Partition] = ck.Position
			}
		}
		for p, session := range placed {
			one := PartitionStatus{Partition: p}
			if p < len(share.Last) {
				one.Owner, one.Generation, one.Move = share.Owners[p].InstanceID, share.Owners[p].Generation, share.Last[p]
			}
			if session != nil {
				one.Owner, one.Generation = session.instance, session.leases[p].Generation
				one.ReadThrough, one.Checkpoint = session.applied(t, p), session.lanes[session.lane[p]].Checkpoint(t, p)
			} else if position, ok := known[p]; ok {
				if one.Owner == view.InstanceID {
					one.Owner = "" // handed back since that look
				}
				one.Checkpoint = position
				one.ReadThrough = max(one.Checkpoint, share.ReadThrough[one.Owner][topic])
			} else {
				continue
			}
			one.Lag = max(0, at.End-one.ReadThrough)
			if len(at.Partitions) == 0 || one.ReadThrough < at.Applied {
				at.Applied = one.ReadThrough
			}
			at.Partitions = append(at.Partitions, one)
			if t == 0 && session != nil {
				s.Owned++
			}
		}
		if len(at.Partitions) > 0 {
			s.Lag += max(0, at.End-at.Applied)
		}
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
		}
	}
	return s
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

// elsewhere tells who has the partitions of a consumer that this host has none of.
func elsewhere(view partition.View, share partition.ShareView) string {
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
	for _, c := range h.consumers {
		st := c.status(ends, view, nil)
		m := metrics.Consumer{
			Name: c.id.String(), State: st.State, Lag: st.Lag, Owned: st.Owned,
			Orphans: len(st.Orphans), Unowned: len(st.Unowned), Stuck: len(st.Stuck), Fenced: st.Fenced,
		}
		for _, session := range sessions(c.placed()) {
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
