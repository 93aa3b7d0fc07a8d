package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// Subscribe implements [store.Consumers].
//
// MySQL commits with every statement that changes the schema, so no engine's
// Subscribe is one transaction. Its steps come in an order that lets a later
// start go on from wherever one ended: names and shapes are checked, the build's
// number is drawn for good, its tables are made under names nobody has used, and
// then one transaction makes them the consumer's. What is left of a crash before
// that are tables nobody knows of; after it, the record says what is to be done
// still ([Core.settleTable]). All of it happens under the database's lock.
func (c *Core) Subscribe(ctx context.Context, d store.Declaration) (store.Consumer, error) {
	if err := rules.CheckDeclaration(&d); err != nil {
		return store.Consumer{}, fmt.Errorf("subscribe %s: %w", d.ID, err)
	}
	release, err := c.lock(ctx)
	if err != nil {
		return store.Consumer{}, err
	}
	defer release()
	found, err := c.subscribe(ctx, &d)
	if class, _ := c.Engine.Class(err); class == Duplicate {
		// The lock goes with its connection, and somebody else was quicker to
		// record the consumer or a name: now it is seen who.
		found, err = c.subscribe(ctx, &d)
	}
	if err != nil {
		return store.Consumer{}, Fail(c.Engine, "subscribe "+d.ID.String(), false, err)
	}
	c.builds.Store(found.Build, &buildTables{found.tables, d.Tables})
	return found.Consumer, nil
}

func (c *Core) subscribe(ctx context.Context, d *store.Declaration) (record, error) {
	found, err := c.load(ctx, d.ID)
	if errors.Is(err, store.ErrNotFound) {
		if _, err := c.finishDrop(ctx, d.ID); err != nil {
			return record{}, err
		}
		return c.create(ctx, d)
	}
	if err != nil {
		return record{}, err
	}
	return c.resume(ctx, d, found)
}

// record is a consumer as stored, with the text of its tables' declaration.
type record struct {
	store.Consumer
	tables string
}

// create records a consumer at its first start.
func (c *Core) create(ctx context.Context, d *store.Declaration) (record, error) {
	tables, err := readmodel.MarshalTables(d.Tables)
	if err != nil {
		return record{}, err
	}
	topics, err := json.Marshal(d.Topics)
	if err != nil {
		return record{}, err
	}
	var claims []nameClaim
	var now int64
	err = c.Engine.Read(ctx, "look for "+d.ID.String(), func(conn Conn) error {
		if now, err = number(ctx, conn, c.q.now); err != nil {
			return err
		}
		for _, topic := range d.Topics {
			if _, err := c.ReadTopic(ctx, conn, topic); err != nil {
				return fmt.Errorf("%s reads the %w", d.ID, err)
			}
		}
		claims, err = c.claims(ctx, conn, d)
		return err
	})
	if err != nil {
		return record{}, err
	}
	build, err := c.newBuild(ctx, d)
	if err != nil {
		return record{}, err
	}
	f := d.Fingerprint
	r := record{tables: string(tables), Consumer: store.Consumer{ID: d.ID, State: store.StateRunning, StateSinceUS: now, Build: build, Plugin: d.Plugin,
		Digest: d.Digest, Topics: slices.Clone(d.Topics), Fingerprint: f, Tables: c.tableRefs(d.Tables, build, 0)}}
	var made []store.TableRef
	for i, ref := range r.Tables {
		if claims[i].adopting != "" {
			continue
		}
		made = append(made, ref)
		if err := c.makeTable(ctx, ref); err != nil {
			c.dropTables(ctx, made)
			return record{}, err
		}
	}
	var steps []Step
	// First of all the names: whoever has one has won (H17).
	for _, cl := range claims {
		var adopting any
		if cl.adopting != "" {
			adopting = cl.adopting
		}
		steps = append(steps, Step{Text: c.q.claimTable, Args: []any{cl.public, d.ID.Type, d.ID.Name, cl.declared, build, adopting}})
	}
	steps = append(steps,
		Step{Text: c.q.insertConsumer, Args: []any{d.ID.Type, d.ID.Name, now, build}},
		c.buildStep(d, build, now, string(topics), r.tables),
		c.SubscribedStep(d, build))
	if err := c.writeAll(ctx, "subscribe "+d.ID.String(), append(steps, c.bookkeeping(build, d.Topics)...)); err != nil {
		var transient *store.TransientError
		if !errors.As(err, &transient) || !transient.OutcomeUnknown {
			c.dropTables(ctx, made)
		}
		return record{}, err
	}
	return r, c.settleTables(ctx, d.ID, r.Tables)
}

