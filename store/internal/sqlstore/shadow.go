package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/store"
)

// What is done to the builds of a consumer is steps of one transaction, as the
// actions of operators are, and in the same order of locks: ownership rows by build
// and partition, then what hangs on them, then the consumer.

// StatesSQL reads the states of all builds there are.
const StatesSQL = `SELECT c.type, c.name, c.live_build, c.state, c.state_since_us, c.halt, c.epoch,
 b.id, b.state, b.state_since_us, b.halt, b.epoch, COALESCE(b.stood_down_us, 0), b.cold
 FROM {{consumers}} c JOIN {{builds}} b ON b.consumer_type = c.type AND b.consumer_name = c.name AND b.dropped_us IS NULL
 ORDER BY c.type, c.name, b.id`

// States reads what consumers and builds are doing, by StatesSQL.
func States(ctx context.Context, conn Conn, text string) (consumers []store.ConsumerStatus, builds []store.BuildStatus, err error) {
	err = each(ctx, conn, text, nil, func(r Rows) error {
		var id store.ConsumerID
		var live, since, epoch, build, buildSince, buildEpoch, stood, cold int64
		var state, buildState string
		var halt, buildHalt sql.NullString
		err := r.Scan(&id.Type, &id.Name, &live, &state, &since, &halt, &epoch, &build, &buildState, &buildSince, &buildHalt, &buildEpoch, &stood, &cold)
		if err != nil {
			return err
		}
		if build == live {
			buildHalt, buildSince = halt, since
		}
		why := haltOf(buildHalt, buildSince)
		if build == live {
			consumers = append(consumers, store.ConsumerStatus{Build: live, ID: id, State: store.ConsumerState(state), Halt: why, Epoch: epoch})
			return nil
		}
		builds = append(builds, store.BuildStatus{Build: build, Consumer: id, Role: roleOf(stood), State: store.ConsumerState(buildState),
			Halt: why, Epoch: buildEpoch, Cold: cold != 0})
		return nil
	})
	return consumers, builds, err
}

func haltOf(text sql.NullString, since int64) *store.Halt {
	if !text.Valid {
		return nil
	}
	return HaltOf(text.String, since)
}

// roleOf is what a build is that is not live.
func roleOf(stoodDown int64) store.BuildRole {
	if stoodDown == 0 {
		return store.RoleShadow
	}
	return store.RoleStandby
}

const buildsOfSQL = `SELECT b.id, c.live_build, c.state, c.state_since_us, c.halt, c.epoch, b.state, b.state_since_us, b.halt, b.epoch,
 b.created_us, b.plugin, b.digest, b.topics, b.fingerprint_version, b.inputs_hash, b.keys_hash, b.tables_hash, b.logic_hash, b.tables,
 COALESCE(b.stood_down_us, 0), b.cold, COALESCE(b.keep_until_us, 0), COALESCE(b.stopped_us, 0), COALESCE(b.dropped_us, 0)
 FROM {{builds}} b JOIN {{consumers}} c ON c.type = b.consumer_type AND c.name = b.consumer_name
 WHERE b.consumer_type = {{?}} AND b.consumer_name = {{?}} ORDER BY b.id`

// BuildsOf are a consumer's builds, and those that were given up and whose tables
// may be there still.
type BuildsOf struct {
	Consumer store.Consumer
	Live     store.Build
	Others   []store.Build
	GivenUp  []store.Build
}

// find gives a build that is not live.
func (b *BuildsOf) find(action string, build int64, roles ...store.BuildRole) (*store.Build, error) {
	if build == b.Live.ID && build != 0 {
		return nil, &store.BuildError{Consumer: b.Consumer.ID, Build: build, Action: action, Why: "it is the live one"}
	}
	for i := range b.Others {
		o := &b.Others[i]
		if o.ID != build {
			continue
		}
		if len(roles) > 0 && !slices.Contains(roles, o.Role) {
			return nil, &store.BuildError{Consumer: b.Consumer.ID, Build: build, Action: action, Why: "it is a " + string(o.Role)}
		}
		return o, nil
	}
	return nil, fmt.Errorf("build %d of %s: %w", build, b.Consumer.ID, store.ErrNotFound)
}

