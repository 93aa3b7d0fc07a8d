package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// rebuildQueries are the static statements of rebuilds, spelled once.
type rebuildQueries struct {
	settled, owe, forget string
	tell, reset, horizon string
	lockTopic, begin     string
	owed                 string
	all, end, goOn       string
	unfinished           string
}

// atRowSQL is the condition that a row is of the message and the key of one of
// effects_owed.
const atRowSQL = `u.build = {{effects_owed}}.build AND u.topic = {{effects_owed}}.topic AND u.position = {{effects_owed}}.position
 AND u."partition" = {{effects_owed}}."partition" AND u."key" = {{effects_owed}}."key"`

func newRebuildQueries(l *Ledger) rebuildQueries {
	sql := l.db.SQL
	return rebuildQueries{
		// What is below its checkpoint and not undelivered was had meanwhile.
		settled: sql(`DELETE FROM {{effects_owed}} WHERE build = ?
			AND EXISTS (SELECT 1 FROM {{checkpoints}} c WHERE c.build = {{effects_owed}}.build AND c.topic = {{effects_owed}}.topic
				AND c."partition" = {{effects_owed}}."partition" AND c.position >= {{effects_owed}}.position)
			AND NOT EXISTS (SELECT 1 FROM {{undelivered}} u WHERE ` + atRowSQL + `)`),
		// What failed while it was replayed had its effects before.
		owe: sql(`INSERT INTO {{effects_owed}} (build, topic, position, "partition", "key"` + l.keyHash + `)
			SELECT u.build, u.topic, u.position, u."partition", u."key"` + strings.ReplaceAll(l.keyHash, " ", " u.") + ` FROM {{undelivered}} u
			JOIN {{checkpoints}} c ON c.build = u.build AND c.topic = u.topic AND c."partition" = u."partition"
			WHERE u.build = ? AND u.unresolved = 0 AND u.position > c.effects_before
			AND NOT EXISTS (SELECT 1 FROM {{effects_owed}} o WHERE o.build = u.build AND o.topic = u.topic AND o.position = u.position
				AND o."partition" = u."partition" AND o."key" = u."key")`),
		forget: sql(`DELETE FROM {{undelivered}} WHERE build = ?`),
		tell:   sql(`UPDATE {{members}} SET tenure = NULL, read_through = 0 WHERE build = ?`),
		reset: sql(`UPDATE {{checkpoints}} SET position = 0, epoch = ?, effects_before = effects_through, incomplete_through = 0
			WHERE build = ?`),
		lockTopic: sql(`UPDATE {{topics}} SET topic_start = topic_start WHERE name = {{?}}`),
		horizon: sql(`UPDATE {{checkpoints}} SET replay_through = (SELECT t.high_water_mark FROM {{topics}} t WHERE t.name = {{checkpoints}}.topic)
			WHERE build = ?`),
		begin: sql(`UPDATE {{consumers}} SET state = 'rebuilding', halt = NULL, epoch = epoch + 1, state_since_us = {{now}}` + ofConsumerSQL),
		owed: sql(`SELECT position, "partition", "key" FROM {{effects_owed}} WHERE build = ? AND topic = {{?}} AND position > ?
			ORDER BY position, "partition", "key"`),
		all: sql(`UPDATE {{checkpoints}} SET pruned_epoch = pruned_epoch WHERE build = ? AND pruned_epoch < epoch`),
		end: sql(`UPDATE {{checkpoints}} SET replay_through = 0 WHERE build = ?`),
		// A consumer that goes on goes on with its rebuild.
		goOn:       sql(`UPDATE {{consumers}} SET state = ` + GoesOnSQL + `, halt = NULL, state_since_us = {{now}}` + ofConsumerSQL),
		unfinished: sql(`SELECT count(*) FROM {{checkpoints}} WHERE build = ? AND pruned_epoch < epoch`),
	}
}

// GoesOnSQL is the state of a consumer that nothing stops any more.
const GoesOnSQL = `CASE WHEN EXISTS (SELECT 1 FROM {{checkpoints}} k WHERE k.build = {{consumers}}.live_build AND (k.pruned_epoch < k.epoch OR k.replay_through > 0))
 THEN 'rebuilding' ELSE 'running' END`

