package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// Batches of an import: large enough that a commit's fsync is a small part,
// small enough for a host's default max_body.
const (
	importBatch      = 4000
	importBatchBytes = 4 << 20
)

// A batch that the host or the database cannot take is sent again after a wait,
// each twice as long as the one before.
const (
	againFirst = 250 * time.Millisecond
	againLast  = 5 * time.Second
)

func (c *cli) importCommand() *cobra.Command {
	var name, skipBad string
	var retryFor time.Duration
	cmd := &cobra.Command{
		Use:   "import FILE…",
		Short: "Append the events of JSON Lines files (.gz too, - for standard input)",
		Long: `import appends the events of files, one JSON object a line:

  {"id":"96f9a74e-4bb1-5940-b42b-1789908e7cf0","aggregate_type":"loan-application","aggregate_id":"173688",
   "type":"A_SUBMITTED","revision":0,"data":{"case":{}},"metadata":{"actor":"112"},"occurred_at":"2011-10-01T00:38:44.546+02:00"}

(on one line). aggregate_type, aggregate_id, type and data are needed. data is stored byte for byte as it
stands in the line; data_base64 takes what is not one line of JSON, with codec and codec_version.

An import can be started again: events that are stored already are counted and passed. A line without id
gets one derived from the import's name, its stream, its place among the file's lines of that stream and its
text. The name is --as NAME, by default the file's base name with the SHA-256 of its first 64 KiB.

While the host or the database does not answer, or is full or busy, the import tries again for --retry-for,
and says so. Events of an attempt whose answer was lost are counted as already there.

The first bad line ends the import with exit status 1; everything before it is stored. --skip-bad FILE
writes bad lines to FILE instead and goes on.`,
		Args: atLeastOne("a FILE"),
		RunE: func(cmd *cobra.Command, files []string) error {
			for _, f := range files {
				if f == "-" && name == "" {
					return usage("standard input needs --as NAME, which names the import for the ids of lines without one")
				}
			}
			if retryFor < 0 {
				return usage("--retry-for must not be negative")
			}
			return c.importFiles(cmd.Context(), files, name, skipBad, retryFor)
		},
	}
	cmd.Flags().StringVar(&name, "as", "", "`name` of the import, for the ids of lines that have none")
	cmd.Flags().StringVar(&skipBad, "skip-bad", "", "write bad lines to `file` and go on")
	cmd.Flags().DurationVar(&retryFor, "retry-for", time.Minute, "how long a host or database that does not answer is tried again; 0 ends the import at once")
	return cmd
}

// importSummary is what an import did.
type importSummary struct {
	Stored        int64   `json:"stored"`
	AlreadyThere  int64   `json:"already_there"`         // by an id in the line
	AlreadyByLine int64   `json:"already_there_derived"` // by an id derived from the line
	Skipped       int64   `json:"skipped"`               // bad lines, written to a file
	LastPosition  int64   `json:"last_position"`
	Seconds       float64 `json:"seconds"`
}

func (s *importSummary) before() string {
	text := plural(s.Stored, "event") + " stored"
	if there := s.AlreadyThere + s.AlreadyByLine; there > 0 {
		text += fmt.Sprintf(" and %s already there", count(there))
	}
	return text
}

