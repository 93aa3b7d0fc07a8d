package plugins

// memory is the linear memory of one guest, handed to the engine as its
// allocator. It enforces the limit itself and so learns when the guest was
// refused: the engine tells nobody.
type memory struct {
	buf     []byte // as long as the guest's memory; nil once freed
	limit   uint64
	refused bool // a memory.grow was refused since this was last cleared
	space   space
}

// space is the address space behind a memory.
type space interface {
	// grow makes the memory size bytes long, keeping what is there; what is new
	// is zero. nil: the machine has no room.
	grow(size uint64) []byte
	// restore makes buf, the whole memory, what it was when img was taken.
	restore(buf []byte, img *image)
	free()
}

// image is the state every batch starts from. Instances share it.
type image struct {
	size    uint64 // of the memory
	data    []byte // its content; the zeros at its end are left out
	globals []uint64
	region  uint32 // where the input region begins
	backing imageBacking
}

// Reallocate implements experimental.LinearMemory.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.limit {
		m.refused = true
		return nil
	}
	buf := m.space.grow(size)
	if buf == nil {
		m.refused = true
		return nil
	}
	m.buf = buf
	return buf
}

// Free implements experimental.LinearMemory. The engine calls it when the
// module closes.
func (m *memory) Free() {
	m.buf = nil
	m.space.free()
}

// view returns a part of the memory, and false where it is not inside.
func (m *memory) view(ptr, n uint32) ([]byte, bool) {
	if uint64(ptr)+uint64(n) > uint64(len(m.buf)) {
		return nil, false
	}
	return m.buf[ptr : ptr+n : ptr+n], true
}

// newImage copies a guest's memory.
func newImage(buf []byte, globals []uint64, region uint32) *image {
	end := len(buf)
	for end >= imagePage && isZero(buf[end-imagePage:end]) {
		end -= imagePage
	}
	img := &image{size: uint64(len(buf)), globals: globals, region: region}
	img.keep(buf[:end])
	return img
}

const imagePage = 4096

var zeroPage [imagePage]byte

func isZero(page []byte) bool { return string(page) == string(zeroPage[:len(page)]) }

// heapSpace keeps a memory on Go's heap: it works everywhere, and a restore
// writes the whole memory.
type heapSpace struct{ buf []byte }

func (h *heapSpace) grow(size uint64) []byte {
	if size <= uint64(cap(h.buf)) {
		h.buf = h.buf[:size]
		return h.buf
	}
	grown := make([]byte, size)
	copy(grown, h.buf)
	h.buf = grown
	return grown
}

func (h *heapSpace) restore(buf []byte, img *image) {
	n := copy(buf, img.data)
	clear(buf[n:])
}

func (h *heapSpace) free() { h.buf = nil }
