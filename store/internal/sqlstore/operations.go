package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/projhost/projhost/store"
)

// Every action of an operator is steps of one transaction: the generations of the
// partitions concerned, which locks them, then undelivered messages, skip records
// and checkpoints, then the consumer, whose state has to be what was read, and the
// history (H13, H39).

// Pause implements [store.Operations].
func (l *Ledger) Pause(ctx context.Context, id store.ConsumerID, actor string) error {
	return l.act(ctx, "pause "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		switch {
		case err != nil || c.State == store.StatePaused:
			return nil, err
		case c.State != store.StateRunning && c.State != store.StateRebuilding:
			return nil, &store.StateError{Consumer: id, Action: store.ActionPause, State: c.State}
		}
		return append(l.raise(c.Build), l.stateStep(&c, store.StatePaused),
			l.historyStep(id, store.HistoryEntry{Build: c.Build, Actor: actor, Action: store.ActionPause, Partition: -1})), nil
	})
}

// freshSQL gives rows a fresh budget, due at once.
const freshSQL = `UPDATE {{undelivered}} SET status = 'FAILED', attempts = 0, passing = 0, retry_us = NULL, last_us = {{now}} WHERE build = ?`

// Resume implements [store.Operations].
func (l *Ledger) Resume(ctx context.Context, id store.ConsumerID, pastPoison int64, actor string) error {
	return l.act(ctx, "resume "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		switch {
		case err != nil:
			return nil, err
		case c.State != store.StatePaused && c.State != store.StateHalted:
			return nil, &store.StateError{Consumer: id, Action: store.ActionResume, State: c.State}
		}
		steps := l.raise(c.Build)
		entry := store.HistoryEntry{Build: c.Build, Actor: actor, Action: store.ActionResume, Partition: -1}
		if pastPoison != 0 {
			rows, err := l.selection(ctx, conn, c.Build, &store.Selection{ID: pastPoison})
			switch {
			case err != nil:
				return nil, err
			case len(rows) == 0:
				return nil, &store.ChangedError{ID: pastPoison, Why: "it is not there any more"}
			case rows[0].Was != store.StatusHalted:
				return nil, &store.ChangedError{ID: pastPoison, Why: fmt.Sprintf("it is %s, and not what halted the consumer", rows[0].Was)}
			}
			closed, err := l.closedSteps(ctx, conn, &c, rows)
			if err != nil {
				return nil, err
			}
			steps = append(append(steps, l.remove(&c, rows, store.StatusHalted, actor)...), closed...)
			entry.Detail = fmt.Sprintf(`{"past_poison":%d}`, pastPoison)
			rows[0].place(&entry)
		}
		return append(steps, Step{Text: l.db.SQL(freshSQL + ` AND status = 'HALTED'`), Args: []any{c.Build}},
			l.goOnStep(&c), l.historyStep(id, entry)), nil
	})
}

// Reset implements [store.Operations].
func (l *Ledger) Reset(ctx context.Context, id store.ConsumerID, topic string, position int64, actor string) error {
	return l.act(ctx, "reset "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		switch {
		case err != nil:
			return nil, err
		case c.State == store.StateRebuilding:
			return nil, &store.StateError{Consumer: id, Action: store.ActionReset, State: c.State}
		case !slices.Contains(c.Topics, topic):
			return nil, fmt.Errorf("%s reads no topic %q: %w", id, topic, store.ErrNotFound)
		}
		mark, err := number(ctx, conn, l.q.mark, topic)
		if err != nil {
			return nil, err
		}
		if position < 0 || position > mark {
			return nil, &store.InvalidError{Code: "bad_request", Index: -1,
				Reason: fmt.Sprintf("position %d of topic %s: it can be read from 0 to %d", position, topic, mark)}
		}
		return append(l.raise(c.Build),
			Step{Text: l.q.resetPoints, Args: []any{position, position, position, c.Build, topic, position}},
			l.same(&c),
			l.historyStep(id, store.HistoryEntry{Build: c.Build, Actor: actor, Action: store.ActionReset, Topic: topic, Partition: -1, Position: position})), nil
	})
}

// chosen is a row of a selection.
type chosen struct {
	store.DecidedRow
	partition  int
	unresolved bool
	head       bool
}

func (r *chosen) place(h *store.HistoryEntry) {
	h.Topic, h.Partition, h.Position, h.Key = r.Topic, r.partition, r.Position, r.Key
}

