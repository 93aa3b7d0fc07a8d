package faultstore

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// counting counts the calls that reach the database.
type counting struct {
	store.Store
	commits, applies, reads int
	refuse                  error
}

func (c *counting) Incarnation() uint64 { return 3 }

func (c *counting) Commit(context.Context, store.Commit) (store.CommitResult, error) {
	c.commits++
	return store.CommitResult{Streams: make([]store.StreamResult, 1)}, c.refuse
}

func (c *counting) Apply(_ context.Context, b *store.Batch) error {
	c.applies++
	if b.Incarnation != 3 {
		return store.ErrIncarnation
	}
	return nil
}

func (c *counting) ReadPage(context.Context, store.PageQuery) (store.Page, error) {
	c.reads++
	return store.Page{Incarnation: 3}, nil
}

func TestModes(t *testing.T) {
	for _, mode := range []Mode{Before, Lost, After} {
		t.Run(mode.String(), func(t *testing.T) {
			inner := &counting{}
			s := New(inner)
			s.Inject(Fault{At: 2, Mode: mode})
			_, err := s.Commit(t.Context(), store.Commit{})
			require.NoError(t, err)
			res, err := s.Commit(t.Context(), store.Commit{})
			var transient *store.TransientError
			require.ErrorAs(t, err, &transient)
			require.ErrorIs(t, err, ErrInjected)
			require.Equal(t, mode != Before, transient.OutcomeUnknown)
			require.Empty(t, res, "a lost answer is not given")
			_, err = s.Commit(t.Context(), store.Commit{})
			require.NoError(t, err, "one call fails")
			want := 2
			if mode == After {
				want = 3
			}
			require.Equal(t, want, inner.commits)
			require.Equal(t, []string{"Commit"}, s.Fired())
		})
	}
}

func TestRefusalIsNotHidden(t *testing.T) {
	refused := errors.New("refused")
	s := New(&counting{refuse: refused})
	s.Inject(Fault{At: 1, Mode: After})
	_, err := s.Commit(t.Context(), store.Commit{})
	require.ErrorIs(t, err, refused)
}

func TestMatchAndTimes(t *testing.T) {
	inner := &counting{}
	s := New(inner)
	s.Inject(Fault{At: 1, Times: 2, Match: func(m string) bool { return m == "ReadPage" }})
	for i := range 4 {
		_, err := s.Commit(t.Context(), store.Commit{})
		require.NoError(t, err)
		_, err = s.ReadPage(t.Context(), store.PageQuery{})
		require.Equal(t, i < 2, err != nil, "read %d", i)
	}
	require.Equal(t, map[string]int{"Commit": 4, "ReadPage": 4}, s.Calls())
	require.Equal(t, 2, inner.reads)
	s.Heal()
	_, err := s.ReadPage(t.Context(), store.PageQuery{})
	require.NoError(t, err)
}

// A batch that was read before a lost connection is refused after it, one read
// since is not.
func TestNewIncarnation(t *testing.T) {
	inner := &counting{}
	s := New(inner)
	page, err := s.ReadPage(t.Context(), store.PageQuery{})
	require.NoError(t, err)
	require.EqualValues(t, 3, page.Incarnation)
	s.Inject(Fault{At: 1, Mode: After, NewIncarnation: true})
	err = s.Apply(t.Context(), &store.Batch{Incarnation: page.Incarnation})
	require.ErrorIs(t, err, ErrInjected)
	require.Equal(t, 1, inner.applies, "it was done")

	require.EqualValues(t, 4, s.Incarnation())
	require.ErrorIs(t, s.Apply(t.Context(), &store.Batch{Incarnation: page.Incarnation}), store.ErrIncarnation)
	page, err = s.ReadPage(t.Context(), store.PageQuery{})
	require.NoError(t, err)
	require.EqualValues(t, 4, page.Incarnation)
	require.NoError(t, s.Apply(t.Context(), &store.Batch{Incarnation: page.Incarnation}))
}