// goOnStep lets a stopped consumer go on.
func (l *Ledger) goOnStep(c *store.Consumer) Step {
	return Step{Text: l.rebuilds.goOn, Args: []any{c.ID.Type, c.ID.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1}
}

// RebuildInPlace implements [store.Rebuilds].
func (l *Ledger) RebuildInPlace(ctx context.Context, id store.ConsumerID, r store.Rebuild) error {
	return l.act(ctx, "rebuild "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		switch {
		case err != nil:
			return nil, err
		case c.State == store.StatePaused:
			return nil, &store.StateError{Consumer: id, Action: store.ActionRebuild, State: c.State}
		case r.Declared != nil:
			if changed := rules.ChangedHashes(c.Fingerprint, *r.Declared); len(changed) > 0 {
				return nil, &store.DeclarationError{Consumer: id, Changed: changed}
			}
		}
		q := &l.rebuilds
		build, epoch := []any{c.Build}, c.Epoch+1
		steps := append(l.raise(c.Build),
			Step{Text: q.settled, Args: build}, Step{Text: q.owe, Args: build}, Step{Text: q.forget, Args: build},
			Step{Text: l.db.SQL(`DELETE FROM {{skipped}} WHERE build = ?`), Args: build},
			Step{Text: q.tell, Args: build},
			Step{Text: q.reset, Args: []any{epoch, c.Build}})
		// Retention locks the same rows, so what there is to replay stays (H11).
		for _, topic := range slices.Sorted(slices.Values(c.Topics)) {
			steps = append(steps, Step{Text: q.lockTopic, Args: []any{topic}})
		}
		f := c.Fingerprint
		detail, _ := json.Marshal(map[string]any{"mode": store.RebuildInPlace, "epoch": epoch, "digest": c.Digest, "was": string(c.State), // numbers and texts
			"fingerprint": map[string]any{"version": f.Version, "inputs": f.Inputs, "keys": f.Keys, "tables": f.Tables, "logic": f.Logic}})
		return append(steps, Step{Text: q.horizon, Args: build},
			Step{Text: q.begin, Args: []any{id.Type, id.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1},
			l.historyStep(id, store.HistoryEntry{Build: c.Build, Actor: r.Actor, Action: store.ActionRebuild, Partition: -1, Detail: string(detail)})), nil
	})
}

// EffectsOwed implements [store.Rebuilds].
func (l *Ledger) EffectsOwed(ctx context.Context, build int64, topic string, after int64) (list []store.Owed, err error) {
	err = l.read(ctx, "read owed effects", l.rebuilds.owed, []any{build, topic, after}, func() { list = nil }, func(r Rows) error {
		var o store.Owed
		var partition int64
		err := r.Scan(&o.Position, &partition, &o.Key)
		o.Partition = int(partition)
		list = append(list, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// StaleKeys implements [store.Rebuilds].
func (l *Ledger) StaleKeys(ctx context.Context, t store.TableRef, after string, limit int) (keys []string, err error) {
	const key, epoch = `"` + readmodel.KeyColumn + `"`, `"` + readmodel.EpochColumn + `"`
	text := l.db.SQL(`SELECT DISTINCT ` + key + ` FROM "` + t.Physical + `" WHERE ` + key + ` > {{?}} AND ` + epoch + ` < ? ORDER BY ` + key)
	err = l.read(ctx, "look for stale rows of "+t.Physical, l.db.Rows.Limit(text, limit), []any{after, t.Epoch}, func() { keys = nil }, func(r Rows) error {
		var key string
		err := r.Scan(&key)
		keys = append(keys, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// Pruned implements [store.Rebuilds].
func (l *Ledger) Pruned(ctx context.Context, p store.Pruned) (ended bool, err error) {
	op := "end the rebuild of " + p.Consumer.String()
	if len(p.Leases) > 0 {
		if err := l.db.WriteAll(ctx, op, l.prunedSteps(&p)); err != nil {
			return false, err
		}
	}
	err = l.act(ctx, op, func(conn Conn) ([]Step, error) {
		ended = false
		c, err := l.db.Consumer(ctx, conn, p.Consumer)
		if err != nil || c.State != store.StateRebuilding || c.Epoch != p.Epoch || c.Build != p.Build {
			return nil, err
		}
		left, err := number(ctx, conn, l.rebuilds.unfinished, p.Build)
		if err != nil || left > 0 {
			return nil, err
		}
		ended = true
		steps := l.lockAll(p.Build)
		detail, _ := json.Marshal(map[string]int64{"epoch": p.Epoch})
		return append(steps,
			Step{Text: l.rebuilds.all, Args: []any{p.Build}, Broken: errMoved, Rows: 0},
			Step{Text: l.rebuilds.settled, Args: []any{p.Build}},
			Step{Text: l.rebuilds.end, Args: []any{p.Build}},
			l.goOnStep(&c),
			l.historyStep(p.Consumer, store.HistoryEntry{Build: p.Build, Actor: hostActor, Action: store.ActionRebuilt, Partition: -1, Detail: string(detail)})), nil
	})
	return ended && err == nil, err
}

// prunedSteps mark partitions under their leases.
func (l *Ledger) prunedSteps(p *store.Pruned) []Step {
	partitions := make([]int, len(p.Leases))
	held := make([]string, len(p.Leases))
	for i, lease := range p.Leases {
		partitions[i] = lease.Partition
		held[i] = fmt.Sprintf(`"partition" = %d AND generation = %d`, lease.Partition, lease.Generation)
	}
	steps := l.lockAll(p.Build, partitions...)
	for chunk := range slices.Chunk(held, rowsMax) {
		steps = append(steps, Step{Args: []any{p.Build, p.InstanceID}, Broken: store.ErrFenced, Rows: int64(len(chunk)),
			Text: l.db.SQL(`UPDATE {{ownership}} SET generation = generation WHERE build = ? AND instance_id = {{?}} AND (` + strings.Join(chunk, ` OR `) + `)`)})
	}
	of := ` WHERE build = ? AND "partition" IN (` + numbers(partitions) + `)`
	return append(steps,
		Step{Args: []any{p.Epoch, p.Build, p.Epoch}, Text: l.db.SQL(`UPDATE {{checkpoints}} SET pruned_epoch = ?` + of + ` AND epoch = ? AND position >= replay_through`)},
		// One that is of another epoch, or not as far.
		Step{Args: []any{p.Build, p.Epoch, p.Epoch}, Broken: store.ErrCheckpointMoved, Rows: 0,
			Text: l.db.SQL(`UPDATE {{checkpoints}} SET pruned_epoch = pruned_epoch` + of + ` AND (epoch <> ? OR pruned_epoch <> ?)`)})
}

// closedSteps are the steps behind the removal of rows of undelivered messages that
// remove stale rows of the keys that nothing holds any more: a prune has passed them
// over, or was there before the rebuild had come that far (H15).
func (l *Ledger) closedSteps(ctx context.Context, conn Conn, c *store.Consumer, rows []chosen) (steps []Step, err error) {
	if c.Epoch == 0 {
		return nil, nil
	}
	replaying := map[int]bool{}
	err = each(ctx, conn, l.db.SQL(`SELECT DISTINCT "partition" FROM {{checkpoints}} WHERE build = ? AND (position < replay_through OR incomplete_through > 0)`), []any{c.Build}, func(r Rows) error {
		var p int64
		err := r.Scan(&p)
		replaying[int(p)] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	gone := map[int64]bool{}
	type line struct {
		partition int
		key       string
	}
	lines := map[line]bool{}
	for i := range rows {
		gone[rows[i].ID] = true
		if at := (line{rows[i].partition, rows[i].Key}); !rows[i].unresolved && !replaying[at.partition] {
			lines[at] = true
		}
	}
	var keys []string
	for at := range lines {
		open := false
		err := each(ctx, conn, l.db.SQL(`SELECT u.id FROM {{undelivered}} u WHERE u.build = ? AND u."partition" = ? AND u."key" = {{?}} AND u.status <> 'DEAD_LETTER'`),
			[]any{c.Build, int64(at.partition), at.key}, func(r Rows) error {
				var id int64
				err := r.Scan(&id)
				open = open || !gone[id]
				return err
			})
		if err != nil {
			return nil, err
		}
		if open {
			continue
		}
		keys = append(keys, at.key)
		steps = append(steps, Step{Args: []any{c.Build, int64(at.partition), at.key}, Broken: errMoved, Rows: 0,
			Text: l.db.SQL(`UPDATE {{undelivered}} SET status = status WHERE build = ? AND "partition" = ? AND "key" = {{?}} AND status <> 'DEAD_LETTER'`)})
	}
	slices.Sort(keys)
	for i := range c.Tables {
		if ref := &c.Tables[i]; !ref.Table.Free {
			steps = append(steps, l.pruneSteps(ref, keys)...)
		}
	}
	return steps, nil
}

// pruneMax bounds the keys that one statement names.
const pruneMax = 100

// pruneSteps delete the rows of keys that are of a lower epoch.
func (l *Ledger) pruneSteps(ref *store.TableRef, keys []string) (steps []Step) {
	for chunk := range slices.Chunk(keys, pruneMax) {
		args := []any{ref.Epoch}
		for _, key := range chunk {
			args = append(args, key)
		}
		steps = append(steps, Step{Args: args, Text: l.db.SQL(`DELETE FROM "` + ref.Physical + `" WHERE "` + readmodel.EpochColumn + `" < ? AND "` +
			readmodel.KeyColumn + `" IN (` + strings.TrimSuffix(strings.Repeat("{{?}}, ", len(chunk)), ", ") + `)`)})
	}
	return steps
}