const selectionSQL = `SELECT u.id, u.topic, u.position, u."partition", u."key", u.event_type, u.status, u.unresolved,
 CASE WHEN EXISTS (SELECT 1 FROM {{undelivered}} e WHERE e.build = u.build AND e."partition" = u."partition" AND e."key" = u."key"
  AND e.id < u.id AND e.status <> 'DEAD_LETTER') THEN 0 ELSE 1 END
 FROM {{undelivered}} u WHERE u.build = ?`

// selection reads the rows of a build that a selection names, by id.
func (l *Ledger) selection(ctx context.Context, conn Conn, build int64, sel *store.Selection) (list []chosen, err error) {
	where, args := selected(sel)
	err = each(ctx, conn, l.db.SQL(selectionSQL+where+` ORDER BY u.id`), append([]any{build}, args...), func(r Rows) error {
		var c chosen
		var partition, unresolved, head int64
		var status string
		err := r.Scan(&c.ID, &c.Topic, &c.Position, &partition, &c.Key, &c.EventType, &status, &unresolved, &head)
		c.partition, c.Was, c.unresolved, c.head = int(partition), store.UndeliveredStatus(status), unresolved != 0, head != 0
		list = append(list, c)
		return err
	})
	return list, err
}

// named is selection, and an error if it names a row that is not there, or that is
// not what the operator took it for.
func (l *Ledger) named(ctx context.Context, conn Conn, id store.ConsumerID, build int64, sel *store.Selection) ([]chosen, error) {
	list, err := l.selection(ctx, conn, build, sel)
	if err != nil || len(list) > 0 || sel.ID == 0 {
		return list, err
	}
	list, err = l.selection(ctx, conn, build, &store.Selection{ID: sel.ID})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, fmt.Errorf("undelivered message %d of %s: %w", sel.ID, id, store.ErrNotFound)
	}
	return nil, &store.ChangedError{ID: sel.ID, Why: fmt.Sprintf("it is %s, of key %q and topic %s", list[0].Was, list[0].Key, list[0].Topic)}
}

// decide lists what an action does, and splits the rows.
func decide(list []chosen, refuse func(*chosen) string) (d store.Decision, take []chosen) {
	for i := range list {
		r := &list[i]
		if r.Refused = refuse(r); r.Refused == "" {
			d.Count++
			take = append(take, *r)
		} else {
			d.Refused++
		}
		if len(d.Rows) < store.DecisionMax {
			d.Rows = append(d.Rows, r.DecidedRow)
		}
	}
	return d, take
}

// RetryUndelivered implements [store.Operations].
func (l *Ledger) RetryUndelivered(ctx context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (d store.Decision, err error) {
	err = l.act(ctx, "retry undelivered messages of "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		list, err := l.named(ctx, conn, id, c.Build, &sel)
		if err != nil {
			return nil, err
		}
		var take []chosen
		d, take = decide(list, func(r *chosen) string {
			switch {
			case r.Was == store.StatusDeadLetter && !a.OutOfOrder:
				return "later messages of its key may have been applied: it is retried only out of order"
			case r.Was == store.StatusDeadLetter:
				return ""
			case !r.head:
				return "an earlier message of its key is before it"
			case r.Was == store.StatusHalted:
				return "it has halted its consumer: resume that"
			case r.Was == store.StatusWaiting:
				return "it is due already"
			}
			return ""
		})
		if a.DryRun || len(take) == 0 {
			return nil, nil
		}
		steps := l.raise(c.Build, partitionsOf(take)...)
		for _, status := range []store.UndeliveredStatus{store.StatusFailed, store.StatusDeadLetterKey, store.StatusDeadLetter} {
			for chunk := range slices.Chunk(idsOf(take, status), rowsMax) {
				if status == store.StatusDeadLetterKey {
					steps = append(steps, l.lineStep(c.Build, store.StatusWaiting, chunk))
				}
				steps = append(steps, Step{Broken: errMoved, Rows: int64(len(chunk)), Args: []any{c.Build, string(status)},
					Text: l.db.SQL(freshSQL + ` AND status = ? AND id IN (` + numbers(chunk) + `)`)})
			}
		}
		steps = append(steps, l.same(&c))
		for i := range take {
			if take[i].Was == store.StatusDeadLetter {
				entry := store.HistoryEntry{Build: c.Build, Actor: a.Actor, Action: store.ActionOutOfOrder, Detail: fmt.Sprintf(`{"id":%d}`, take[i].ID)}
				take[i].place(&entry)
				steps = append(steps, l.historyStep(id, entry))
			}
		}
		return append(steps, l.decisionStep(&c, store.ActionRetry, a.Actor, &sel, take)), nil
	})
	if err != nil {
		return store.Decision{}, err
	}
	return d, nil
}

