package coretest

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// kind tells what has a name.
func (d *db) kind(h host, name string) (kind string) {
	d.t.Helper()
	require.NoError(d.t, h.Engine.Read(d.ctx(), "look", func(conn sqlstore.Conn) (err error) {
		kind, _, err = h.Dialect.Find(d.ctx(), conn, name)
		return err
	}))
	return kind
}

// made are the physical tables of a declaration that are there, of builds up to a
// number.
func (d *db) made(h host, decl store.Declaration, through int64) (builds map[int64]int) {
	d.t.Helper()
	builds = map[int64]int{}
	for build := int64(1); build <= through; build++ {
		for _, table := range decl.Tables {
			if d.kind(h, readmodel.PhysicalName("", table.Name, build)) != "" {
				builds[build]++
			}
		}
	}
	return builds
}

// A host dies after each number of steps of what it does with a shadow. The next
// one finishes that, or does it again, and nothing is left over that anybody knows
// of.
func shadowDies(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	m := &mortal{Engine: h.Engine}
	c, err := sqlstore.New(m, h.Dialect, h.Opt)
	require.NoError(t, err)
	m.dieAt(1 << 30)
	require.NoError(t, c.Initialize(d.ctx(), "1"))
	for _, step := range []struct {
		name string
		// prepare brings the consumer to where the step begins.
		prepare func(id store.ConsumerID, next store.Declaration) int64
		run     func(s store.Store, id store.ConsumerID, next store.Declaration, build int64) error
		// after tells which build is live in the end: the first, or the second.
		live, builds int
	}{
		{"start", func(store.ConsumerID, store.Declaration) int64 { return 0 },
			func(s store.Store, _ store.ConsumerID, next store.Declaration, _ int64) error {
				_, err := s.StartShadow(d.ctx(), next, "ops")
				return err
			}, 0, 2},
		{"cancel", func(_ store.ConsumerID, next store.Declaration) int64 { return d.shadow(h, next) },
			func(s store.Store, id store.ConsumerID, _ store.Declaration, build int64) error {
				return s.CancelShadow(d.ctx(), id, build, "ops")
			}, 0, 1},
		{"switch", func(_ store.ConsumerID, next store.Declaration) int64 { return d.shadow(h, next) },
			func(s store.Store, id store.ConsumerID, _ store.Declaration, build int64) error {
				if err := s.Switch(d.ctx(), store.Switch{Consumer: id, Build: build, Actor: "ops"}); err != nil {
					return err
				}
				return s.ShowLive(d.ctx(), id)
			}, 1, 2},
		{"drop", func(id store.ConsumerID, next store.Declaration) int64 {
			build := d.shadow(h, next)
			require.NoError(t, h.Store.Switch(d.ctx(), store.Switch{Consumer: id, Build: build, Actor: "ops"}))
			return build
		},
			func(s store.Store, id store.ConsumerID, _ store.Declaration, _ int64) error {
				list, err := s.ListBuilds(d.ctx(), id)
				if err != nil {
					return err
				}
				if len(list) == 1 {
					return s.ShowLive(d.ctx(), id)
				}
				return s.DropBuild(d.ctx(), id, list[0].ID, "ops")
			}, 1, 1},
	} {
		for n := 0; ; n++ {
			name := fmt.Sprint(step.name, n)
			first, next := declare(t, name, name+"a", name+"b"), declare(t, name, name+"a", name+"c")
			next.Digest = "sha256:2"
			before, err := h.Store.Subscribe(d.ctx(), first)
			require.NoError(t, err)
			build := step.prepare(first.ID, next)
			m.dieAt(n)
			err = step.run(both{h.Store, c}, first.ID, next, build)
			died := m.died()
			if !died {
				require.NoError(t, err)
			}
			// Another host does it again: what was done already it may be told, or not.
			if err := step.run(h.Store, first.ID, next, build); err != nil {
				require.ErrorIs(t, err, store.ErrNotFound, "%s after %d steps", step.name, n)
			}
			at := fmt.Sprintf("%s after %d steps", step.name, n)
			list, err := h.Store.ListBuilds(d.ctx(), first.ID)
			require.NoError(t, err, at)
			require.Len(t, list, step.builds, at)
			decl, gone := first, name+"c"
			if step.live == 1 {
				decl, gone = next, name+"b"
			}
			found, err := h.Store.Subscribe(d.ctx(), decl)
			require.NoError(t, err, at)
			require.Equal(t, step.live == 0, found.Build == before.Build, at)
			d.settled(h, found)
			require.Empty(t, d.kind(h, gone), at)
			highest := list[len(list)-1].ID
			for _, b := range list {
				for _, ref := range b.Tables {
					require.Equal(t, "table", d.kind(h, ref.Physical), at)
				}
				highest = max(highest, b.ID)
			}
			if !died {
				require.Greater(t, n, 3, "the host died at many places")
				require.NoError(t, h.Store.Drop(d.ctx(), first.ID, "ops"))
				require.Empty(t, d.made(h, first, highest), at)
				break
			}
			require.NoError(t, h.Store.Drop(d.ctx(), first.ID, "ops"), at)
			for _, b := range list {
				for _, ref := range b.Tables {
					require.Empty(t, d.kind(h, ref.Physical), at)
				}
			}
		}
	}
}