// BuildsOf reads a consumer with its builds.
func (l *Ledger) BuildsOf(ctx context.Context, conn Conn, id store.ConsumerID) (*BuildsOf, error) {
	c, err := l.db.Consumer(ctx, conn, id)
	if err != nil {
		return nil, err
	}
	list := &BuildsOf{Consumer: c}
	err = each(ctx, conn, l.bq.of, []any{id.Type, id.Name}, func(r Rows) error {
		b := store.Build{Consumer: id}
		var live, since, epoch, version, cold, dropped int64
		var state, buildState, topics, tables string
		var halt, buildHalt sql.NullString
		f := &b.Fingerprint
		err := r.Scan(&b.ID, &live, &state, &since, &halt, &epoch, &buildState, &b.StateSinceUS, &buildHalt, &b.Epoch,
			&b.CreatedUS, &b.Plugin, &b.Digest, &topics, &version, &f.Inputs, &f.Keys, &f.Tables, &f.Logic, &tables,
			&b.StoodDownUS, &cold, &b.KeepUntilUS, &b.StoppedUS, &dropped)
		if err != nil {
			return err
		}
		b.Role, b.State, b.Cold, f.Version = roleOf(b.StoodDownUS), store.ConsumerState(buildState), cold != 0, int(version)
		if b.ID == live {
			b.Role, b.State, b.StateSinceUS, b.Epoch, buildHalt = store.RoleLive, store.ConsumerState(state), since, epoch, halt
		}
		b.Halt = haltOf(buildHalt, b.StateSinceUS)
		err = json.Unmarshal([]byte(topics), &b.Topics)
		if err == nil {
			b.Tables, err = l.db.Tables(b.ID, b.Epoch, tables)
		}
		if err != nil {
			return fmt.Errorf("the record of build %d of %s does not read: %w", b.ID, id, err)
		}
		switch {
		case b.ID == live:
			list.Live = b
		case dropped != 0:
			list.GivenUp = append(list.GivenUp, b)
		default:
			list.Others = append(list.Others, b)
		}
		return nil
	})
	if err == nil && list.Live.ID != c.Build {
		err = errMoved // between the two reads
	}
	return list, err
}

// buildsOf is BuildsOf outside of an action.
func (l *Ledger) buildsOf(ctx context.Context, op string, id store.ConsumerID) (list *BuildsOf, err error) {
	for n := 0; ; n++ {
		err = l.db.Read(ctx, op, func(conn Conn) error {
			list, err = l.BuildsOf(ctx, conn, id)
			return err
		})
		if !errors.Is(err, errMoved) || n == attemptsMax-1 {
			return list, err
		}
	}
}

// ListBuilds implements [store.Builds].
func (l *Ledger) ListBuilds(ctx context.Context, id store.ConsumerID) ([]store.Build, error) {
	b, err := l.buildsOf(ctx, "list builds of "+id.String(), id)
	if err != nil {
		return nil, err
	}
	list := append([]store.Build{b.Live}, b.Others...)
	slices.SortFunc(list, func(a, b store.Build) int { return int(a.ID - b.ID) })
	return list, nil
}

// buildQueries are the static statements about builds.
type buildQueries struct {
	of, noOther                         string
	highest, positions                  string
	stop, stopped, stopIsOld            string
	clearStop, unstopped, runsOn, there string
	become, resume, giveUp              string
	halt, haltEntry                     string
}

const topsSQL = `SELECT topic AS t, max(position) AS q FROM {{checkpoints}} WHERE build = ? GROUP BY topic`

