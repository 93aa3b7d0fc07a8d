package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// What is done to the tables of a consumer's builds happens under the database's
// lock, and in steps that whoever comes next goes on from, as in Subscribe: tables
// are made before a record names them, and removed after one says so.

// StartShadow implements [store.Builds].
func (c *Core) StartShadow(ctx context.Context, d store.Declaration, actor string) (store.Build, error) {
	op := "begin a shadow of " + d.ID.String()
	if err := rules.CheckDeclaration(&d); err != nil {
		return store.Build{}, fmt.Errorf("%s: %w", op, err)
	}
	release, err := c.lock(ctx)
	if err != nil {
		return store.Build{}, err
	}
	defer release()
	for n := 0; ; n++ {
		b, err := c.startShadow(ctx, &d, actor)
		class, _ := c.Engine.Class(err)
		// The lock goes with its connection: now it is seen who was quicker.
		if again := errors.Is(err, errMoved) || class == Duplicate; !again || n == attemptsMax-1 {
			if err != nil {
				return store.Build{}, Fail(c.Engine, op, false, err)
			}
			return *b, nil
		}
	}
}

func (c *Core) startShadow(ctx context.Context, d *store.Declaration, actor string) (*store.Build, error) {
	all, err := c.buildsOf(ctx, "list builds of "+d.ID.String(), d.ID)
	if err != nil {
		return nil, err
	}
	if err := c.finishGivenUp(ctx, all); err != nil {
		return nil, err
	}
	if b, err := all.StartableShadow(d); b != nil || err != nil {
		return b, err
	}
	tables, err := readmodel.MarshalTables(d.Tables)
	if err != nil {
		return nil, err
	}
	topics, err := json.Marshal(d.Topics)
	if err != nil {
		return nil, err
	}
	var names []nameClaim
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
		names, err = c.newClaims(ctx, conn, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	build, err := c.newBuild(ctx, d)
	if err != nil {
		return nil, err
	}
	refs := c.tableRefs(d.Tables, build, 0)
	for i, ref := range refs {
		if err := c.makeTable(ctx, ref); err != nil {
			c.dropTables(ctx, refs[:i+1])
			return nil, err
		}
	}
	steps := c.ShadowSteps(&all.Consumer)
	for _, cl := range names {
		steps = append(steps, Step{Text: c.q.claimTable, Args: []any{cl.public, d.ID.Type, d.ID.Name, cl.declared, build, nil}})
	}
	steps = append(steps, c.buildStep(d, build, now, string(topics), string(tables)), c.ShadowStep(d, build, actor))
	if err := c.writeAll(ctx, "begin a shadow of "+d.ID.String(), append(steps, c.bookkeeping(build, d.Topics)...)); err != nil {
		var transient *store.TransientError
		if !errors.As(err, &transient) || !transient.OutcomeUnknown {
			c.dropTables(ctx, refs)
		}
		return nil, err
	}
	c.builds.Store(build, &buildTables{string(tables), d.Tables})
	return &store.Build{ID: build, Consumer: d.ID, Role: store.RoleShadow, State: store.StateRunning, StateSinceUS: now, CreatedUS: now,
		Plugin: d.Plugin, Digest: d.Digest, Topics: slices.Clone(d.Topics), Fingerprint: d.Fingerprint, Tables: refs}, nil
}

// newClaims are the public names that a consumer does not have yet.
func (c *Core) newClaims(ctx context.Context, conn Conn, d *store.Declaration) (list []nameClaim, err error) {
	for _, t := range d.Tables {
		cl := nameClaim{public: readmodel.PublicName(c.Opt.ReadModelPrefix, t.Name), declared: t.Name}
		own, err := number(ctx, conn, c.q.ownsTable, cl.public, d.ID.Type, d.ID.Name)
		if err != nil {
			return nil, err
		}
		if own > 0 {
			continue
		}
		if err := c.checkOwner(ctx, conn, cl.public); err != nil {
			return nil, err
		}
		kind, _, err := c.Dialect.Find(ctx, conn, cl.public)
		if err != nil {
			return nil, err
		}
		adopted := slices.ContainsFunc(d.Adopt, func(name string) bool { return strings.EqualFold(name, t.Name) })
		if kind != "" && (kind != "view" || !adopted) {
			return nil, &store.NameTakenError{Table: cl.public, Owner: stranger(kind)}
		}
		list = append(list, cl)
	}
	return list, nil
}

// CancelShadow implements [store.Builds].
func (c *Core) CancelShadow(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return c.giveUp(ctx, id, build, store.ActionCancel, actor)
}

// DropBuild implements [store.Builds].
func (c *Core) DropBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return c.giveUp(ctx, id, build, store.ActionDropBuild, actor)
}

