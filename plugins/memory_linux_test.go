package plugins

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// On Linux the cheap way is the one in use; where a kernel does not offer it
// this fails and everything else still passes.
func TestLinuxTracksPages(t *testing.T) {
	require.NotNil(t, pagemap(), "/proc/self/pagemap does not tell which pages a process owns")
	s, ok := newSpace(4 * pageSize).(*mappedSpace)
	require.True(t, ok)
	defer s.free()
	buf := s.grow(4 * pageSize)
	img := newImage(append(make([]byte, 0, 4*pageSize), buf...), nil, 0)
	defer img.free()
	s.restore(buf, img)
	own := func() (pages int) {
		require.NoError(t, s.ownPages(len(buf), func(from, to int) { pages += (to - from) / osPage }))
		return pages
	}
	require.Zero(t, own())
	buf[pageSize] = 1
	buf[3*pageSize] = 1
	require.Equal(t, 2, own())
}