func newBuildQueries(l *Ledger) buildQueries {
	sql := l.db.SQL
	return buildQueries{
		of: sql(buildsOfSQL),
		noOther: sql(`UPDATE {{consumers}} SET revision = revision` + ofConsumerSQL + `
 AND NOT EXISTS (SELECT 1 FROM {{builds}} b WHERE b.consumer_type = {{consumers}}.type AND b.consumer_name = {{consumers}}.name AND b.id <> {{consumers}}.live_build)`),
		highest:   sql(`SELECT topic, max(stop_at) FROM {{checkpoints}} WHERE build = ? GROUP BY topic`),
		positions: sql(`SELECT topic, "partition", position FROM {{checkpoints}} WHERE build = ? ORDER BY topic, "partition"`),
		// The inner table has its rows made first: MySQL does not read what it changes.
		stop:      sql(`UPDATE {{checkpoints}} SET stop_at = (SELECT l.q FROM (` + topsSQL + `) l WHERE l.t = {{checkpoints}}.topic) WHERE build = ?`),
		stopped:   sql(`UPDATE {{builds}} SET stopped_us = {{now}} WHERE id = ? AND stopped_us IS NULL`),
		stopIsOld: sql(`SELECT count(*) FROM {{builds}} WHERE id = ? AND stopped_us + ? <= {{now}}`),
		clearStop: sql(`UPDATE {{checkpoints}} SET stop_at = 0 WHERE build = ? AND stop_at <> 0`),
		unstopped: sql(`UPDATE {{builds}} SET stopped_us = NULL WHERE id = ? AND stopped_us = ?`),
		runsOn:    sql(`UPDATE {{builds}} SET cold = cold WHERE id = ? AND stopped_us IS NULL`),
		there:     sql(`UPDATE {{builds}} SET cold = cold WHERE id = ? AND dropped_us IS NULL`),
		become: sql(`UPDATE {{builds}} SET stood_down_us = NULL, keep_until_us = NULL, cold = 0, stopped_us = NULL
 WHERE id = ? AND dropped_us IS NULL AND state = 'running'`),
		resume: sql(`UPDATE {{builds}} SET state = 'running', halt = NULL, state_since_us = {{now}} WHERE id = ? AND dropped_us IS NULL AND state = 'halted'`),
		giveUp: sql(`UPDATE {{builds}} SET dropped_us = {{now}} WHERE id = ? AND dropped_us IS NULL`),
		halt: sql(`UPDATE {{builds}} SET state = 'halted', halt = ?, state_since_us = {{now}} WHERE id = ? AND state = 'running'
 AND NOT EXISTS (SELECT 1 FROM {{consumers}} c WHERE c.type = {{?}} AND c.name = {{?}} AND c.live_build = {{builds}}.id)`),
		haltEntry: sql(`INSERT INTO {{consumer_history}} (` + historyColumns + `) SELECT b.consumer_type, b.consumer_name, b.id, {{now}}, ?, ?, ?, ?, ?, ?, ? FROM {{builds}} b
 WHERE b.id = ? AND b.state = 'running' AND NOT EXISTS (SELECT 1 FROM {{consumers}} c WHERE c.type = {{?}} AND c.name = {{?}} AND c.live_build = b.id)`),
	}
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int64
}

// checkpointsOf reads a build's positions, in order, and the highest of each topic.
func (l *Ledger) checkpointsOf(ctx context.Context, conn Conn, build int64) (order []place, at map[place]int64, top map[string]int64, err error) {
	at, top = map[place]int64{}, map[string]int64{}
	err = each(ctx, conn, l.bq.positions, []any{build}, func(r Rows) error {
		var p place
		var position int64
		err := r.Scan(&p.topic, &p.partition, &position)
		order, at[p], top[p.topic] = append(order, p), position, max(top[p.topic], position)
		return err
	})
	return order, at, top, err
}

// behind tells which partitions of a build are not where they have to be for it to
// be live (H9). Topics that only one of the two reads do not count.
func (l *Ledger) behind(ctx context.Context, conn Conn, live, b *store.Build) (list []store.TopicBehind, err error) {
	_, now, top, err := l.checkpointsOf(ctx, conn, live.ID)
	if err != nil {
		return nil, err
	}
	order, at, _, err := l.checkpointsOf(ctx, conn, b.ID)
	if err != nil {
		return nil, err
	}
	effects, rekeyed := b.Consumer.HasEffects(), keysDiffer(live, b)
	add := func(p place, position, need int64) {
		if n := len(list); n == 0 || list[n-1].Topic != p.topic {
			list = append(list, store.TopicBehind{Topic: p.topic, Need: top[p.topic]})
		}
		t := &list[len(list)-1]
		t.Partitions = append(t.Partitions, store.PartitionBehind{Partition: int(p.partition), Position: position, Need: need})
	}
	for _, p := range order {
		need, known := top[p.topic]
		if !known {
			continue
		}
		switch position := at[p]; {
		case !effects && position < need, effects && rekeyed && position != need:
			add(p, position, need)
		case effects && rekeyed && now[p] != need:
			add(p, now[p], need) // the live build itself has effects to come
		case effects && !rekeyed && position != now[p]:
			add(p, position, now[p])
		}
	}
	return list, nil
}

