package sqlite

import (
	"context"
	"fmt"
	"slices"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// StartShadow implements [store.Builds], in one transaction: here the schema is part
// of it.
func (s *Store) StartShadow(ctx context.Context, d store.Declaration, actor string) (b store.Build, err error) {
	op := "begin a shadow of " + d.ID.String()
	if err := rules.CheckDeclaration(&d); err != nil {
		return b, fmt.Errorf("%s: %w", op, err)
	}
	err = s.write(ctx, op, subscribeRows, func(tx *tx) error {
		b, err = s.startShadow(tx, &d, actor)
		if err == nil {
			tx.afterCommit(func() { s.builds.Store(b.ID, d.Tables) })
		}
		return err
	})
	if err != nil {
		return store.Build{}, err
	}
	return b, nil
}

func (s *Store) startShadow(tx *tx, d *store.Declaration, actor string) (store.Build, error) {
	ctx := context.Background()
	var none store.Build
	all, err := s.BuildsOf(ctx, s.ledgerConn(tx.conn), d.ID)
	if err != nil {
		return none, err
	}
	if b, err := all.StartableShadow(d); err != nil {
		return none, err
	} else if b != nil {
		return *b, nil
	}
	for _, topic := range d.Topics {
		row, err := tx.queryRow(ctx, s.q.topic, topic)
		if err != nil {
			return none, err
		}
		if row == nil {
			return none, fmt.Errorf("%s reads the topic %q: %w", d.ID, topic, store.ErrNotFound)
		}
	}
	if err := s.runSteps(tx, s.ShadowSteps(&all.Consumer)); err != nil {
		return none, err
	}
	now := s.nowUS()
	build, err := s.insertBuild(tx, d, now)
	if err != nil {
		return none, err
	}
	refs := s.tableRefs(d.Tables, build, 0)
	for i := range refs {
		if err := s.shadowTable(tx, d, &refs[i]); err != nil {
			return none, err
		}
	}
	if err := s.runSteps(tx, []sqlstore.Step{s.ShadowStep(d, build, actor)}); err != nil {
		return none, err
	}
	return store.Build{ID: build, Consumer: d.ID, Role: store.RoleShadow, State: store.StateRunning, StateSinceUS: now, CreatedUS: now,
		Plugin: d.Plugin, Digest: d.Digest, Topics: slices.Clone(d.Topics), Fingerprint: d.Fingerprint, Tables: refs}, nil
}

// shadowTable makes a table of a shadow, and its public name its consumer's.
func (s *Store) shadowTable(tx *tx, d *store.Declaration, ref *store.TableRef) error {
	public := readmodel.PublicName(s.opt.ReadModelPrefix, ref.Table.Name)
	row, err := tx.queryRow(context.Background(), s.q.ownsTable, public, d.ID.Type, d.ID.Name)
	if err != nil {
		return err
	}
	if row == nil {
		if err := s.claimName(tx, d, ref.Table, public, ref.Build); err != nil {
			return err
		}
		there, err := findObject(tx.conn, public)
		if err != nil {
			return err
		}
		if there.kind != "" && (there.kind != "view" || !adopts(d, ref.Table.Name)) {
			return &store.NameTakenError{Table: public, Owner: stranger(there)}
		}
	}
	there, err := findObject(tx.conn, ref.Physical)
	if err != nil {
		return err
	}
	if there.kind != "" {
		return &store.NameTakenError{Table: ref.Physical, Owner: stranger(there)}
	}
	for _, text := range slices.Concat(readmodel.SQLite.CreateTable(ref.Physical, ref.Table), readmodel.SQLite.CreateIndexes(ref.Physical, ref.Table)) {
		if err := tx.script(text); err != nil {
			return err
		}
	}
	return nil
}

// CancelShadow implements [store.Builds].
func (s *Store) CancelShadow(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return s.giveUp(ctx, id, build, store.ActionCancel, actor)
}

// DropBuild implements [store.Builds].
func (s *Store) DropBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return s.giveUp(ctx, id, build, store.ActionDropBuild, actor)
}

// giveUp is one transaction, so no build is ever found that was given up.
func (s *Store) giveUp(ctx context.Context, id store.ConsumerID, build int64, action, actor string) error {
	return s.write(ctx, action+" of "+id.String(), subscribeRows, func(tx *tx) error {
		conn := s.ledgerConn(tx.conn)
		steps, err := s.GiveUpSteps(context.Background(), conn, id, build, action, actor)
		if err != nil {
			return err
		}
		if err := s.runSteps(tx, steps); err != nil {
			return err
		}
		all, err := s.BuildsOf(context.Background(), conn, id)
		if err != nil {
			return err
		}
		if err := s.showLive(tx, all); err != nil {
			return err
		}
		for i := range all.GivenUp {
			b := &all.GivenUp[i]
			for _, ref := range slices.Backward(b.Tables) {
				if err := tx.script(readmodel.SQLite.DropTable(ref.Physical)); err != nil {
					return err
				}
			}
			if err := s.runSteps(tx, s.ForgetSteps(id, b.ID, all.OnlyOf(b, s.opt.ReadModelPrefix))); err != nil {
				return err
			}
			tx.afterCommit(func() { s.builds.Delete(b.ID) })
		}
		return nil
	})
}

// ShowLive implements [store.Builds].
func (s *Store) ShowLive(ctx context.Context, id store.ConsumerID) error {
	return s.write(ctx, "show the live build of "+id.String(), subscribeRows, func(tx *tx) error {
		all, err := s.BuildsOf(context.Background(), s.ledgerConn(tx.conn), id)
		if err != nil {
			return err
		}
		return s.showLive(tx, all)
	})
}

// showLive brings the public names to what is on record.
func (s *Store) showLive(tx *tx, all *sqlstore.BuildsOf) error {
	shown := map[string]bool{}
	for _, ref := range all.Live.Tables {
		shown[readmodel.PublicName(s.opt.ReadModelPrefix, ref.Table.Name)] = true
		if err := s.checkTable(tx, ref); err != nil {
			return err
		}
	}
	for _, b := range slices.Concat(all.Others, all.GivenUp) {
		for i := range b.Tables {
			ref := &b.Tables[i]
			public := readmodel.PublicName(s.opt.ReadModelPrefix, ref.Table.Name)
			if shown[public] {
				continue
			}
			there, err := findObject(tx.conn, public)
			if err != nil {
				return err
			}
			if there.kind == "view" && showsTable(there, public, ref) {
				if err := tx.script(readmodel.SQLite.DropView(there.name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