func (c *Core) giveUp(ctx context.Context, id store.ConsumerID, build int64, action, actor string) error {
	release, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	op := action + " of " + id.String()
	err = c.act(ctx, op, func(conn Conn) ([]Step, error) { return c.GiveUpSteps(ctx, conn, id, build, action, actor) })
	if err != nil {
		return err
	}
	all, err := c.buildsOf(ctx, op, id)
	if err != nil {
		return err
	}
	return c.finishGivenUp(ctx, all)
}

// finishGivenUp removes the tables of builds that were given up, and forgets them.
func (c *Core) finishGivenUp(ctx context.Context, all *BuildsOf) error {
	if len(all.GivenUp) == 0 {
		return nil
	}
	id := all.Consumer.ID
	op := "drop tables of " + id.String()
	// A view that shows what is dropped is brought to what is live first.
	if err := c.showLive(ctx, all); err != nil {
		return err
	}
	for i := range all.GivenUp {
		b := &all.GivenUp[i]
		var drops []string
		for _, ref := range slices.Backward(b.Tables) { // children go before their parents
			drops = append(drops, c.Dialect.Rows.DropTable(ref.Physical))
		}
		if err := c.ddl(ctx, op, drops); err != nil {
			return err
		}
		if err := c.writeAll(ctx, op, c.ForgetSteps(id, b.ID, all.OnlyOf(b, c.Opt.ReadModelPrefix))); err != nil {
			return err
		}
		c.builds.Delete(b.ID)
	}
	return nil
}

// OnlyOf is the public names that no build has but one that was given up.
func (all *BuildsOf) OnlyOf(b *store.Build, prefix string) (names []string) {
	kept := map[string]bool{}
	for _, o := range append(all.Others, all.Live) {
		for _, ref := range o.Tables {
			kept[readmodel.PublicName(prefix, ref.Table.Name)] = true
		}
	}
	for _, ref := range b.Tables {
		if name := readmodel.PublicName(prefix, ref.Table.Name); !kept[name] {
			names = append(names, name)
		}
	}
	return names
}

// ShowLive implements [store.Builds].
func (c *Core) ShowLive(ctx context.Context, id store.ConsumerID) error {
	release, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	op := "show the live build of " + id.String()
	all, err := c.buildsOf(ctx, op, id)
	if err != nil {
		return err
	}
	return Fail(c.Engine, op, false, c.showLive(ctx, all))
}

// showLive brings the public names to what is on record.
func (c *Core) showLive(ctx context.Context, all *BuildsOf) error {
	id := all.Consumer.ID
	if err := c.settleTables(ctx, id, all.Live.Tables); err != nil {
		return err
	}
	return c.hideOthers(ctx, all)
}

// hideOthers drops the views of public names that the live build does not have.
func (c *Core) hideOthers(ctx context.Context, all *BuildsOf) error {
	shown := map[string]bool{}
	for _, ref := range all.Live.Tables {
		shown[readmodel.PublicName(c.Opt.ReadModelPrefix, ref.Table.Name)] = true
	}
	var texts []string
	op := "hide tables of " + all.Consumer.ID.String()
	err := c.Engine.Read(ctx, op, func(conn Conn) error {
		texts = nil
		for _, b := range slices.Concat(all.Others, all.GivenUp) {
			for _, ref := range slices.Backward(b.Tables) {
				public := readmodel.PublicName(c.Opt.ReadModelPrefix, ref.Table.Name)
				if shown[public] {
					continue
				}
				kind, spelled, err := c.Dialect.Find(ctx, conn, public)
				if err != nil {
					return err
				}
				if kind != "view" {
					continue
				}
				ours, err := c.Dialect.ViewIs(ctx, conn, spelled, ref.Physical, ref.Table)
				if err != nil {
					return err
				}
				if ours {
					texts = append(texts, c.Dialect.Rows.DropView(spelled))
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.ddl(ctx, op, texts)
}

// tidyBuilds finishes what others have left of a consumer's builds, at a start.
func (c *Core) tidyBuilds(ctx context.Context, id store.ConsumerID) error {
	all, err := c.buildsOf(ctx, "list builds of "+id.String(), id)
	if err != nil || len(all.Others)+len(all.GivenUp) == 0 {
		return err
	}
	if err := c.hideOthers(ctx, all); err != nil {
		return err
	}
	err = c.finishGivenUp(ctx, all)
	if _, stuck := errors.AsType[*store.ViewError](err); stuck {
		return nil // a later start finishes it
	}
	return err
}
