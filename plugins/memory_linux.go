package plugins

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// On Linux a guest's memory is a mapping of its own. The image lies in a
// memory file that every guest maps privately: a guest shares the pages it
// only reads, and the kernel tells which ones it has made its own. A restore
// writes just those.

var osPage = os.Getpagesize()

// imageBacking is the memory file of an image.
type imageBacking struct{ file *os.File } // nil: the image is on the heap

// keep copies data into a memory file, and onto the heap where there is none.
func (img *image) keep(data []byte) {
	if pagemap() != nil && len(data) > 0 {
		if file, mapped, err := memoryFile(data); err == nil {
			img.data, img.backing.file = mapped, file
			return
		}
	}
	img.data = bytes.Clone(data)
}

func (img *image) free() {
	if img.backing.file != nil {
		_ = unix.Munmap(img.data)
		_ = img.backing.file.Close()
		img.data, img.backing.file = nil, nil
	}
}

// memoryFile makes a file of whole pages that holds data, and a mapping of it
// that can be read only.
func memoryFile(data []byte) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate("projhost-image", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), "projhost-image")
	size := (len(data) + osPage - 1) / osPage * osPage
	err = file.Truncate(int64(size))
	if err == nil {
		_, err = file.WriteAt(data, 0)
	}
	var mapped []byte
	if err == nil {
		mapped, err = unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, mapped, nil
}

func newSpace(limit uint64) space {
	if pagemap() != nil && strconv.IntSize == 64 && limit > 0 {
		if s, err := newMappedSpace(limit); err == nil {
			return s
		}
	}
	return &heapSpace{}
}

// mappedSpace reserves addresses for the limit at once; the machine gives
// memory for what is touched. Growing never moves it.
type mappedSpace struct {
	all      []byte
	size     uint64
	mapped   *image // of which the head of all is a private mapping
	restores uint64
	flags    []byte // of pages, as read from the kernel
}

func newMappedSpace(limit uint64) (*mappedSpace, error) {
	all, err := unix.Mmap(-1, 0, int(limit), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	// One write would make 2 MiB of zeros the guest's own, to be cleared again.
	_ = unix.Madvise(all, unix.MADV_NOHUGEPAGE)
	return &mappedSpace{all: all}, nil
}

func (s *mappedSpace) grow(size uint64) []byte {
	if size > uint64(len(s.all)) {
		return nil
	}
	s.size = size
	return s.all[:size]
}

func (s *mappedSpace) free() {
	if s.all != nil {
		_ = unix.Munmap(s.all)
		s.all, s.flags = nil, nil
	}
}

const (
	// Throwing pages away costs a fault each when they are next touched, some
	// ten times as much as writing them. But writing goes on for pages that one
	// large batch touched and no later one does: so of a large set all are
	// thrown away now and then.
	dropEvery = 64
	dropBytes = 1 << 20
)

func (s *mappedSpace) restore(buf []byte, img *image) {
	if s.mapped != img {
		if err := s.adopt(img); err != nil {
			s.mapped = nil
			n := copy(buf, img.data)
			clear(buf[n:])
		}
		return
	}
	s.restores++
	written := 0
	err := s.ownPages(len(buf), func(from, to int) {
		written += to - from
		if from < len(img.data) {
			from += copy(buf[from:to], img.data[from:])
		}
		clear(buf[from:to])
	})
	if err != nil {
		n := copy(buf, img.data)
		clear(buf[n:])
		return
	}
	if written > dropBytes && s.restores%dropEvery == 0 {
		_ = unix.Madvise(s.all[:len(buf)], unix.MADV_DONTNEED)
	}
}

// adopt maps the image over the head of the memory and makes the rest zero.
func (s *mappedSpace) adopt(img *image) error {
	head := len(img.data)
	if img.backing.file == nil && head > 0 {
		return errors.ErrUnsupported
	}
	if err := unix.Madvise(s.all[head:], unix.MADV_DONTNEED); err != nil {
		return err
	}
	s.mapped = img
	if head == 0 {
		return nil
	}
	at := unsafe.Pointer(unsafe.SliceData(s.all))
	_, err := unix.MmapPtr(int(img.backing.file.Fd()), 0, at, uintptr(head),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return err
}

// ownPages calls f for every run of pages in the first n bytes that are not
// the image's or untouched any more.
func (s *mappedSpace) ownPages(n int, f func(from, to int)) error {
	pages := n / osPage
	if len(s.flags) < pages*8 {
		s.flags = make([]byte, pages*8)
	}
	flags := s.flags[:pages*8]
	first := uintptr(unsafe.Pointer(unsafe.SliceData(s.all))) / uintptr(osPage)
	if _, err := pagemap().ReadAt(flags, int64(first)*8); err != nil {
		return err
	}
	start := -1
	for p := range pages {
		if own(binary.NativeEndian.Uint64(flags[p*8:])) {
			if start < 0 {
				start = p
			}
		} else if start >= 0 {
			f(start*osPage, p*osPage)
			start = -1
		}
	}
	if start >= 0 {
		f(start*osPage, n)
	}
	return nil
}

// own judges a page by its entry in the kernel's page map: there, in memory or
// swapped out, and no longer a page of the file.
func own(entry uint64) bool {
	const present, swapped, file = 1 << 63, 1 << 62, 1 << 61
	return entry&(present|swapped) != 0 && entry&file == 0
}

// pagemap is the kernel's page map of this process, or nil where it does not
// say what is needed: then memories are kept on the heap.
var pagemap = sync.OnceValue(func() *os.File {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil
	}
	if !pagemapTells(f) {
		_ = f.Close()
		return nil
	}
	return f
})

// pagemapTells tries it out: of four pages, the second and the fourth are
// written to.
func pagemapTells(f *os.File) bool {
	file, mapped, err := memoryFile(bytes.Repeat([]byte{1}, 2*osPage))
	if err != nil {
		return false
	}
	img := &image{data: mapped, backing: imageBacking{file}}
	defer img.free()
	s, err := newMappedSpace(uint64(4 * osPage))
	if err != nil {
		return false
	}
	defer s.free()
	if s.adopt(img) != nil {
		return false
	}
	touched := s.all[0]
	s.all[osPage] = touched + 1
	s.all[3*osPage] = touched + 1
	var flags [4 * 8]byte
	first := uintptr(unsafe.Pointer(unsafe.SliceData(s.all))) / uintptr(osPage)
	if _, err := f.ReadAt(flags[:], int64(first)*8); err != nil {
		return false
	}
	for p, want := range []bool{false, true, false, true} {
		if own(binary.NativeEndian.Uint64(flags[p*8:])) != want {
			return false
		}
	}
	return true
}
