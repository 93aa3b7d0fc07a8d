package jsonl

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// HeadMax is how much of a file's start goes into its default import name.
const HeadMax = 64 << 10

const (
	blockSize = 1 << 20
	// LineMax is the longest line where nothing else is said.
	LineMax = 16 << 20
)

// Reader gives the lines of a file or stream, unpacking gzip by its magic
// bytes. Lines stay valid for ever: they are views of blocks that are not
// written again.
type Reader struct {
	// Max is the longest line taken. Default: LineMax.
	Max int

	src     io.Reader
	head    []byte
	block   []byte // read so far; grows within its capacity
	start   int    // of the next line
	eof     bool
	line    int
	long    bool // the rest of a too long line is to be passed first
	readErr error
}

// LongLineError is a line over the reader's limit.
type LongLineError struct{ Max int }

func (e *LongLineError) Error() string {
	return fmt.Sprintf("the line is longer than %d bytes", e.Max)
}

// NewReader reads the first bytes of r.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReaderSize(r, 256<<10)
	magic, err := br.Peek(2)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		br = bufio.NewReaderSize(zr, 256<<10)
	}
	// An error here shows again at the line it belongs to.
	head, _ := br.Peek(HeadMax)
	rd := &Reader{Max: LineMax, src: br, head: bytes.Clone(head)}
	if bytes.HasPrefix(head, []byte("\xef\xbb\xbf")) {
		_, _ = br.Discard(3)
	}
	return rd, nil
}

// Head is the start of the text, up to HeadMax bytes.
func (r *Reader) Head() []byte { return r.head }

// Line is the number of the line that Next gave last, from 1.
func (r *Reader) Line() int { return r.line }

// Next returns the next line that is not blank, without its end. It returns
// io.EOF after the last one, and a *LongLineError for a line that is too long,
// after which CopyLine or Next may follow.
func (r *Reader) Next() ([]byte, error) {
	if r.long {
		if err := r.CopyLine(io.Discard); err != nil {
			return nil, err
		}
	}
	for {
		line, err := r.next()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

func (r *Reader) next() ([]byte, error) {
	scanned := r.start
	for {
		if i := bytes.IndexByte(r.block[scanned:], '\n'); i >= 0 {
			end := scanned + i
			line := r.block[r.start:end:end]
			r.start = end + 1
			r.line++
			if len(line) > r.Max { // it came with the same read as its end
				r.start -= len(line) + 1
				r.long = true
				return nil, &LongLineError{r.Max}
			}
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		scanned = len(r.block)
		if len(r.block)-r.start > r.Max {
			r.line++
			r.long = true
			return nil, &LongLineError{r.Max}
		}
		if r.eof {
			if r.readErr != nil {
				return nil, r.readErr
			}
			if r.start == len(r.block) {
				return nil, io.EOF
			}
			line := r.block[r.start:]
			r.start = len(r.block)
			r.line++
			return line, nil
		}
		if scanned = r.fill(scanned); scanned < 0 {
			return nil, errors.New("the source gives neither bytes nor an end")
		}
	}
}

// fill reads more behind the block, in a new one when it is full, and returns
// where scanned has moved to.
func (r *Reader) fill(scanned int) int {
	if len(r.block) == cap(r.block) {
		pending := r.block[r.start:]
		block := make([]byte, len(pending), max(blockSize, 2*len(pending)))
		copy(block, pending)
		scanned -= r.start
		r.block, r.start = block, 0
	}
	for range 100 {
		n, err := r.src.Read(r.block[len(r.block):cap(r.block)])
		r.block = r.block[:len(r.block)+n]
		if err != nil {
			r.eof = true
			if err != io.EOF {
				r.readErr = err
			}
		}
		if n > 0 || err != nil {
			return scanned
		}
	}
	return -1
}

// CopyLine writes the line that was too long, with its end, to w.
func (r *Reader) CopyLine(w io.Writer) error {
	r.long = false
	for {
		if i := bytes.IndexByte(r.block[r.start:], '\n'); i >= 0 {
			_, err := w.Write(r.block[r.start : r.start+i+1])
			r.start += i + 1
			return err
		}
		if _, err := w.Write(r.block[r.start:]); err != nil {
			return err
		}
		if r.eof {
			r.start = len(r.block)
			return r.readErr
		}
		r.block, r.start = nil, 0
		if r.fill(0) < 0 {
			return errors.New("the source gives neither bytes nor an end")
		}
	}
}
