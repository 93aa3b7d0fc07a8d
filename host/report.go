package host

import (
	"context"
	"fmt"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/metrics"
	"github.com/projhost/projhost/store"
)

// stuck is how long a consumer may be retrying before the host is not ready.
const stuck = 10 * time.Second

// Ready reports whether every consumer is running (or halted and saying so, or
// waiting for a host that runs it), with the reasons if not.
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
		state, since, reason := c.state, c.retryingSince, c.reason()
		c.mu.Unlock()
		switch {
		case state == StateStarting:
			reasons = append(reasons, fmt.Sprintf("%s is starting", c.id))
		case reason != "" && time.Since(since) >= stuck:
			reasons = append(reasons, fmt.Sprintf("%s has been retrying since %s: %s", c.id, since.UTC().Format(time.RFC3339), reason))
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
	for _, c := range h.consumers {
		s.Consumers = append(s.Consumers, c.status(ends))
	}
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

func (c *consumer) status(ends map[string]int64) ConsumerStatus {
	c.mu.Lock()
	s := ConsumerStatus{
		ID: c.id, State: c.state, SinceUS: c.sinceUS, Halt: c.halt, Reason: c.reason(),
		Epoch: c.stored.Epoch, Build: c.stored.Build,
		Plugin: c.plugin.Name, Digest: c.plugin.Module.Digest(), Distribution: abi.Spread,
	}
	session := c.session
	if s.Reason != "" && s.State != StateHalted {
		s.State, s.SinceUS = StateRetrying, c.retryingSince.UnixMicro()
	}
	if s.State == StateWaiting {
		s.Reason = c.waiting
	}
	c.mu.Unlock()
	if c.singleOwner {
		s.Distribution = abi.SingleOwner
	}
	if session == nil {
		return s
	}
	for t, topic := range c.topics {
		at := ConsumerTopic{Topic: topic, End: ends[topic], Applied: session.lowest(t)}
		for _, p := range session.partitions {
			at.Partitions = append(at.Partitions, PartitionStatus{
				Partition: p, Generation: session.leases[p].Generation, ReadThrough: session.applied(t, p),
				Checkpoint: session.lanes[session.lane[p]].Checkpoint(t, p),
			})
		}
		s.Lag += max(0, at.End-at.Applied)
		s.Topics = append(s.Topics, at)
	}
	for i, l := range session.lanes {
		stats := l.Stats()
		s.Lanes = append(s.Lanes, LaneStatus{
			Partitions:    len(session.partitionsOf(i)),
			QueueMessages: stats.QueueMessages, QueueBytes: int64(stats.QueueBytes),
			CacheRows: stats.CacheRows, CacheBytes: stats.CacheBytes,
			Batches: stats.Batches, Messages: stats.Messages, LastBatch: stats.LastBatch,
		})
	}
	return s
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
	s.Topics, ends = h.sampleTopics()
	for _, c := range h.consumers {
		st := c.status(ends)
		m := metrics.Consumer{Name: c.id.String(), State: st.State, Lag: st.Lag}
		c.mu.Lock()
		session := c.session
		c.mu.Unlock()
		if session != nil {
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
	for _, p := range h.plugins {
		live, stats := p.guests.total()
		s.Plugins = append(s.Plugins, metrics.Plugin{
			Name: p.Name, Instances: live, MemoryBytes: stats.MemoryBytes, Calls: stats.Calls, Failures: stats.Failures,
			Restores: stats.Restores, Reinstantiations: stats.Instantiated, DroppedLogLines: stats.Dropped,
		})
	}
	return s
}