// buildStep records a build.
func (c *Core) buildStep(d *store.Declaration, build, now int64, topics, tables string) Step {
	f := d.Fingerprint
	return Step{Text: c.q.insertBuild, Args: []any{build, d.ID.Type, d.ID.Name, now, now, d.Plugin, d.Digest, topics,
		int64(f.Version), f.Inputs, f.Keys, f.Tables, f.Logic, tables}}
}

// bookkeeping makes a build's ownership rows and checkpoints.
func (c *Core) bookkeeping(build int64, topics []string) (steps []Step) {
	for from := 0; from < c.info.Partitions; from += rowsMax {
		var rows []string
		for p := from; p < min(from+rowsMax, c.info.Partitions); p++ {
			rows = append(rows, "("+strconv.FormatInt(build, 10)+", "+strconv.Itoa(p)+")")
		}
		steps = append(steps, Step{Text: c.SQL(fmt.Sprintf(ownershipSQL, strings.Join(rows, ", ")))})
	}
	for _, topic := range topics {
		steps = append(steps, Step{Text: c.q.insertCheckpts, Args: []any{topic, build}})
	}
	for _, topic := range slices.Sorted(slices.Values(topics)) {
		steps = append(steps, Step{Text: c.q.lockTopic, Args: []any{topic}})
	}
	return steps
}