func keysDiffer(a, b *store.Build) bool {
	return a.Fingerprint.Version != b.Fingerprint.Version || a.Fingerprint.Keys != b.Fingerprint.Keys
}

// Switch implements [store.Builds].
func (l *Ledger) Switch(ctx context.Context, s store.Switch) error {
	id := s.Consumer
	return l.act(ctx, fmt.Sprintf("switch %s to build %d", id, s.Build), func(conn Conn) ([]Step, error) {
		all, err := l.BuildsOf(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		if s.Build == all.Live.ID {
			return nil, nil
		}
		b, err := all.find(store.ActionSwitch, s.Build)
		if err != nil {
			return nil, err
		}
		c := &all.Consumer
		switch {
		case c.State == store.StateRebuilding:
			return nil, &store.StateError{Consumer: id, Action: store.ActionSwitch, State: c.State}
		case b.State != store.StateRunning:
			return nil, &store.BuildError{Consumer: id, Build: b.ID, Action: store.ActionSwitch, Why: "it is " + string(b.State)}
		}
		for _, of := range []*store.Build{b, &all.Live} {
			left, err := number(ctx, conn, l.rebuilds.unfinished, of.ID)
			if err != nil {
				return nil, err
			}
			if left > 0 && (of == b || id.HasEffects()) {
				return nil, &store.BuildError{Consumer: id, Build: of.ID, Action: store.ActionSwitch, Why: "its rebuild in place has not ended"}
			}
		}
		late, err := l.behind(ctx, conn, &all.Live, b)
		if err != nil {
			return nil, err
		}
		if len(late) > 0 {
			return nil, &store.BehindError{Consumer: id, Build: b.ID, Topics: late}
		}
		if id.HasEffects() {
			open, err := number(ctx, conn, l.db.SQL(`SELECT count(*) FROM {{undelivered}} WHERE build = ?`), all.Live.ID)
			if err != nil {
				return nil, err
			}
			if open > 0 {
				return nil, &store.BuildError{Consumer: id, Build: b.ID, Action: store.ActionSwitch,
					Why: fmt.Sprintf("build %d, which is live, has %d undelivered messages, whose effects are still to come", all.Live.ID, open)}
			}
		}
		return l.switchSteps(c, &all.Live, b, s), nil
	})
}

// switchSteps make b the live build. What they decided by is looked at again, when
// both builds' ownership rows are locked and no batch of either is under way.
func (l *Ledger) switchSteps(c *store.Consumer, live, b *store.Build, s store.Switch) []Step {
	effects, rekeyed := b.Consumer.HasEffects(), keysDiffer(live, b)
	steps := l.raiseBoth(live.ID, b.ID)
	// What was applied with effects is what the live build has applied (H8, H9).
	tops, same := `SELECT topic AS t, max(effects_through) AS q FROM {{checkpoints}} WHERE build = ? GROUP BY topic`, ``
	if !rekeyed {
		tops = `SELECT topic AS t, "partition" AS p, max(effects_through) AS q FROM {{checkpoints}} WHERE build = ? GROUP BY topic, "partition"`
		same = ` AND l.p = {{checkpoints}}."partition"`
	}
	steps = append(steps,
		Step{Args: []any{live.ID, b.ID}, Text: l.db.SQL(`UPDATE {{checkpoints}} SET stop_at = 0,
 effects_through = COALESCE((SELECT l.q FROM (` + tops + `) l WHERE l.t = {{checkpoints}}.topic` + same + `), 0) WHERE build = ?`)},
		Step{Args: []any{b.ID}, Text: l.db.SQL(`UPDATE {{checkpoints}} SET effects_before = effects_through WHERE build = ?`)},
		Step{Text: l.bq.clearStop, Args: []any{live.ID}})
	detail, _ := json.Marshal(map[string]any{"from": live.ID, "digest": b.Digest}) // numbers and texts
	steps = append(steps, Step{Args: []any{c.ID.Type, c.ID.Name, b.ID, s.Actor, store.ActionSwitch, string(detail), live.ID},
		Text: l.db.SQL(`INSERT INTO {{consumer_history}} (` + historyColumns + `)
 SELECT ?, ?, ?, {{now}}, ?, ?, k.topic, -1, max(k.position), '', ? FROM {{checkpoints}} k WHERE k.build = ? GROUP BY k.build, k.topic`)})
	steps = append(steps, Step{Text: l.bq.become, Args: []any{b.ID}, Broken: errMoved, Rows: 1})
	state, after := store.StateRunning, c.State
	if c.State == store.StateHalted {
		state, after = store.StateHalted, store.StateRunning
	}
	kept, keptArgs := keeping(s.Keep)
	steps = append(steps, Step{Args: append(keptArgs, c.Epoch, string(state), live.ID), Text: l.db.SQL(`UPDATE {{builds}} SET ` + kept +
		`, stood_down_us = {{now}}, stopped_us = NULL, epoch = ?, state = ?, state_since_us = {{now}},
 halt = (SELECT c.halt FROM {{consumers}} c WHERE c.type = {{builds}}.consumer_type AND c.name = {{builds}}.consumer_name) WHERE id = ?`)})
	args := []any{b.ID, b.Epoch, string(after), c.ID.Type, c.ID.Name, string(c.State), live.ID, c.Epoch}
	text := `UPDATE {{consumers}} SET live_build = ?, epoch = ?, state = ?, halt = NULL, state_since_us = {{now}}, revision = revision + 1` + ofConsumerSQL
	switch {
	case !effects:
		text += ` AND NOT EXISTS (SELECT 1 FROM {{checkpoints}} s JOIN (` + topsSQL + `) l ON l.t = s.topic WHERE s.build = ? AND s.position < l.q)`
		args = append(args, live.ID, b.ID)
	case rekeyed:
		text += ` AND NOT EXISTS (SELECT 1 FROM {{checkpoints}} s JOIN (` + topsSQL + `) l ON l.t = s.topic WHERE s.build IN (?, ?) AND s.position <> l.q)`
		args = append(args, live.ID, live.ID, b.ID)
	default:
		text += ` AND NOT EXISTS (SELECT 1 FROM {{checkpoints}} s JOIN {{checkpoints}} l ON l.topic = s.topic AND l."partition" = s."partition"
 WHERE l.build = ? AND s.build = ? AND s.position <> l.position)`
		args = append(args, live.ID, b.ID)
	}
	if effects {
		text += ` AND NOT EXISTS (SELECT 1 FROM {{undelivered}} u WHERE u.build = ?)`
		args = append(args, live.ID)
	}
	return append(steps, Step{Text: l.db.SQL(text), Args: args, Broken: errMoved, Rows: 1})
}

// keeping is how a standby is kept, as assignments.
func keeping(k store.Keep) (text string, args []any) {
	if k.For <= 0 {
		return `cold = ?, keep_until_us = NULL`, []any{flag(k.Cold)}
	}
	return `cold = ?, keep_until_us = {{now}} + ?`, []any{flag(k.Cold), k.For.Microseconds()}
}

// raiseBoth raises the generations of two builds, in the one order of locks.
func (l *Ledger) raiseBoth(a, b int64) []Step {
	return append(l.raise(min(a, b)), l.raise(max(a, b))...)
}

// StopAt implements [store.Builds].
func (l *Ledger) StopAt(ctx context.Context, id store.ConsumerID) (at map[string]int64, err error) {
	var live int64
	err = l.act(ctx, "stop "+id.String(), func(conn Conn) ([]Step, error) {
		all, err := l.BuildsOf(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		if len(all.Others) == 0 {
			return nil, fmt.Errorf("stop %s: it has one build: %w", id, store.ErrNotFound)
		}
		live = all.Live.ID
		if all.Live.StoppedUS != 0 {
			return nil, nil
		}
		steps := append(l.raise(live), Step{Text: l.bq.stop, Args: []any{live, live}})
		return append(append(steps, inOrder(live, Step{Text: l.bq.stopped, Args: []any{live}, Broken: errMoved, Rows: 1},
			all.Others[0].ID, Step{Text: l.bq.there, Args: []any{all.Others[0].ID}, Broken: errMoved, Rows: 1})...),
			l.same(&all.Consumer)), nil
	})
	if err != nil {
		return nil, err
	}
	err = l.read(ctx, "read where "+id.String()+" stops", l.bq.highest, []any{live}, func() { at = map[string]int64{} }, func(r Rows) error {
		var topic string
		var position int64
		err := r.Scan(&topic, &position)
		at[topic] = position
		return err
	})
	return at, err
}

// GoOn implements [store.Builds].
func (l *Ledger) GoOn(ctx context.Context, id store.ConsumerID, after time.Duration) (did bool, err error) {
	err = l.act(ctx, "let "+id.String()+" go on", func(conn Conn) ([]Step, error) {
		did = false
		all, err := l.BuildsOf(ctx, conn, id)
		if err != nil || all.Live.StoppedUS == 0 {
			return nil, err
		}
		old, err := number(ctx, conn, l.bq.stopIsOld, all.Live.ID, after.Microseconds())
		if err != nil || old == 0 {
			return nil, err
		}
		did = true
		return append(append(l.raise(all.Live.ID), l.goOn(&all.Live)...), l.same(&all.Consumer)), nil
	})
	return did && err == nil, err
}

// inOrder are steps about the records of two builds, in the one order of locks.
func inOrder(a int64, stepA Step, b int64, stepB Step) []Step {
	if b < a {
		return []Step{stepB, stepA}
	}
	return []Step{stepA, stepB}
}

// goOn ends what StopAt began. The caller raises the build's generations.
func (l *Ledger) goOn(live *store.Build) []Step {
	return []Step{{Text: l.bq.clearStop, Args: []any{live.ID}},
		{Text: l.bq.unstopped, Args: []any{live.ID, live.StoppedUS}, Broken: errMoved, Rows: 1}}
}

// KeepBuild implements [store.Builds].
func (l *Ledger) KeepBuild(ctx context.Context, id store.ConsumerID, build int64, k store.Keep, actor string) error {
	return l.act(ctx, fmt.Sprintf("keep build %d of %s", build, id), func(conn Conn) ([]Step, error) {
		all, err := l.BuildsOf(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		b, err := all.find(store.ActionKeep, build, store.RoleStandby)
		if err != nil {
			return nil, err
		}
		kept, args := keeping(k)
		detail, _ := json.Marshal(map[string]any{"cold": k.Cold, "for_us": k.For.Microseconds()}) // numbers
		return append(l.raise(b.ID),
			Step{Args: append(args, b.ID), Broken: errMoved, Rows: 1, Text: l.db.SQL(`UPDATE {{builds}} SET ` + kept +
				` WHERE id = ? AND dropped_us IS NULL AND stood_down_us IS NOT NULL`)},
			l.same(&all.Consumer),
			l.historyStep(id, store.HistoryEntry{Build: b.ID, Actor: actor, Action: store.ActionKeep, Partition: -1, Detail: string(detail)})), nil
	})
}

// ResumeBuild implements [store.Builds].
func (l *Ledger) ResumeBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return l.act(ctx, fmt.Sprintf("resume build %d of %s", build, id), func(conn Conn) ([]Step, error) {
		all, err := l.BuildsOf(ctx, conn, id)
		if err != nil {
			return nil, err
		}
		b, err := all.find(store.ActionResume, build)
		if err != nil || b.State == store.StateRunning {
			return nil, err
		}
		return append(l.raise(b.ID),
			Step{Text: l.db.SQL(freshSQL + ` AND status = 'HALTED'`), Args: []any{b.ID}},
			Step{Text: l.bq.resume, Args: []any{b.ID}, Broken: errMoved, Rows: 1},
			l.same(&all.Consumer),
			l.historyStep(id, store.HistoryEntry{Build: b.ID, Actor: actor, Action: store.ActionResumed, Partition: -1})), nil
	})
}

// GiveUpSteps give a build up: all that hangs on it goes, and its record says that
// its tables are to go. No steps: that was so before.
func (l *Ledger) GiveUpSteps(ctx context.Context, conn Conn, id store.ConsumerID, build int64, action, actor string) ([]Step, error) {
	all, err := l.BuildsOf(ctx, conn, id)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(all.GivenUp, func(b store.Build) bool { return b.ID == build }) {
		return nil, nil
	}
	role := store.RoleShadow
	if action == store.ActionDropBuild {
		role = store.RoleStandby
	}
	b, err := all.find(action, build, role)
	if err != nil {
		return nil, err
	}
	steps, stays := l.raise(b.ID), Step{Text: l.bq.runsOn, Args: []any{all.Live.ID}, Broken: errMoved, Rows: 1}
	if all.Live.StoppedUS != 0 {
		// There is nothing left to stop for.
		on := l.goOn(&all.Live)
		steps, stays = append(l.raiseBoth(all.Live.ID, b.ID), on[0]), on[1]
	}
	for _, table := range []string{"undelivered", "skipped", "effects_owed", "checkpoints", "members", "ownership"} {
		steps = append(steps, Step{Text: l.db.SQL(`DELETE FROM {{` + table + `}} WHERE build = ?`), Args: []any{b.ID}})
	}
	steps = append(steps, inOrder(b.ID, Step{Text: l.bq.giveUp, Args: []any{b.ID}, Broken: errMoved, Rows: 1}, all.Live.ID, stays)...)
	return append(steps, l.same(&all.Consumer),
		l.historyStep(id, store.HistoryEntry{Build: b.ID, Actor: actor, Action: action, Partition: -1})), nil
}

// ForgetSteps forget a build that was given up, when its tables have gone, and the
// names that only it had. Somebody may have enlisted it meanwhile.
func (l *Ledger) ForgetSteps(id store.ConsumerID, build int64, names []string) []Step {
	steps := []Step{
		{Text: l.db.SQL(`DELETE FROM {{members}} WHERE build = ?`), Args: []any{build}},
		{Text: l.db.SQL(`DELETE FROM {{builds}} WHERE id = ? AND dropped_us IS NOT NULL`), Args: []any{build}},
	}
	for _, name := range names {
		steps = append(steps, Step{Text: l.db.SQL(`DELETE FROM {{read_model_tables}} WHERE name = {{?}} AND consumer_type = {{?}} AND consumer_name = {{?}}`),
			Args: []any{name, id.Type, id.Name}})
	}
	return steps
}

// ShadowSteps record a shadow, behind what makes its row and names, and before its
// bookkeeping. They hold only while a consumer is as it was read, and has no other
// build: they lock it first, so that of two hosts one is refused.
func (l *Ledger) ShadowSteps(c *store.Consumer) []Step {
	return []Step{l.same(c), {Text: l.bq.noOther, Args: []any{c.ID.Type, c.ID.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1}}
}

// ShadowStep records that a shadow was begun.
func (l *Ledger) ShadowStep(d *store.Declaration, build int64, actor string) Step {
	return l.historyStep(d.ID, store.HistoryEntry{Build: build, Actor: actor, Action: store.ActionShadow, Partition: -1, Detail: madeOf(d)})
}

// StartableShadow gives the shadow that is there already, or says why none can be
// begun.
func (all *BuildsOf) StartableShadow(d *store.Declaration) (*store.Build, error) {
	if len(all.Others) > 0 {
		b := &all.Others[0]
		if b.Role == store.RoleShadow && b.Made(d) {
			return b, nil
		}
		why := "it is a shadow by another declaration: switch to it, or cancel it, before another is begun"
		if b.Role == store.RoleStandby {
			why = "it is kept as a standby: drop it before a shadow is begun"
		}
		return nil, &store.BuildError{Consumer: d.ID, Build: b.ID, Action: store.ActionShadow, Why: why}
	}
	if all.Consumer.State == store.StateRebuilding {
		return nil, &store.StateError{Consumer: d.ID, Action: store.ActionShadow, State: all.Consumer.State}
	}
	return nil, nil
}
