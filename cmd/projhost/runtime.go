package main

import (
	"context"
	"errors"
	"math"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// hostRuntime gives a host the form the API asks for.
type hostRuntime struct{ host *host.Host }

func (r hostRuntime) Ready() (bool, []string) { return r.host.Ready() }

func (r hostRuntime) Applied(id store.ConsumerID, topic string, partition int) (int64, bool) {
	return r.host.Applied(id, topic, partition)
}

func (r hostRuntime) Halted(id store.ConsumerID) *store.Halt { return r.host.Halted(id) }

func (r hostRuntime) Look() { r.host.Look() }

func (r hostRuntime) WaitApplied(ctx context.Context, id store.ConsumerID, topic string, position int64, partition int) error {
	err := r.host.WaitApplied(ctx, id, topic, position, partition)
	if late, ok := errors.AsType[*host.NotCaughtUpError](err); ok {
		return &api.NotCaughtUpError{Lagging: laggingOf(late.Lagging)}
	}
	if halted, ok := errors.AsType[*host.HaltedError](err); ok {
		return &api.HaltedError{Halt: halted.Halt, Lagging: laggingOf(halted.Lagging)}
	}
	if errors.Is(err, host.ErrUnknownConsumer) {
		return api.ErrNotRun
	}
	return err
}

func laggingOf(list []host.Lagging) (out []api.Lagging) {
	for _, l := range list {
		out = append(out, api.Lagging(l))
	}
	return out
}

func (r hostRuntime) Status(ctx context.Context) (api.Status, error) {
	st, err := r.host.Status(ctx)
	if err != nil {
		return api.Status{}, err
	}
	out := api.Status{
		InstanceID: st.InstanceID, StartedAt: timeOf(st.StartedUS),
		Topics: []api.Topic{}, Consumers: []api.Consumer{}, Plugins: []api.Plugin{}, Instances: []api.Instance{}, Moves: []api.Move{},
		Claims: api.Claims{Made: st.Claims.Claims, Failed: st.Claims.ClaimFailures, Refused: st.Claims.Refused},
	}
	for _, i := range st.Instances {
		out.Instances = append(out.Instances, api.Instance{
			ID: i.ID, HostName: i.HostName, StartedAt: timeOf(i.StartedUS), HeartbeatAt: timeOf(i.HeartbeatUS), Live: i.Live, MaxPartitions: i.MaxPartitions})
	}
	for _, t := range st.Topics {
		out.Topics = append(out.Topics, api.TopicOf(t))
	}
	for i := range st.Consumers {
		out.Consumers = append(out.Consumers, consumerOf(&st.Consumers[i]))
	}
	for _, m := range st.Moves {
		out.Moves = append(out.Moves, api.Move{
			At: timeOf(m.At.UnixMicro()), Consumer: m.Consumer.String(), Partitions: m.Partitions, From: m.From, To: m.To, Why: m.Why})
	}
	for i := range st.Plugins {
		out.Plugins = append(out.Plugins, pluginOf(&st.Plugins[i]))
	}
	return out, nil
}

func timeOf(us int64) string {
	if us == 0 {
		return ""
	}
	return jsonl.FormatTime(us)
}

func consumerOf(c *host.ConsumerStatus) api.Consumer {
	out := api.Consumer{
		Type: c.ID.Type, Name: c.ID.Name, State: c.State, StateSince: timeOf(c.SinceUS), Reason: c.Reason, Halt: api.HaltOf(c.Halt),
		Epoch: c.Epoch, Build: c.Build, Lag: c.Lag, Plugin: c.Plugin, Digest: c.Digest, Distribution: c.Distribution,
		Topics: []api.ConsumerTopic{}, Partitions: c.Owned, Orphans: c.Orphans, Unowned: c.Unowned, Stuck: c.Stuck, Fenced: c.Fenced,
	}
	out.Held, out.NextRetryAt, out.Alarms = c.Held, timeOf(c.NextRetryUS), c.Alarms
	if r := c.Rebuild; r != nil {
		out.Rebuild = &api.Rebuild{Mode: store.RebuildInPlace, Total: r.Total, Done: r.Total - r.Remaining, Remaining: r.Remaining,
			Rate: math.Round(r.Rate*10) / 10, Pruned: r.Pruned, Partitions: r.Partitions, HistoryMissing: r.HistoryMissing}
	}
	if c.Halt != nil {
		out.HaltReason = &c.Halt.Reason
	}
	for _, t := range c.Topics {
		topic := api.ConsumerTopic{Topic: t.Topic, End: t.End, Applied: t.Applied}
		for _, p := range t.Partitions {
			checkpoint := api.PartitionCheckpoint{
				Partition: p.Partition, Position: p.Checkpoint, ReadThrough: p.ReadThrough, Lag: p.Lag,
				Generation: p.Generation, Owner: p.Owner, Why: p.Move.Why,
			}
			if !p.Move.At.IsZero() {
				checkpoint.MovedAt = timeOf(p.Move.At.UnixMicro())
			}
			topic.Checkpoints = append(topic.Checkpoints, checkpoint)
		}
		out.Topics = append(out.Topics, topic)
	}
	for _, l := range c.Lanes {
		out.Lanes = append(out.Lanes, api.Lane{
			Partitions: l.Partitions, QueueMessages: l.QueueMessages, QueueBytes: l.QueueBytes, CacheRows: l.CacheRows, CacheBytes: l.CacheBytes,
			Batches: l.Batches, Messages: l.Messages, LastBatch: l.LastBatch})
	}
	return out
}

func pluginOf(p *host.PluginStatus) api.Plugin {
	out := api.Plugin{
		Name: p.Name, Digest: p.Digest, Version: p.Version, ABI: p.ABI, Consumers: []string{}, Capabilities: []string{},
		Instances: p.Instances, MemoryBytes: p.MemoryBytes, Restores: p.Restores, Reinstantiations: p.Reinstantiations,
	}
	for _, id := range p.Consumers {
		out.Consumers = append(out.Consumers, id.String())
	}
	return out
}