func (c *cli) importFiles(ctx context.Context, files []string, name, skipBad string, retryFor time.Duration) (err error) {
	cl, err := c.connectOrOpen(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	im := &importer{cli: c, client: cl, ctx: ctx, lineMax: c.lineMax(), retryFor: retryFor}
	if name != "" {
		im.namer = jsonl.NewNamer(name)
	}
	if skipBad != "" {
		for _, file := range files {
			if sameFile(file, skipBad) {
				return usage("--skip-bad %s would overwrite the file that is imported: name another", skipBad)
			}
		}
		f, err := os.Create(skipBad)
		if err != nil {
			return fmt.Errorf("--skip-bad: %w", err)
		}
		im.bad = f
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	im.bar = c.progress(totalSize(files), "import", true)
	start := time.Now()
	for _, file := range files {
		if err := im.file(file, name == ""); err != nil {
			_ = im.bar.Clear()
			return err
		}
	}
	_ = im.bar.Finish()
	s := im.summary
	took := time.Since(start)
	s.Seconds = took.Seconds()
	if c.json {
		return c.printJSON(s)
	}
	text := fmt.Sprintf("%s stored", plural(s.Stored, "event"))
	if s.AlreadyThere > 0 {
		text += fmt.Sprintf(", %s already there", count(s.AlreadyThere))
	}
	if s.AlreadyByLine > 0 {
		text += fmt.Sprintf(", %s without id already there by this import's name", count(s.AlreadyByLine))
	}
	if s.Skipped > 0 {
		text += fmt.Sprintf(", %s written to %s", plural(s.Skipped, "bad line"), skipBad)
	}
	_, err = fmt.Fprintf(c.stdout, "%s in %s (%s)\n", text, round(took), perSecond(s.Stored+s.AlreadyThere+s.AlreadyByLine, took))
	return err
}

func sameFile(a, b string) bool {
	fa, errA := os.Stat(a)
	fb, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(fa, fb)
}

// totalSize is the size of all files, -1 if one has none.
func totalSize(files []string) int64 {
	total := int64(0)
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil || !fi.Mode().IsRegular() {
			return -1
		}
		total += fi.Size()
	}
	return total
}

// lineMax is the longest line worth reading: one of the largest event, whose
// payload may stand in it as base64.
func (c *cli) lineMax() int {
	cfg, err := c.load()
	if err != nil {
		return jsonl.LineMax // with --url there need not be a configuration
	}
	return max(jsonl.LineMax, 2*int(cfg.Store.MaxEvent))
}

// importer sends the lines of files in batches.
type importer struct {
	cli      *cli
	client   *client
	ctx      context.Context
	namer    *jsonl.Namer
	bad      io.Writer     // nil: a bad line ends the import
	retryFor time.Duration // without success
	bar      *progressbar.ProgressBar
	summary  importSummary

	name    string // of the file, for messages
	own     string // the name its import has by its text, "" with --as
	hangs   bool   // ids of stored lines hang on that name
	decoder jsonl.Decoder
	lineMax int // bytes of a line
	batch   []importLine
	bytes   int
}

type importLine struct {
	text    []byte
	id      store.ID
	derived bool
	number  int
}

func (im *importer) file(file string, ownName bool) (err error) {
	im.name = file
	var src io.Reader = im.cli.stdin
	if file == "-" {
		im.name = "standard input"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		src = f
	}
	r, err := jsonl.NewReader(io.TeeReader(src, im.bar))
	if err != nil {
		return fmt.Errorf("%s: %w", im.name, err)
	}
	r.Max = im.lineMax
	if im.hangs = false; ownName {
		im.own = jsonl.Name(file, r.Head())
		im.namer = jsonl.NewNamer(im.own)
	}
	for {
		line, err := r.Next()
		if err == io.EOF {
			return im.flush()
		}
		var e store.ImportEvent
		if err == nil {
			err = im.decoder.Decode(line, &e)
			if err == nil {
				derived := im.namer.Take(line, &e)
				if err := im.add(importLine{line, e.ID, derived, r.Line()}); err != nil {
					return err
				}
				continue
			}
		} else if _, long := errors.AsType[*jsonl.LongLineError](err); !long {
			// The source ended in the middle: nothing can be skipped.
			return im.stop(r.Line()+1, err)
		}
		if im.bad == nil {
			return im.stop(r.Line(), err)
		}
		if err := im.skip(r, line); err != nil {
			return err
		}
	}
}

// stop stores what came before the line and tells why it is the last.
func (im *importer) stop(line int, why error) error {
	if err := im.flush(); err != nil {
		return err
	}
	return im.lineError(line, why)
}

// lineError says how to go on. Mending a line changes the text that a file's
// import is named by, and with the name the ids of lines that have none: those
// before the line would be stored twice if the name were not kept.
func (im *importer) lineError(line int, why error) error {
	again := "import again"
	if im.own != "" && im.hangs {
		again = fmt.Sprintf("import again with --as %q", im.own)
	}
	return fmt.Errorf("import %s: line %d: %w (%s before it; mend the line and %s, or pass bad lines with --skip-bad FILE)",
		im.name, line, why, im.summary.before(), again)
}

// skip writes a bad line as it stands; line is nil for one that was too long.
func (im *importer) skip(r *jsonl.Reader, line []byte) error {
	im.summary.Skipped++
	var err error
	if line != nil {
		_, err = im.bad.Write(append(line[:len(line):len(line)], '\n'))
	} else {
		err = r.CopyLine(im.bad)
	}
	if err != nil {
		return fmt.Errorf("--skip-bad: %w", err)
	}
	return nil
}

func (im *importer) add(l importLine) error {
	if len(im.batch) > 0 && im.bytes+len(l.text) > importBatchBytes {
		if err := im.flush(); err != nil {
			return err
		}
	}
	im.batch = append(im.batch, l)
	im.bytes += len(l.text) + 64
	if len(im.batch) >= importBatch {
		return im.flush()
	}
	return nil
}

// flush stores the batch. A line that the store refuses splits it: what is
// before the line is stored, the line ends the import or is skipped.
func (im *importer) flush() error {
	batch := im.batch
	im.batch, im.bytes = im.batch[:0], 0
	for len(batch) > 0 {
		if err := im.ctx.Err(); err != nil {
			return fmt.Errorf("import %s: interrupted (%s; import again to go on)", im.name, im.summary.before())
		}
		err := im.sendPatiently(batch)
		if err == nil {
			return nil
		}
		e, ok := errors.AsType[*answerError](err)
		switch {
		case !ok:
			return fmt.Errorf("import %s: %w (%s; import again to go on)", im.name, err, im.summary.before())
		case e.Status == http.StatusRequestEntityTooLarge && e.Index < 0 && len(batch) > 1:
			// A host with a smaller max_body than ours takes it in halves.
			half := len(batch) / 2
			if err := im.sendAll(batch[:half]); err != nil {
				return err
			}
			batch = batch[half:]
		case e.Status == http.StatusRequestEntityTooLarge && e.Index < 0:
			e.Index = 0
			fallthrough
		case e.Index >= 0 && e.Index < len(batch):
			if err := im.sendAll(batch[:e.Index]); err != nil {
				return err
			}
			bad := batch[e.Index]
			if im.bad == nil {
				return im.lineError(bad.number, err)
			}
			if err := im.skip(nil, bad.text); err != nil {
				return err
			}
			batch = batch[e.Index+1:]
		default:
			return fmt.Errorf("import %s: %w (%s; import again to go on)", im.name, err, im.summary.before())
		}
	}
	return nil
}

// sendAll stores part of a batch by the same rules.
func (im *importer) sendAll(part []importLine) error {
	rest := im.batch
	im.batch = part
	err := im.flush()
	im.batch = rest[:0]
	return err
}

// sendPatiently is send, again and again while it fails with what passes.
func (im *importer) sendPatiently(batch []importLine) error {
	var since time.Time
	for wait := againFirst; ; wait = min(2*wait, againLast) {
		err := im.send(batch)
		if err == nil && !since.IsZero() {
			im.say("goes on after %s", round(time.Since(since)))
		}
		if !passes(err) || im.retryFor == 0 {
			return err
		}
		if since.IsZero() {
			since = time.Now()
			im.say("%v: it is tried again for up to %s", err, im.retryFor)
		}
		left := im.retryFor - time.Since(since)
		if left <= 0 {
			return err
		}
		select {
		case <-im.ctx.Done():
			return errInterrupted
		case <-time.After(min(wait, left)):
		}
	}
}

// passes reports whether a call failed for a cause that has nothing to do with
// what was sent.
func passes(err error) bool {
	if e, ok := errors.AsType[*answerError](err); ok {
		return e.Status == http.StatusServiceUnavailable
	}
	_, ok := errors.AsType[*lostCallError](err)
	return ok
}

func (im *importer) say(format string, args ...any) {
	_ = im.bar.Clear()
	fmt.Fprintf(im.cli.stderr, "import %s: %s\n", im.name, fmt.Sprintf(format, args...))
}

// send stores a batch in one transaction.
func (im *importer) send(batch []importLine) error {
	size := 0
	for i := range batch {
		size += len(batch[i].text) + 64
	}
	body := make([]byte, 0, size)
	for i := range batch {
		body = appendWithID(body, &batch[i])
	}
	answer, _, err := im.client.call(im.ctx, http.MethodPost, "/v1/import", nil, body)
	if err != nil {
		return err
	}
	var res api.Imported
	if err := json.Unmarshal(answer, &res); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	im.summary.Stored += int64(res.Stored)
	im.hangs = im.hangs || slices.ContainsFunc(batch, func(l importLine) bool { return l.derived })
	for _, i := range res.There {
		if i >= 0 && i < len(batch) && batch[i].derived {
			im.summary.AlreadyByLine++
			res.AlreadyThere--
		}
	}
	im.summary.AlreadyThere += int64(res.AlreadyThere)
	im.summary.LastPosition = max(im.summary.LastPosition, res.LastPosition)
	return nil
}

// appendWithID appends a line; a derived id becomes its first member.
func appendWithID(dst []byte, l *importLine) []byte {
	text := l.text
	if l.derived {
		i := 0
		for text[i] != '{' { // white space
			i++
		}
		dst = append(dst, `{"id":"`...)
		dst = l.id.Append(dst)
		dst = append(dst, `",`...)
		text = text[i+1:]
	}
	dst = append(dst, text...)
	return append(dst, '\n')
}