// DeleteUndelivered implements [store.Operations].
func (l *Ledger) DeleteUndelivered(ctx context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (d store.Decision, err error) {
	err = l.act(ctx, "delete undelivered messages of "+id.String(), func(conn Conn) ([]Step, error) {
		c, err := l.db.Consumer(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		list, err := l.named(ctx, conn, id, c.Build, &sel)
		if err != nil {
			return nil, err
		}
		var take []chosen
		d, take = decide(list, func(*chosen) string { return "" })
		if a.DryRun || len(take) == 0 {
			return nil, nil
		}
		closed, err := l.closedSteps(ctx, conn, &c, take)
		if err != nil {
			return nil, err
		}
		steps := append(l.raise(c.Build, partitionsOf(take)...), l.remove(&c, take, "", a.Actor)...)
		return append(append(steps, closed...), l.same(&c), l.decisionStep(&c, store.ActionDelete, a.Actor, &sel, take)), nil
	})
	if err != nil {
		return store.Decision{}, err
	}
	return d, nil
}

// remove deletes rows and records that their messages are skipped; a line whose
// dead head goes waits again. was, unless "", is the status that all of them have to
// have.
func (l *Ledger) remove(c *store.Consumer, rows []chosen, was store.UndeliveredStatus, actor string) (steps []Step) {
	var dead []int64
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
		if rows[i].head && rows[i].Was == store.StatusDeadLetterKey {
			dead = append(dead, rows[i].ID)
		}
	}
	for chunk := range slices.Chunk(dead, rowsMax) {
		steps = append(steps, l.lineStep(c.Build, store.StatusWaiting, chunk))
	}
	// Who deletes a whole line changes its rows first, and names them by id then.
	for chunk := range slices.Chunk(ids, rowsMax) {
		of := ` FROM {{undelivered}} u WHERE u.build = ? AND u.id IN (` + numbers(chunk) + `)
 AND NOT EXISTS (SELECT 1 FROM {{skipped}} k WHERE k.build = u.build AND k.topic = u.topic AND k.position = u.position AND k."partition" = u."partition" AND k."key" = u."key")`
		steps = append(steps,
			Step{Args: []any{c.ID.Type, c.ID.Name, actor, store.ActionSkip, SkipDetail(true), SkipDetail(false), c.Build}, Text: l.db.SQL(`INSERT INTO {{consumer_history}} (` + historyColumns + `)
 SELECT ?, ?, u.build, {{now}}, ?, ?, u.topic, u."partition", u.position, u."key", CASE WHEN u.unresolved = 1 THEN ? ELSE ? END` + of)},
			Step{Args: []any{c.Build}, Text: l.db.SQL(`INSERT INTO {{skipped}} (build, topic, position, "partition", "key", every_key` + l.keyHash + `)
 SELECT u.build, u.topic, u.position, u."partition", u."key", u.unresolved` + l.keyHash + of)})
		text, args := `DELETE FROM {{undelivered}} WHERE build = ? AND id IN (`+numbers(chunk)+`)`, []any{c.Build}
		if was != "" {
			text, args = text+` AND status = ?`, append(args, string(was))
		}
		steps = append(steps, Step{Text: l.db.SQL(text), Args: args, Broken: errMoved, Rows: int64(len(chunk))})
	}
	return steps
}

// toldMax is how many ids an entry of the history tells.
const toldMax = 100

// decisionStep records an action on rows.
func (l *Ledger) decisionStep(c *store.Consumer, action, actor string, sel *store.Selection, rows []chosen) Step {
	entry := store.HistoryEntry{Build: c.Build, Actor: actor, Action: action, Partition: -1}
	detail := struct {
		Rows   int     `json:"rows"`
		IDs    []int64 `json:"ids"`
		ID     int64   `json:"id,omitempty"`
		Key    string  `json:"key,omitempty"`
		Type   string  `json:"event_type,omitempty"`
		Status string  `json:"status,omitempty"`
		Topic  string  `json:"topic,omitempty"`
	}{Rows: len(rows), ID: sel.ID, Key: sel.Key, Type: sel.EventType, Status: string(sel.Status), Topic: sel.Topic}
	for i := range rows[:min(len(rows), toldMax)] {
		detail.IDs = append(detail.IDs, rows[i].ID)
	}
	text, _ := json.Marshal(detail) // numbers and texts
	entry.Detail = string(text)
	if len(rows) == 1 {
		rows[0].place(&entry)
	}
	return l.historyStep(c.ID, entry)
}

func partitionsOf(rows []chosen) []int {
	list := make([]int, len(rows))
	for i := range rows {
		list[i] = rows[i].partition
	}
	return list
}

func idsOf(rows []chosen, status store.UndeliveredStatus) (ids []int64) {
	for i := range rows {
		if rows[i].Was == status {
			ids = append(ids, rows[i].ID)
		}
	}
	return ids
}

// SubscribedStep records a consumer's first start.
func (l *Ledger) SubscribedStep(d *store.Declaration, build int64) Step {
	return l.historyStep(d.ID, store.HistoryEntry{Build: build, Actor: hostActor, Action: store.ActionSubscribe, Partition: -1, Detail: madeOf(d)})
}

// madeOf is what the history tells of a declaration.
func madeOf(d *store.Declaration) string {
	f := d.Fingerprint
	text, _ := json.Marshal(map[string]any{"plugin": d.Plugin, "digest": d.Digest, "fingerprint": map[string]any{ // numbers and texts
		"version": f.Version, "inputs": f.Inputs, "keys": f.Keys, "tables": f.Tables, "logic": f.Logic}})
	return string(text)
}

// RevisionSteps record that a consumer goes on with another logic, from its highest
// checkpoint of each topic on. Another digest is a deploy: what the module before
// could not apply is tried again, with a fresh budget, but for what holds nothing
// (H5, H24), and a halt for such a message ends. Another live build meanwhile is
// something that has moved: the declaration is then compared with that one's.
func (l *Ledger) RevisionSteps(c *store.Consumer, d *store.Declaration) []Step {
	text, _ := json.Marshal(map[string]string{"plugin": d.Plugin, "digest": d.Digest, "logic": d.Fingerprint.Logic})
	var steps []Step
	if c.Digest != d.Digest {
		const stopped = `(SELECT u."partition" FROM {{undelivered}} u WHERE u.build = ? AND u.status IN ('HALTED', 'DEAD_LETTER_KEY'))`
		steps = append(steps,
			Step{Text: l.db.SQL(raiseSQL + ` AND "partition" IN ` + stopped), Args: []any{c.Build, c.Build}},
			// First the lines, while their heads can still be told.
			Step{Args: []any{c.Build, c.Build}, Text: l.db.SQL(`UPDATE {{undelivered}} SET status = 'WAITING', last_us = {{now}} WHERE build = ? AND status = 'DEAD_LETTER_KEY'
 AND EXISTS (SELECT 1 FROM (SELECT min(h.id) AS head, h."partition" AS p, h."key" AS k FROM {{undelivered}} h
  WHERE h.build = ? AND h.status <> 'DEAD_LETTER' GROUP BY h."partition", h."key") l
 WHERE l.p = {{undelivered}}."partition" AND l.k = {{undelivered}}."key" AND l.head < {{undelivered}}.id)`)},
			Step{Args: []any{c.Build}, Text: l.db.SQL(freshSQL + ` AND status IN ('HALTED', 'DEAD_LETTER_KEY')`)})
		if c.State == store.StateHalted && c.Halt != nil && c.Halt.Reason == store.HaltApplyError {
			steps = append(steps, l.goOnStep(c))
		}
	}
	return append(steps,
		Step{Text: l.db.SQL(`UPDATE {{builds}} SET plugin = ?, digest = ?, logic_hash = ? WHERE id = ?`), Args: []any{d.Plugin, d.Digest, d.Fingerprint.Logic, c.Build}},
		Step{Text: l.db.SQL(`UPDATE {{consumers}} SET revision = revision + 1 WHERE type = {{?}} AND name = {{?}} AND live_build = ?`),
			Args: []any{c.ID.Type, c.ID.Name, c.Build}, Broken: errMoved, Rows: 1},
		Step{Args: []any{c.ID.Type, c.ID.Name, hostActor, store.ActionRevision, string(text), c.Build},
			Text: l.db.SQL(`INSERT INTO {{consumer_history}} (` + historyColumns + `)
 SELECT ?, ?, k.build, {{now}}, ?, ?, k.topic, -1, max(k.position), '', ? FROM {{checkpoints}} k WHERE k.build = ? GROUP BY k.build, k.topic`)})
}

// Moved tells whether steps failed since something had changed meanwhile: they are
// decided anew.
func Moved(err error) bool { return errors.Is(err, errMoved) }

const (
	buildsSQL = `SELECT id, tables FROM {{builds}} WHERE consumer_type = {{?}} AND consumer_name = {{?}} ORDER BY id`
	usersSQL  = `SELECT DISTINCT instance_id FROM {{members}} WHERE build IN (%s) AND instance_id IN (SELECT id FROM {{instances}} WHERE ` + live + `) ORDER BY instance_id`
)

// builds reads a consumer's builds. Of one that is dropped they are there until its
// tables have gone.
func (l *Ledger) builds(ctx context.Context, conn Conn, id store.ConsumerID) (list []Build, err error) {
	err = each(ctx, conn, l.db.SQL(buildsSQL), []any{id.Type, id.Name}, func(r Rows) error {
		var b Build
		err := r.Scan(&b.ID, &b.Tables)
		list = append(list, b)
		return err
	})
	return list, err
}

// Build is a build with its tables as declared.
type Build struct {
	ID     int64
	Tables string
}

// Drop drops a consumer's bookkeeping, all but the record of its builds and names:
// what has to be removed from the database is told by that until
// [Ledger.DroppedSteps].
func (l *Ledger) Drop(ctx context.Context, id store.ConsumerID, actor string) error {
	return l.act(ctx, "drop "+id.String(), func(conn Conn) ([]Step, error) {
		steps, _, err := l.DropSteps(ctx, conn, id, actor)
		return steps, err
	})
}

// DropSteps are the steps of [Ledger.Drop], and the consumer's builds.
func (l *Ledger) DropSteps(ctx context.Context, conn Conn, id store.ConsumerID, actor string) ([]Step, []Build, error) {
	c, err := l.db.Consumer(ctx, conn, id)
	if err != nil {
		return nil, nil, err
	}
	list, err := l.builds(ctx, conn, id)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]int64, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	builds := numbers(ids)
	var users []string
	err = each(ctx, conn, l.db.SQL(fmt.Sprintf(usersSQL, builds)), nil, func(r Rows) error {
		var user string
		err := r.Scan(&user)
		users = append(users, user)
		return err
	})
	switch {
	case err != nil:
		return nil, nil, err
	case len(users) > 0:
		return nil, nil, &store.InUseError{Consumer: id, Instances: users}
	}
	var steps []Step
	for _, build := range ids {
		steps = append(steps, l.raise(build)...)
	}
	of := ` WHERE build IN (` + builds + `)`
	for _, table := range []string{"undelivered", "skipped", "effects_owed", "checkpoints"} {
		steps = append(steps, Step{Text: l.db.SQL(`DELETE FROM {{` + table + `}}` + of)})
	}
	return append(steps,
		Step{Text: l.db.SQL(`DELETE FROM {{members}}` + of + ` AND instance_id NOT IN (SELECT id FROM {{instances}} WHERE ` + live + `)`)},
		// One that has begun to run it meanwhile.
		Step{Text: l.db.SQL(`UPDATE {{members}} SET single_owner = single_owner` + of), Broken: errMoved, Rows: 0},
		Step{Text: l.db.SQL(`DELETE FROM {{ownership}}` + of)},
		Step{Text: l.db.SQL(`DELETE FROM {{consumers}}` + ofConsumerSQL), Args: []any{id.Type, id.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1},
		l.historyStep(id, store.HistoryEntry{Build: c.Build, Actor: actor, Action: store.ActionDrop, Partition: -1})), list, nil
}

// DroppedSteps forget the builds and names of a consumer that is dropped.
func (l *Ledger) DroppedSteps(id store.ConsumerID) []Step {
	who := []any{id.Type, id.Name}
	return []Step{
		{Text: l.db.SQL(`DELETE FROM {{builds}} WHERE consumer_type = {{?}} AND consumer_name = {{?}}`), Args: who},
		{Text: l.db.SQL(`DELETE FROM {{read_model_tables}} WHERE consumer_type = {{?}} AND consumer_name = {{?}}`), Args: who},
	}
}