// newBuild draws the number of a build, in a transaction of its own: it is part
// of table names, and those are never used twice. Numbers whose names are taken
// are another application's with the same prefix of read models.
func (c *Core) newBuild(ctx context.Context, d *store.Declaration) (build int64, err error) {
	const triesMax = 1000
	var taken string
	for range triesMax {
		err := c.Engine.Write(ctx, "draw the number of a build", func(conn Conn) error {
			n, err := conn.Exec(ctx, c.q.drawBuild)
			if err == nil && n != 1 {
				err = fmt.Errorf("the row \"builds\" of %s is missing: restore it from a backup, with a value of at least the highest id in %s",
					c.names.table("counters"), c.names.table("builds"))
			}
			if err != nil {
				return err
			}
			build, err = number(ctx, conn, c.q.build)
			return err
		})
		if err != nil {
			return 0, err
		}
		taken = ""
		err = c.Engine.Read(ctx, "look for tables", func(conn Conn) error {
			for _, ref := range c.tableRefs(d.Tables, build, 0) {
				kind, _, err := c.Dialect.Find(ctx, conn, ref.Physical)
				if err != nil {
					return err
				}
				if kind != "" {
					taken = ref.Physical
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		if taken == "" {
			return build, nil
		}
	}
	return 0, &store.NameTakenError{Table: taken, Owner: "a table that projhost did not create"}
}

// resume finds a consumer at a later start. It creates nothing but views: a
// table or a checkpoint that has gone was somebody's loss, and starting over
// would hide it.
func (c *Core) resume(ctx context.Context, d *store.Declaration, r record) (record, error) {
	if changed := rules.ChangedHashes(r.Fingerprint, d.Fingerprint); len(changed) > 0 {
		return r, &store.DeclarationError{Consumer: d.ID, Changed: changed}
	}
	if err := c.checkBookkeeping(ctx, r.Consumer); err != nil {
		return r, err
	}
	r.Tables = c.tableRefs(d.Tables, r.Build, r.Epoch)
	err := c.settleTables(ctx, d.ID, r.Tables)
	// What the name shows is older than it could be, and no reason not to go on.
	if _, shows := errors.AsType[*store.ViewError](err); err != nil && !shows {
		return r, err
	}
	if err := c.tidyBuilds(ctx, d.ID); err != nil {
		return r, err
	}
	if r.Plugin == d.Plugin && r.Digest == d.Digest && r.Fingerprint.Logic == d.Fingerprint.Logic {
		return r, nil
	}
	for range attemptsMax {
		err := c.writeAll(ctx, "record the logic of "+d.ID.String(), c.RevisionSteps(&r.Consumer, d))
		if err != nil && !Moved(err) {
			return r, err
		}
		// An operator may act meanwhile, and the lock is against other starts only.
		refs, build := r.Tables, r.Build
		if r, err = c.load(ctx, d.ID); err != nil {
			return r, err
		}
		if r.Build != build {
			return c.resume(ctx, d, r)
		}
		r.Tables = refs
		if r.Digest == d.Digest && r.Fingerprint.Logic == d.Fingerprint.Logic && r.Plugin == d.Plugin {
			return r, nil
		}
	}
	return r, &store.TransientError{Op: "record the logic of " + d.ID.String(), Hint: "others act on the same consumer: try again", Err: errMoved}
}

func (c *Core) checkBookkeeping(ctx context.Context, consumer store.Consumer) error {
	return c.Engine.Read(ctx, "count checkpoints", func(conn Conn) error {
		for _, count := range []struct {
			what, text string
			want       int
		}{
			{"checkpoint", c.q.countCheckpts, len(consumer.Topics) * c.info.Partitions},
			{"ownership", c.q.countOwnership, c.info.Partitions},
		} {
			n, err := number(ctx, conn, count.text, consumer.Build)
			if err != nil {
				return err
			}
			if n != int64(count.want) {
				return fmt.Errorf("%s has %d %s rows where %d belong: somebody deleted some; restore them from a backup, or rebuild the consumer", consumer.ID, n, count.what, count.want)
			}
		}
		return nil
	})
}

func (c *Core) tableRefs(tables []*readmodel.Table, build, epoch int64) []store.TableRef {
	refs := make([]store.TableRef, len(tables))
	for i, t := range tables {
		refs[i] = store.TableRef{Table: t, Physical: readmodel.PhysicalName(c.Opt.ReadModelPrefix, t.Name, build), Build: build, Epoch: epoch}
	}
	return refs
}

func (c *Core) load(ctx context.Context, id store.ConsumerID) (r record, err error) {
	err = c.Engine.Read(ctx, "read consumer", func(conn Conn) error {
		r, err = c.loadConsumer(ctx, conn, id)
		return err
	})
	return r, err
}

// loadConsumer reads a consumer with the tables of its live build.
func (c *Core) loadConsumer(ctx context.Context, conn Conn, id store.ConsumerID) (record, error) {
	list, err := c.loadConsumers(ctx, conn, c.q.consumer, id.Type, id.Name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("consumer %s: %w", id, store.ErrNotFound)
	}
	if err != nil {
		return record{}, err
	}
	return list[0], nil
}

func (c *Core) loadConsumers(ctx context.Context, conn Conn, text string, args ...any) (list []record, err error) {
	var unread error
	err = each(ctx, conn, text, args, func(rows Rows) error {
		var r record
		var state, topics string
		var halt sql.NullString
		var fingerprint int64
		err := rows.Scan(&r.ID.Type, &r.ID.Name, &state, &r.StateSinceUS, &halt, &r.Epoch, &r.Build, &r.Plugin, &r.Digest, &topics,
			&fingerprint, &r.Fingerprint.Inputs, &r.Fingerprint.Keys, &r.Fingerprint.Tables, &r.Fingerprint.Logic, &r.tables)
		if err != nil {
			return err
		}
		r.State, r.Fingerprint.Version = store.ConsumerState(state), int(fingerprint)
		if halt.Valid {
			r.Halt = HaltOf(halt.String, r.StateSinceUS)
		}
		unread = errors.Join(unread, json.Unmarshal([]byte(topics), &r.Topics))
		tables, err := c.tablesOf(r.Build, r.tables)
		unread = errors.Join(unread, err)
		r.Consumer.Tables = c.tableRefs(tables, r.Build, r.Epoch)
		list = append(list, r)
		return nil
	})
	if err == nil && unread != nil {
		err = fmt.Errorf("the record of a consumer does not read: %w", unread)
	}
	return list, err
}

// HaltOf reads why a consumer halted. One that came with a batch was timed by the
// database. What does not read is no reason to go on, nor to keep others waiting:
// then the halt says so.
func HaltOf(text string, since int64) *store.Halt {
	h := new(store.Halt)
	if err := json.Unmarshal([]byte(text), h); err != nil {
		h = &store.Halt{Reason: store.HaltUnknown, Message: "why it halted does not read: " + err.Error()}
	}
	h.AtUS = cmp.Or(h.AtUS, since)
	return h
}

// buildTables are a build's tables and the text they were read from.
type buildTables struct {
	text   string
	tables []*readmodel.Table
}

// tablesOf gives the declaration of a build's tables, which never changes, as
// long as the database is the same.
func (c *Core) tablesOf(build int64, text string) ([]*readmodel.Table, error) {
	known, ok := c.builds.Load(build)
	if ok && known.(*buildTables).text == text {
		return known.(*buildTables).tables, nil
	}
	tables, err := readmodel.UnmarshalTables([]byte(text))
	if err != nil {
		return nil, err
	}
	c.builds.Store(build, &buildTables{text, tables})
	return tables, nil
}

// ListConsumers implements [store.Consumers].
func (c *Core) ListConsumers(ctx context.Context) (list []store.Consumer, err error) {
	err = c.Engine.Read(ctx, "list consumers", func(conn Conn) error {
		records, err := c.loadConsumers(ctx, conn, c.q.consumers)
		list = nil
		for i := range records {
			list = append(list, records[i].Consumer)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Consumer implements [store.Consumers].
func (c *Core) Consumer(ctx context.Context, id store.ConsumerID) (store.Consumer, error) {
	r, err := c.load(ctx, id)
	return r.Consumer, err
}

// Checkpoints implements [store.Consumers].
func (c *Core) Checkpoints(ctx context.Context, build int64) (list []store.Checkpoint, err error) {
	err = c.Engine.Read(ctx, "read checkpoints", func(conn Conn) error {
		list = nil
		topic := ""
		return each(ctx, conn, c.q.checkpoints, []any{build}, func(r Rows) error {
			var cp store.Checkpoint
			var partition int64
			err := r.Scan(&cp.Topic, &partition, &cp.Position, &cp.Epoch, &cp.EffectsThrough, &cp.EffectsBefore, &cp.ReplayThrough, &cp.PrunedEpoch, &cp.IncompleteThrough, &cp.StopAt)
			if cp.Topic == topic {
				cp.Topic = topic // one string for all
			}
			topic, cp.Partition = cp.Topic, int(partition)
			list = append(list, cp)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Halt implements [store.Consumers].
func (c *Core) Halt(ctx context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	return c.Engine.Write(ctx, "halt "+id.String(), func(conn Conn) error {
		held, err := conn.Exec(ctx, c.q.guardHolder, lease.Build, int64(lease.Partition), lease.Generation, id.Type, id.Name)
		if err != nil {
			return err
		}
		if held == 0 {
			return store.ErrFenced
		}
		now, err := number(ctx, conn, c.q.now)
		if err != nil {
			return err
		}
		h := h
		if h.AtUS == 0 {
			h.AtUS = now
		}
		text, err := json.Marshal(h)
		if err != nil {
			return err
		}
		return RunSteps(ctx, conn, c.HeldHaltSteps(id, lease.Build, &h, string(text)))
	})
}

// Drop implements [store.Operations]. MySQL commits with every statement that
// removes a table, so this is two transactions on every engine with those statements
// between them: the record of builds and names outlives the consumer until its
// tables have gone. Whoever comes next goes on from there, dropping it again or
// subscribing. All of it happens under the database's lock.
func (c *Core) Drop(ctx context.Context, id store.ConsumerID, actor string) error {
	release, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = c.Ledger.Drop(ctx, id, actor)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	finished, e := c.finishDrop(ctx, id)
	if e != nil {
		return e
	}
	if finished {
		return nil
	}
	return err
}

// finishDrop removes what is left in the database of a consumer that was dropped,
// and reports whether there was anything.
func (c *Core) finishDrop(ctx context.Context, id store.ConsumerID) (left bool, err error) {
	op := "drop " + id.String()
	var builds []Build
	var texts []string
	err = c.Engine.Read(ctx, op, func(conn Conn) error {
		texts = nil
		if builds, err = c.Ledger.builds(ctx, conn, id); err != nil {
			return err
		}
		var drops []string
		for _, b := range builds {
			tables, err := c.tablesOf(b.ID, b.Tables)
			if err != nil {
				return err
			}
			for _, ref := range c.tableRefs(tables, b.ID, 0) {
				public := readmodel.PublicName(c.Opt.ReadModelPrefix, ref.Table.Name)
				kind, spelled, err := c.Dialect.Find(ctx, conn, public)
				if err != nil {
					return err
				}
				if kind == "view" {
					ours, err := c.Dialect.ViewIs(ctx, conn, spelled, ref.Physical, ref.Table)
					if err != nil {
						return err
					}
					if ours {
						texts = append(texts, c.Dialect.Rows.DropView(spelled))
					}
				}
				drops = append(drops, c.Dialect.Rows.DropTable(ref.Physical))
			}
		}
		// Children go before their parents.
		slices.Reverse(drops)
		texts = append(texts, drops...)
		return nil
	})
	if err != nil || len(builds) == 0 {
		return false, err
	}
	if err := c.ddl(ctx, op, texts); err != nil {
		return true, err
	}
	for _, b := range builds {
		c.builds.Delete(b.ID)
	}
	return true, c.writeAll(ctx, op, c.DroppedSteps(id))
}

// ClearHalt implements [store.Consumers].
func (c *Core) ClearHalt(ctx context.Context, id store.ConsumerID) (was bool, err error) {
	err = c.Engine.Write(ctx, "clear halt of "+id.String(), func(conn Conn) error {
		n, err := conn.Exec(ctx, c.q.clearHalt, id.Type, id.Name)
		was = n > 0
		return err
	})
	return was && err == nil, err
}
