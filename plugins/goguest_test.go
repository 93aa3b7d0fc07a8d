package plugins

import (
	"testing"

	"github.com/stretchr/testify/require"

	guestbuild "github.com/projhost/projhost/internal/guest"
)

func TestGoGuest(t *testing.T) {
	bin := guestbuild.Build(t, "testplugins/echo")
	s := DefaultSettings("echo")
	m := load(t, Compile, bin, s)
	t.Logf("%d bytes, image %d of %d, disposable %v, globals %d", m.Size(), len(m.image.data), m.image.size, m.disposable, len(m.globals))
	i := newInstance(t, m)
	require.NotNil(t, i)
}

func TestGoGuestApplies(t *testing.T) {
	s := DefaultSettings("echo")
	i := newInstance(t, load(t, Compile, guestbuild.Build(t, "testplugins/echo"), s))
	for range 3 {
		r, _, fail := apply(t, i, entries("a", "bc", "def"))
		require.Nil(t, fail)
		require.Contains(t, r.results[2].ops, "def")
	}
	t.Logf("%+v", i.Stats())
}