// both is a store whose roles of a core are another core's.
type both struct {
	store.Store
	core *sqlstore.Core
}

func (b both) StartShadow(ctx context.Context, d store.Declaration, actor string) (store.Build, error) {
	return b.core.StartShadow(ctx, d, actor)
}
func (b both) CancelShadow(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return b.core.CancelShadow(ctx, id, build, actor)
}
func (b both) DropBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return b.core.DropBuild(ctx, id, build, actor)
}
func (b both) Switch(ctx context.Context, s store.Switch) error { return b.core.Switch(ctx, s) }
func (b both) ShowLive(ctx context.Context, id store.ConsumerID) error {
	return b.core.ShowLive(ctx, id)
}
func (b both) ListBuilds(ctx context.Context, id store.ConsumerID) ([]store.Build, error) {
	return b.core.ListBuilds(ctx, id)
}

// shadow begins a shadow and gives its number.
func (d *db) shadow(h host, decl store.Declaration) int64 {
	d.t.Helper()
	b, err := h.Store.StartShadow(d.ctx(), decl, "ops")
	require.NoError(d.t, err)
	return b.ID
}

// What users have built on the public name reads the new build after a switch.
func usersViews(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	q := h.Dialect.Rows.Quote
	before, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
	require.NoError(t, err)
	d.script("CREATE VIEW " + q("mine") + " AS SELECT " + q("key") + ", " + q("n") + " FROM " + q("accounts"))
	next := declare(t, "p", "accounts")
	next.Digest = "sha256:2"
	build := d.shadow(h, next)
	for at, table := range []string{before.Tables[0].Physical, readmodel.PhysicalName("", "accounts", build)} {
		d.script(fmt.Sprintf("INSERT INTO %s (%s, n, ph_position, ph_updated_us, ph_epoch) VALUES ('k', %d, 1, 1, 0)", q(table), q("key"), at+1))
	}
	reads := func(name string) (n int64) {
		require.NoError(t, h.Engine.Read(d.ctx(), "look", func(conn sqlstore.Conn) error {
			r, err := conn.Query(d.ctx(), "SELECT n FROM "+q(name))
			require.NoError(t, err)
			require.True(t, r.Next())
			require.NoError(t, r.Scan(&n))
			return r.Close()
		}))
		return n
	}
	require.EqualValues(t, 1, reads("mine"))
	require.NoError(t, h.Store.Switch(d.ctx(), store.Switch{Consumer: before.ID, Build: build, Actor: "ops"}))
	require.EqualValues(t, 1, reads("mine"), "public names follow in a step of their own")
	require.NoError(t, h.Store.ShowLive(d.ctx(), before.ID))
	require.EqualValues(t, 2, reads("accounts"))
	require.EqualValues(t, 2, reads("mine"))
	require.NoError(t, h.Store.DropBuild(d.ctx(), before.ID, before.Build, "ops"))
	require.EqualValues(t, 2, reads("mine"))
}

// A new column may be anywhere, and one may have gone.
func otherColumns(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	before, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
	require.NoError(t, err)
	tables, err := readmodel.NewTables([]abi.Table{{Name: "accounts", Columns: []abi.Column{
		{Name: "first", Kind: abi.ColumnText}, {Name: "n", Kind: abi.ColumnText}}}})
	require.NoError(t, err)
	next := declare(t, "p", "accounts")
	next.Tables, next.Fingerprint.Tables = tables, "others"
	build := d.shadow(h, next)
	require.NoError(t, h.Store.Switch(d.ctx(), store.Switch{Consumer: before.ID, Build: build, Actor: "ops"}))
	require.NoError(t, h.Store.ShowLive(d.ctx(), before.ID))
	c, err := h.Store.Consumer(d.ctx(), before.ID)
	require.NoError(t, err)
	require.Equal(t, build, c.Build)
	d.settled(h, c)
}
